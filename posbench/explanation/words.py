"""One setting in the words of every tool, to copy, or the reason why a tool cannot express it.

What is written for an engine is what gives the same frequencies and amplitude there:
SGLang reads attn_factor, a multiple of YaRN's own amplitude, where transformers and vLLM read attention_factor.
"""

import json
import math
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from posbench.explanation.facts import FACTS, TYPES, of_family
from posbench.explanation.frequencies import Rope, frequencies, plain, usual_amplitude
from posbench.explanation.llama_cpp import SCALING, Gguf
from posbench.explanation.settings import FULL, HF, SGLANG, SLIDING, VLLM, Setting

FLAGS, POSBENCH = "llama.cpp flags", "posbench"
EXTENSIONS = {"linear": "pi", "dynamic": "dynamic_ntk"}  # of posbench, where they are not called like the type
USUAL = {"partial_rotary_factor": 1, "beta_fast": 32, "beta_slow": 1, "truncate": True, "extrapolation_factor": 1}
LATENT = "latent attention has words of its own there (deepseek_yarn, yarn_log_multiplier), which explain does not write"
STATIC = ("default", "linear", "yarn")  # what flags of llama.cpp can say

TYPE, FACTOR, ORIGINAL, AMPLITUDE = (f"{SCALING}{one}" for one in ("type", "factor", "original_context_length", "attn_factor"))


class Cannot(Exception):
    """Reason why a tool cannot express a setting."""


@dataclass(frozen=True)
class ToolWords:
    """Words of one tool, or with `serves` False why it has none."""

    tool: str
    serves: bool
    text: str
    source: str


def whole(value: float) -> float | int:
    """A number as people type it: 4096 for 4096.0."""
    return int(value) if float(value).is_integer() and abs(value) < 2**53 else value


