"""One setting in the words of every tool, to copy, or the reason why a tool cannot express it."""

import json
import math
import shlex
from dataclasses import dataclass
from pathlib import Path

from posbench.tools.explanation.config_json import placed, text_path
from posbench.tools.explanation.facts import FACTS, HF, SGLANG, VLLM
from posbench.tools.explanation.frequencies import usual_amplitude
from posbench.tools.explanation.gguf_words import flag_words, key_words
from posbench.tools.explanation.reach import reach_of, same_setting
from posbench.tools.explanation.rope_parameters import Cannot, overlay, whole
from posbench.tools.explanation.settings import Setting

FLAGS, KEYS, POSBENCH = "llama.cpp flags", "GGUF keys", "posbench"
CONFIG = "config.json: "  # before the words for transformers
EXTENSIONS = {
    "linear": "pi",
    "dynamic": "dynamic_ntk",
}  # of posbench, where they are not called like the type
ENGINES = {
    VLLM: ("--hf-overrides", "--max-model-len"),
    SGLANG: ("--json-model-override-args", "--context-length"),
}


@dataclass(frozen=True)
class ToolWords:
    """Words of one tool, or with `serves` False why it has none."""

    tool: str
    serves: bool
    text: str
    source: str


def in_words(
    setting: Setting,
    before: Setting,
    what: str,
    config: dict | None = None,
    served: float | None = None,
) -> list[ToolWords]:
    """The setting in the words of each tool, for the checkpoint `what` that has the setting
    `before` of its own.

    `config` is its config.json, over which the words are laid; None where it has none. `served` is
    the length in tokens that the words ask for; None for the length that the setting covers."""
    config = config or {}
    tokens = reach_of(setting, before).tokens if served is None else served
    reach = (
        None
        if tokens is None or math.isinf(tokens) or setting.turning[0].rope.kind == "dynamic"
        else tokens
    )
    makers = {
        POSBENCH: lambda: _posbench(setting, before, what),
        HF: lambda: (
            CONFIG
            + json.dumps(placed(overlay(setting, before, config, HF, reach), text_path(config)))
        ),
        VLLM: lambda: _engine(setting, before, config, VLLM, reach),
        SGLANG: lambda: _engine(setting, before, config, SGLANG, reach),
        FLAGS: lambda: flag_words(setting, before, reach),
        KEYS: lambda: key_words(setting, before),
    }
    result = []
    for tool, make in makers.items():
        try:
            serves, text = True, make()
        except Cannot as why:
            serves, text = False, str(why)
        result.append(ToolWords(tool, serves, text, FACTS["writers"][tool]))
    return result


def _engine(setting: Setting, before: Setting, config: dict, tool: str, reach: float | None) -> str:
    """Flags of vLLM or SGLang: the override, and the length to serve."""
    flag, length = ENGINES[tool]
    keys = placed(overlay(setting, before, config, tool, reach), text_path(config))
    served = f" {length} {whole(reach)}" if reach else ""
    return f"{flag} {shlex.quote(json.dumps(keys))}{served}"


def model_path(what: str) -> str | None:
    """Argument that names the checkpoint to posbench: the folder of a config.json; None for a
    description of another name.
    """
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
    if same_setting(setting, before):
        return model
    usual = rope.kind not in ("yarn", "longrope") or math.isclose(
        rope.amplitude, usual_amplitude(rope), rel_tol=1e-6
    )
    why = {
        "it has one extension for all kinds of layers": len(setting.turning) > 1,
        f"the checkpoint is scaled already ({own.kind}), and its extensions go on from there": (
            own.kind != "default" or own.divisors
        ),
        "it has no such mixture": rope.divisors or rope.mix != 1 or rope.share != own.share,
        "it has no amplitude without a scaling": rope.kind == "default" and rope.amplitude != 1,
        "it has no factor on all logits": rope.sharper != own.sharper,
        "it has no proportional": rope.kind == "proportional",
        f"its amplitude is {usual_amplitude(rope):.4g}, or 1 with extension.temperature=false": (
            not usual and rope.amplitude != 1
        ),
    }
    for reason, holds in why.items():
        if holds:
            raise Cannot(reason)
    if rope.kind == "default":
        return (
            model
            if rope.base == own.base
            else f"{model} extension=abf extension.base={rope.base:.10g}"
        )
    name, given = EXTENSIONS.get(rope.kind, rope.kind), {"factor": rope.factor}
    if rope.kind != "dynamic":
        model += f" train.length={whole(rope.original)}" if rope.original != before.longest else ""
        given = {
            "yarn": {"alpha": rope.beta_slow, "beta": rope.beta_fast},
            "llama3": {"alpha": rope.low, "beta": rope.high},
        }.get(name, {})
        given |= (
            {"factors": list(rope.long), "short_factors": list(rope.short)}
            if name == "longrope"
            else {}
        )
        given |= ({"truncate": False} if name == "yarn" and not rope.truncate else {}) | (
            {} if usual else {"temperature": False}
        )
        given |= {"mode": "fixed", "target_len": whole(rope.factor * rope.original)}
    typed = {
        key: (
            value
            if isinstance(value, str)
            else json.dumps(value)
            if isinstance(value, bool | list)
            else f"{value:.10g}"
        )
        for key, value in given.items()
    }
    if rope.base == own.base:
        return " ".join(
            [
                f"{model} extension={name}",
                *(shlex.quote(f"extension.{key}={value}") for key, value in typed.items()),
            ]
        )
    of_class = f"posbench.extensions.{name}.{''.join(map(str.capitalize, name.split('_')))}"
    parts = {
        "base": {"_target_": "posbench.extensions.abf.Abf", "base": f"{rope.base:.10g}"},
        "scaling": {"_target_": of_class, **typed},
    }
    said = (
        f"'+extension.parts.{part}={{{', '.join(f'{key}: {value}' for key, value in own.items())}}}'"
        for part, own in parts.items()
    )
    return " ".join(
        [
            (
                f"{model} extension=compose extension.parts.bands=null"
                " extension.parts.frequencies=null"
            ),
            *said,
        ]
    )
