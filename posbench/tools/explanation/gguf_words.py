"""One setting as keys of a GGUF file or flags of llama.cpp, and the file that its converter makes
of a checkpoint.
"""

import math
from dataclasses import replace

import numpy as np

from posbench.tools.explanation.facts import FACTS
from posbench.tools.explanation.frequencies import Rope, frequencies, plain, usual_amplitude
from posbench.tools.explanation.llama_cpp import SCALING, Gguf
from posbench.tools.explanation.rope_parameters import Cannot, whole
from posbench.tools.explanation.settings import FULL, SLIDING, Setting

STATIC = ("default", "linear", "yarn")  # what flags of llama.cpp can say
DROPPED = ("dynamic", "proportional")  # types for which the converter writes nothing
TYPE, FACTOR, ORIGINAL, AMPLITUDE = (
    f"{SCALING}{name}" for name in ("type", "factor", "original_context_length", "attn_factor")
)
MULTIPLIER = f"{SCALING}yarn_log_multiplier"
KEYS_BEFORE = tuple(
    f"{name}." for name in (*FACTS["gguf_families"], *FACTS["gguf_alike"], *FACTS["gguf_other"])
)
ARCHITECTURES = {
    family: name for name, families in FACTS["gguf_families"].items() for family in families
}


def architecture(family: str) -> str:
    """llama.cpp's name for a family of transformers, such as glm4moe of glm4_moe. Raises Cannot for
    one that it does not convert.
    """
    if family in ARCHITECTURES:
        return ARCHITECTURES[family]
    if f"{family}." in KEYS_BEFORE:
        return family
    raise Cannot(f"its converter does not know {family}")


def gguf_of(setting: Setting) -> Gguf:
    """Keys and tensors with which llama.cpp runs the setting. Raises Cannot for one that it cannot
    run from a file alone.
    """
    name = architecture(setting.family)
    rope = next(
        (kind.rope for kind in setting.turning if kind.name.partition(",")[0] == FULL),
        setting.turning[0].rope,
    )
    keys = {
        "context_length": whole(setting.longest),
        "block_count": sum(len(kind.layers) for kind in setting.kinds),
    }
    keys |= {
        "attention.key_length": rope.head_dim,
        "rope.dimension_count": rope.turned,
        "rope.freq_base": float(rope.base),
    }
    if rope.beside and name in FACTS["gguf_latent"]:
        keys["attention.key_length_mla"] = rope.head_dim + rope.beside
    keys |= _window_keys(setting, name, keys["block_count"])
    if rope.kind in DROPPED:
        raise Cannot(f"it has no {rope.kind} scaling")
    divisors = rope.divisors
    if rope.kind == "llama3":
        divisors = tuple((plain(rope) / frequencies(rope)).tolist())
    if rope.kind == "longrope":
        return Gguf(
            name,
            {**keys, **_amplitude(rope, name), TYPE: "longrope", ORIGINAL: whole(rope.original)},
            (),
            rope.long,
            rope.short,
        )
    if rope.kind == "linear":
        keys |= {TYPE: "linear", FACTOR: float(rope.factor)}
    if rope.kind == "yarn":
        if not np.allclose(
            frequencies(rope), frequencies(replace(rope, truncate=True)), rtol=1e-9, atol=0
        ):
            raise Cannot("it always rounds YaRN's bounds (truncate)")
        keys |= {TYPE: "yarn", FACTOR: float(rope.factor), ORIGINAL: whole(rope.original)}
        if name in FACTS["gguf_read_by"][f"{SCALING}yarn_beta_fast"]:
            keys |= {
                f"{SCALING}yarn_beta_fast": float(rope.beta_fast),
                f"{SCALING}yarn_beta_slow": float(rope.beta_slow),
            }
    return Gguf(name, {**keys, **_amplitude(rope, name)}, divisors)


def _window_keys(setting: Setting, name: str, layers: int) -> dict:
    """Keys of sliding layers. Raises Cannot where they turn otherwise than full ones, and
    llama.cpp's way with them is not known.
    """
    keys = {}
    for kind in setting.kinds:
        if kind.window:
            keys["attention.sliding_window"] = whole(kind.window)
            if name in FACTS["gguf_sliding_every"]:
                keys["attention.sliding_window_pattern"] = [
                    layer in kind.layers for layer in range(layers)
                ]
                keys |= {"rope.freq_base_swa": float(kind.rope.base)} if kind.rope else {}
    ropes = {kind.name.startswith(SLIDING): kind.rope for kind in setting.turning}
    if (
        len({replace(kind.rope, longest=0) for kind in setting.turning}) > 1
        and name not in FACTS["gguf_sliding_every"]
    ):
        raise Cannot("explain does not know how it turns the sliding layers of this family")
    if len(ropes) > 1 and name in FACTS["gguf_apart"] and ropes[True].kind != "default":
        raise Cannot("its sliding layers have no scaling in this family")
    if (
        len(ropes) > 1
        and name not in FACTS["gguf_apart"]
        and ropes[True] != replace(ropes[False], base=ropes[True].base)
    ):
        raise Cannot("its sliding layers have the scaling of the others in this family")
    return keys