def parameters(rope: Rope, tool: str = HF) -> dict:
    """rope_parameters of one kind of layer. Raises Cannot where the tool has no words for it."""
    mixed = rope.kind == "yarn" and rope.mix != 1 and tool != SGLANG
    if rope.divisors or mixed or (rope.amplitude != 1 and rope.kind not in ("yarn", "longrope")):
        if (frequencies(rope) <= 0).any():
            raise Cannot("pairs stand still or turn backwards")
        bare = replace(rope, divisors=(), kind="default", factor=1.0)  # whose frequencies longrope divides, pair by pair
        divisors = tuple((plain(bare) / frequencies(rope)).tolist())
        rope = replace(bare, kind="longrope", long=divisors, short=divisors, factor=max(1.0, max(divisors)))
    if rope.kind == "dynamic" and tool != HF:
        raise Cannot(f"it computes one base for all lengths{', with max_trained_positions' * (tool == VLLM)}")
    if rope.kind == "proportional" and rope.factor != 1 and tool != HF:
        raise Cannot("it reads no factor of this type")
    if rope.kind == "longrope" and tool == VLLM and rope.short != rope.long:
        raise Cannot("it takes the long divisors for every text once it serves more than the training length")
    found = {"rope_type": rope.kind, "rope_theta": whole(rope.base), "partial_rotary_factor": rope.share}
    found |= {"factor": float(rope.factor), "original_max_position_embeddings": whole(rope.original)}
    found |= {"low_freq_factor": rope.low, "high_freq_factor": rope.high, "beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow}
    found |= {"truncate": rope.truncate, "extrapolation_factor": rope.mix, "short_factor": list(rope.short), "long_factor": list(rope.long)}
    usual = USUAL | ({"factor": 1} if rope.kind in ("proportional", "longrope") else {})
    used = ("rope_type", "rope_theta", "partial_rotary_factor", *TYPES[rope.kind], *["extrapolation_factor"] * (rope.kind == "yarn"))
    found = {key: value for key, value in found.items() if key in used and value != usual.get(key)}
    if rope.kind == "longrope" and tool != HF:  # otherwise its amplitude follows from max_position_embeddings alone
        return {**found, "short_mscale": rope.amplitude, "long_mscale": rope.amplitude}
    more = rope.amplitude / usual_amplitude(rope)
    if not math.isclose(more, 1, rel_tol=1e-9):
        found |= {"attn_factor": more} if tool == SGLANG else {"attention_factor": rope.amplitude}
    return found


def covered(setting: Setting, before: Setting) -> float | None:
    """Tokens that the setting is meant for; None for any number. A factor in the checkpoint's own words is part of its stated length."""
    rope, own = setting.turning[0].rope, before.turning[0].rope
    if rope.kind == "dynamic":
        return None
    scaled = 0 if rope.kind == "default" or (rope == own and rope.kind != "yarn") else rope.original * rope.factor
    return max(scaled, setting.longest if rope == own or not scaled else 0)


def nested_parameters(setting: Setting, tool: str = HF) -> dict:
    """rope_parameters, by kind of layer where kinds differ."""
    each = {kind.name: parameters(kind.rope, tool) for kind in setting.turning}
    alike = all(one == next(iter(each.values())) for one in each.values())
    return next(iter(each.values())) if alike else each


def gguf_of(setting: Setting) -> Gguf:
    """Keys and tensors with which llama.cpp runs the setting. Raises Cannot for one that it cannot run from a file alone."""
    name = of_family(setting.family, "architecture", setting.family)
    rope = next((kind.rope for kind in setting.turning if kind.name.partition(",")[0] == FULL), setting.turning[0].rope)
    keys = {"context_length": whole(setting.longest), "block_count": sum(len(kind.layers) for kind in setting.kinds)}
    keys |= {"attention.key_length": rope.head_dim, "rope.dimension_count": rope.turned, "rope.freq_base": float(rope.base)}
    for kind in setting.kinds:
        if kind.window:
            keys["attention.sliding_window"] = whole(kind.window)
            if name in FACTS["gguf_sliding_every"]:
                keys["attention.sliding_window_pattern"] = [layer in kind.layers for layer in range(keys["block_count"])]
                keys |= {"rope.freq_base_swa": float(kind.rope.base)} if kind.rope else {}
    divisors = rope.divisors
    if rope.beside:
        raise Cannot(LATENT)
    if rope.kind in ("dynamic", "proportional"):
        raise Cannot(f"it has no {rope.kind} scaling")
    if rope.kind == "llama3":
        divisors = tuple((plain(rope) / frequencies(rope)).tolist())
    own = rope.amplitude / usual_amplitude(rope) if rope.kind == "yarn" else rope.amplitude
    keys |= {} if math.isclose(own, 1, rel_tol=1e-9) else {AMPLITUDE: own}
    if rope.kind == "longrope":
        return Gguf(name, {**keys, TYPE: "longrope", ORIGINAL: whole(rope.original)}, (), rope.long, rope.short)
    if rope.kind == "linear":
        keys |= {TYPE: "linear", FACTOR: float(rope.factor)}
    if rope.kind == "yarn":
        if not np.allclose(frequencies(rope), frequencies(replace(rope, truncate=True)), rtol=1e-9, atol=0):
            raise Cannot("it always rounds YaRN's bounds (truncate)")
        keys |= {TYPE: "yarn", FACTOR: float(rope.factor), ORIGINAL: whole(rope.original)}
    return Gguf(name, keys, divisors)


def converted(setting: Setting) -> Gguf:
    """The file that llama.cpp's converter makes of a checkpoint: types that it does not know are dropped, and keys that nobody reads."""
    kinds = []
    for kind in setting.kinds:
        changed = {}
        if kind.rope and kind.rope.kind in ("dynamic", "proportional"):
            changed = {"kind": "default", "factor": 1.0}
        elif kind.rope and kind.rope.kind == "yarn":
            changed = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True, "mix": 1.0, "amplitude": usual_amplitude(kind.rope)}
        kinds.append(replace(kind, rope=replace(kind.rope, **changed)) if changed else kind)
    return gguf_of(replace(setting, kinds=tuple(kinds)))