def _amplitude(rope: Rope, name: str) -> dict:
    """Keys for the factors on cos, sin and logits. Raises Cannot for factors that the architecture
    does not have.
    """
    scaled, latent = rope.kind == "yarn", rope.beside and name in FACTS["gguf_latent"]
    reads_multiplier = name in FACTS["gguf_read_by"][MULTIPLIER]
    if scaled and latent:
        return _latent_keys(rope, reads_multiplier, name)
    if rope.sharper != 1:
        raise Cannot("it has no factor on all logits in this family")
    own = rope.amplitude / usual_amplitude(rope) if scaled else rope.amplitude
    keys = (
        {MULTIPLIER: 0.0} if scaled and reads_multiplier else {}
    )  # which leaves YaRN's own amplitude
    return keys if math.isclose(own, 1, rel_tol=1e-9) else {**keys, AMPLITUDE: own}


def _latent_keys(rope: Rope, reads_multiplier: bool, name: str) -> dict:
    """Keys that give latent attention both factors: mscale_all_dim, a tenth of which is stored, and
    rope.scaling.attn_factor.
    """
    slope, root = 0.1 * math.log(rope.factor), math.sqrt(rope.sharper)
    if slope <= 0:
        raise Cannot("YaRN with factor 1 has no factor on logits")
    on_all = (root / rope.amplitude - 1) / slope
    if abs(on_all) < 1e-9:
        keys, own = (
            ({MULTIPLIER: 0.0} if reads_multiplier else {}),
            rope.amplitude / usual_amplitude(rope),
        )
    elif not reads_multiplier:
        raise Cannot("it multiplies all logits by the factor on cos and sin, and has no other")
    else:
        keys = {MULTIPLIER: float(f"{on_all / 10:.12g}")}
        own = (
            rope.amplitude
            if name == "deepseek2"
            else rope.amplitude * (1 + slope * on_all) / (1 + slope)
        )
    return keys if math.isclose(own, 1, rel_tol=1e-9) else {**keys, AMPLITUDE: own}


def converted(setting: Setting) -> Gguf:
    """The file that llama.cpp's converter makes of a checkpoint: types that it does not know are
    dropped, and keys that nobody reads.
    """
    kinds, name = [], architecture(setting.family)
    for kind in setting.kinds:
        changed = {}
        if kind.rope and kind.rope.kind in DROPPED:
            changed = {"kind": "default", "factor": 1.0}
        elif kind.rope and kind.rope.kind == "yarn":
            changed = {"truncate": True, "mix": 1.0} | _converted_factors(kind.rope, name)
            if name not in FACTS["gguf_read_by"][f"{SCALING}yarn_beta_fast"]:
                changed |= {"beta_fast": 32.0, "beta_slow": 1.0}
        kinds.append(replace(kind, rope=replace(kind.rope, **changed)) if changed else kind)
    return gguf_of(replace(setting, kinds=tuple(kinds)))


def _converted_factors(rope: Rope, name: str) -> dict:
    """Factors of YaRN that remain of a checkpoint's: those of mscale_all_dim, in families for which
    the converter writes it.
    """
    usual, latent = usual_amplitude(rope), rope.beside and name in FACTS["gguf_latent"]
    reads_multiplier = name in FACTS["gguf_read_by"][MULTIPLIER]
    if not latent:
        return {} if reads_multiplier else {"amplitude": usual}
    root = math.sqrt(rope.sharper)
    if root == 1 or not reads_multiplier:
        return {"amplitude": usual, "sharper": usual**2}
    if name == "deepseek2":
        return {"amplitude": 1.0}
    return {"amplitude": usual / root, "sharper": usual**2}