def in_words(setting: Setting, before: Setting, what: str) -> list[ToolWords]:
    """The setting in the words of each tool, for the checkpoint `what` that has the setting `before` of its own."""
    reach = covered(setting, before)
    makers = {
        POSBENCH: lambda: _posbench(setting, before, what),
        HF: lambda: f"config.json: {json.dumps({'rope_parameters': nested_parameters(setting), **_longer(setting, before, HF, reach)})}",
        VLLM: lambda: _served(setting, before, VLLM, "--hf-overrides", "--max-model-len", reach),
        SGLANG: lambda: _served(setting, before, SGLANG, "--json-model-override-args", "--context-length", reach),
        FLAGS: lambda: _flags(setting, before, reach),
        "GGUF keys": lambda: _keys(setting),
    }
    found = []
    for tool, make in makers.items():
        try:
            serves, text = True, make()
        except Cannot as why:
            serves, text = False, str(why)
        found.append(ToolWords(tool, serves, text, FACTS["writers"][tool]))
    return found


def _longer(setting: Setting, before: Setting, tool: str, reach: float | None) -> dict:
    """max_position_embeddings, where it must grow: engines multiply it by the factor of linear, but not of yarn and llama3."""
    by_factor = tool != HF and setting.turning[0].rope.kind in ("linear", "proportional")
    wanted = setting.longest if by_factor or reach is None else reach
    return {"max_position_embeddings": whole(wanted)} if wanted > before.longest and not by_factor else {}


def _served(setting: Setting, before: Setting, tool: str, flag: str, length: str, reach: float | None) -> str:
    if setting.turning[0].rope.beside:
        raise Cannot(LATENT)
    found = {"rope_parameters": nested_parameters(setting, tool), **_longer(setting, before, tool, reach)}
    return f"{flag} {shlex.quote(json.dumps(found))}" + (f" {length} {whole(reach)}" if reach else "")


def _flags(setting: Setting, before: Setting, reach: float | None) -> str:
    """Flags over the file that llama.cpp's converter makes of the checkpoint as it is."""
    rope, own = setting.turning[0].rope, before.turning[0].rope
    sliding = [[replace(kind, said={}) for kind in one.kinds if kind.name.startswith(SLIDING)] for one in (setting, before)]
    if setting.kinds[1:] and sliding[0] != sliding[1]:
        raise Cannot("its flags do not reach sliding layers")
    if rope.beside:
        raise Cannot(LATENT)
    length = f" -c {whole(reach)}" if reach else ""
    if rope.kind not in STATIC or rope.divisors:
        if rope != own or rope.kind in ("dynamic", "proportional"):
            raise Cannot(f"its flags have no {'list of divisors' if rope.divisors else rope.kind}")
        return f"none: the file holds its divisors{length and ', only'}{length}"
    if own.divisors or own.kind in ("llama3", "longrope"):
        raise Cannot("the file's own divisors stay, whatever the flags say")
    made = gguf_of(setting)
    said = {
        "--rope-scaling": made.keys.get(TYPE, "none"),
        "--rope-scale": made.keys.get(FACTOR),
        "--yarn-orig-ctx": made.keys.get(ORIGINAL),
    }
    if rope.kind == "yarn":
        said |= {"--yarn-beta-slow": rope.beta_slow, "--yarn-beta-fast": rope.beta_fast}
        said |= {} if rope.mix == 1 else {"--yarn-ext-factor": rope.mix}
    if more := made.keys.get(AMPLITUDE):
        said["--override-kv"] = f"{made.architecture}.{AMPLITUDE}=float:{more:.10g}"
    said["--rope-freq-base"] = rope.base
    typed = (f"{flag} {value if isinstance(value, str) else f'{value:.10g}'}" for flag, value in said.items() if value is not None)
    return " ".join(typed) + length


def _keys(setting: Setting) -> str:
    """Keys of a GGUF file; divisors are tensors, which only the converter writes."""
    made, rope = gguf_of(setting), setting.turning[0].rope
    if rope.kind == "yarn" and (rope.beta_fast, rope.beta_slow, rope.mix) != (32, 1, 1):
        raise Cannot("it reads yarn_beta_fast, yarn_beta_slow and yarn_ext_factor in files of grok (betas: mistral3 too); use flags")
    shown = {TYPE: "none"} | {key: value for key, value in made.keys.items() if key.startswith("rope.") and key != "rope.dimension_count"}
    text = " ".join(f"{made.architecture}.{key}={value}" for key, value in shown.items())
    tensors = "rope_freqs.weight" if made.divisors else "rope_factors_long.weight and rope_factors_short.weight" if made.long else ""
    return text + (f" and the tensor{'s' * bool(made.long)} {tensors}, which the converter writes" if tensors else "")


def model_path(what: str) -> str | None:
    """Argument that names the checkpoint to posbench: the folder of a config.json; None for a description of another name."""
    file = Path(what)
    if file.suffix == ".json":
        return f"model.path={shlex.quote(str(file.parent))}" if file.name == "config.json" else None
    return f"model.path={shlex.quote(what)}"


def _posbench(setting: Setting, before: Setting, what: str) -> str:
    """Arguments of posbench on the checkpoint as it is."""
    rope, own, path = setting.turning[0].rope, before.turning[0].rope, model_path(what)
    if path is None:
        raise Cannot("it reads a checkpoint's folder, with a config.json and weights")
    model = f"model=hf {path}"
    if [kind.rope for kind in setting.kinds] == [kind.rope for kind in before.kinds]:
        return model
    usual = rope.kind not in ("yarn", "longrope") or math.isclose(rope.amplitude, usual_amplitude(rope), rel_tol=1e-6)
    why = {
        "it has one extension for all kinds of layers": len(setting.kinds) > 1,
        f"the checkpoint is scaled already ({own.kind}), and its extensions go on from there": own.kind != "default" or own.divisors,
        "it has no such mixture": rope.divisors or rope.mix != 1 or rope.share != own.share,
        "it has no amplitude without a scaling": rope.kind == "default" and rope.amplitude != 1,
        "it has no proportional": rope.kind == "proportional",
        f"its amplitude is {usual_amplitude(rope):.4g}, or 1 with extension.temperature=false": not usual and rope.amplitude != 1,
    }
    for reason, holds in why.items():
        if holds:
            raise Cannot(reason)
    if rope.kind == "default":
        return model if rope.base == own.base else f"{model} extension=abf extension.base={rope.base:.10g}"
    name, given = EXTENSIONS.get(rope.kind, rope.kind), {"factor": rope.factor}
    if rope.kind != "dynamic":
        model += f" train.length={whole(rope.original)}" if rope.original != before.longest else ""
        given = {"yarn": {"alpha": rope.beta_slow, "beta": rope.beta_fast}, "llama3": {"alpha": rope.low, "beta": rope.high}}.get(name, {})
        given |= {"factors": list(rope.long), "short_factors": list(rope.short)} if name == "longrope" else {}
        given |= ({"truncate": False} if name == "yarn" and not rope.truncate else {}) | ({} if usual else {"temperature": False})
        given |= {"mode": "fixed", "target_len": whole(rope.factor * rope.original)}
    typed = {
        key: value if isinstance(value, str) else json.dumps(value) if isinstance(value, bool | list) else f"{value:.10g}"
        for key, value in given.items()
    }
    if rope.base == own.base:
        return " ".join([f"{model} extension={name}", *(shlex.quote(f"extension.{key}={value}") for key, value in typed.items())])
    of_class = f"posbench.extensions.{name}.{''.join(map(str.capitalize, name.split('_')))}"
    parts = {"base": {"_target_": "posbench.extensions.abf.Abf", "base": f"{rope.base:.10g}"}, "scaling": {"_target_": of_class, **typed}}
    said = (f"'+extension.parts.{part}={{{', '.join(f'{key}: {value}' for key, value in own.items())}}}'" for part, own in parts.items())
    return " ".join([f"{model} extension=compose extension.parts.bands=null extension.parts.frequencies=null", *said])