def over_file(setting: Setting, before: Setting) -> dict:
    """Keys of RoPE that give the setting when they are laid over the file of the checkpoint. Raises
    Cannot where none do.
    """
    model, checkpoint = gguf_of(setting), converted(before)
    keys, file = model.keys, checkpoint.keys
    for ours, theirs in (
        (model.divisors, checkpoint.divisors),
        (model.long, checkpoint.long),
        (model.short, checkpoint.short),
    ):
        if theirs and not (len(ours) == len(theirs) and np.allclose(ours, theirs, rtol=1e-9)):
            raise Cannot("the file's own divisors stay")
    if keys["rope.dimension_count"] != file.get(
        "rope.dimension_count", keys["rope.dimension_count"]
    ):
        raise Cannot("the file fixes which channels turn")
    full = setting.turning[0]
    others = [
        kind.rope
        for kind in setting.turning
        if kind.name.startswith(SLIDING) != full.name.startswith(SLIDING)
    ]
    own = keys.get(AMPLITUDE, 1.0)
    if not all(
        math.isclose(rope.amplitude, own * usual_amplitude(rope), rel_tol=1e-6) for rope in others
    ):
        raise Cannot("its attn_factor reaches sliding layers too")
    for key, neutral in ((FACTOR, 1.0), (AMPLITUDE, 1.0)):
        if key in file and key not in keys:
            keys[key] = neutral
    return {
        key: value
        for key, value in keys.items()
        if key.startswith("rope.") and key != "rope.dimension_count"
    }


def flag_words(setting: Setting, before: Setting, reach: float | None) -> str:
    """Flags over the file that llama.cpp's converter makes of the checkpoint as it is."""
    rope, own = setting.turning[0].rope, before.turning[0].rope
    sliding = [
        [replace(kind, said={}) for kind in each.kinds if kind.name.startswith(SLIDING)]
        for each in (setting, before)
    ]
    if setting.kinds[1:] and sliding[0] != sliding[1]:
        raise Cannot("its flags do not reach sliding layers")
    length = f" -c {whole(reach)}" if reach else ""
    if rope.kind not in STATIC or rope.divisors:
        if rope != own or rope.kind in DROPPED:
            raise Cannot(f"its flags have no {'list of divisors' if rope.divisors else rope.kind}")
        architecture(setting.family)
        return f"none: the file holds its divisors{length and ', only'}{length}"
    if own.divisors or own.kind in ("llama3", "longrope"):
        raise Cannot("the file's own divisors stay, whatever the flags say")
    keys, name = over_file(setting, before), architecture(setting.family)
    values = {"--rope-scaling": keys.get(TYPE, "none")}
    if TYPE in keys:
        values |= {"--rope-scale": keys.get(FACTOR), "--yarn-orig-ctx": keys.get(ORIGINAL)}
    if rope.kind == "yarn":
        values |= {"--yarn-beta-slow": rope.beta_slow, "--yarn-beta-fast": rope.beta_fast}
        if rope.mix != 1:
            values["--yarn-ext-factor"] = rope.mix
    factors = {key: keys[key] for key in (MULTIPLIER, AMPLITUDE) if key in keys}
    if factors:
        values["--override-kv"] = ",".join(
            f"{name}.{key}=float:{value:.10g}" for key, value in factors.items()
        )
    values["--rope-freq-base"] = rope.base
    typed = (
        f"{flag} {value if isinstance(value, str) else f'{value:.10g}'}"
        for flag, value in values.items()
        if value is not None
    )
    return " ".join(typed) + length


def key_words(setting: Setting, before: Setting) -> str:
    """Keys of a GGUF file; divisors are tensors, which only the converter writes."""
    model, rope = gguf_of(setting), setting.turning[0].rope
    reads_bounds = model.architecture in FACTS["gguf_read_by"][f"{SCALING}yarn_beta_fast"]
    if rope.kind == "yarn" and (
        rope.mix != 1 or ((rope.beta_fast, rope.beta_slow) != (32, 1) and not reads_bounds)
    ):
        raise Cannot(
            "it reads yarn_beta_fast, yarn_beta_slow and yarn_ext_factor in files of grok (betas:"
            " mistral3 too); use flags"
        )
    rope_keys = over_file(setting, before)
    text = " ".join(
        f"{model.architecture}.{key}={value}" for key, value in ({TYPE: "none"} | rope_keys).items()
    )
    tensors = ""
    if model.divisors:
        tensors = " and the tensor rope_freqs.weight, which the converter writes"
    elif model.long:
        tensors = (
            " and the tensors rope_factors_long.weight and rope_factors_short.weight, which the"
            " converter writes"
        )
    return text + tensors
