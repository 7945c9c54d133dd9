"""One setting in the words of every tool, to copy, or the reason why a tool cannot express it."""

import json
import math
import shlex
from dataclasses import dataclass
from pathlib import Path

from posbench.tools.explanation.config_json import nest, text_path
from posbench.tools.explanation.facts import FACTS, HF, SGLANG, VLLM
from posbench.tools.explanation.frequencies import Rope, usual_amplitude
from posbench.tools.explanation.gguf_words import flag_words, key_words
from posbench.tools.explanation.reach import reach_of, same_setting
from posbench.tools.explanation.rope_parameters import CannotExpress, int_if_whole, overlay
from posbench.tools.explanation.settings import Setting

TOOL_FLAGS, TOOL_KEYS, TOOL_POSBENCH = "llama.cpp flags", "GGUF keys", "posbench"
CONFIG_PREFIX = "config.json: "  # before the words for transformers
# Extensions of posbench that are not called like the type.
EXTENSION_NAMES = {"linear": "pi", "dynamic": "dynamic_ntk"}
ENGINE_FLAGS = {
    VLLM: ("--hf-overrides", "--max-model-len"),
    SGLANG: ("--json-model-override-args", "--context-length"),
}


@dataclass(frozen=True)
class ToolWords:
    """Words of one tool, or with `serves` False the reason why it has none."""

    tool: str
    serves: bool
    text: str
    source: str


def setting_in_words(
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
    # Dynamic NTK acts at any length, so none is named.
    names_length = setting.turning[0].rope.kind != "dynamic" and tokens is not None
    reach = tokens if names_length and math.isfinite(tokens) else None
    makers = {
        TOOL_POSBENCH: lambda: _posbench_arguments(setting, before, what),
        HF: lambda: CONFIG_PREFIX + json.dumps(_config_keys(setting, before, config, HF, reach)),
        VLLM: lambda: _engine_flags(setting, before, config, VLLM, reach),
        SGLANG: lambda: _engine_flags(setting, before, config, SGLANG, reach),
        TOOL_FLAGS: lambda: flag_words(setting, before, reach),
        TOOL_KEYS: lambda: key_words(setting, before),
    }
    result = []
    for tool, make_words in makers.items():
        source = FACTS["writers"][tool]
        try:
            words = ToolWords(tool, serves=True, text=make_words(), source=source)
        except CannotExpress as reason:
            words = ToolWords(tool, serves=False, text=str(reason), source=source)
        result.append(words)
    return result


def _config_keys(
    setting: Setting, before: Setting, config: dict, tool: str, reach: float | None
) -> dict:
    """Keys of config.json that give a tool the setting, where its description of text stands."""
    return nest(overlay(setting, before, config, tool, reach), text_path(config))


def _engine_flags(
    setting: Setting, before: Setting, config: dict, tool: str, reach: float | None
) -> str:
    """Flags of vLLM or SGLang: the override, and the length to serve (`reach`, None: no flag)."""
    override_flag, length_flag = ENGINE_FLAGS[tool]
    keys = _config_keys(setting, before, config, tool, reach)
    words = f"{override_flag} {shlex.quote(json.dumps(keys))}"
    return f"{words} {length_flag} {int_if_whole(reach)}" if reach else words


def model_path(what: str) -> str | None:
    """Argument that names the checkpoint to posbench: the folder of a config.json; None for a
    description of another name.
    """
    file = Path(what)
    if file.suffix != ".json":
        return f"model.path={shlex.quote(what)}"
    if file.name != "config.json":
        return None
    return f"model.path={shlex.quote(str(file.parent))}"


def _posbench_arguments(setting: Setting, before: Setting, what: str) -> str:
    """Arguments of posbench on the checkpoint as it is."""
    path = model_path(what)
    if path is None:
        raise CannotExpress("it reads a checkpoint's folder, with a config.json and weights")
    model = f"model=hf {path}"
    if same_setting(setting, before):
        return model
    rope, rope_before = setting.turning[0].rope, before.turning[0].rope
    _check_extension(rope, rope_before, len(setting.turning))
    if rope.kind == "default":
        if rope.base == rope_before.base:
            return model
        return f"{model} extension=abf extension.base={rope.base:.10g}"
    # posbench counts the turns of a scaling in the training length.
    if rope.kind != "dynamic" and rope.original != before.longest:
        model += f" train.length={int_if_whole(rope.original)}"
    name = EXTENSION_NAMES.get(rope.kind, rope.kind)
    arguments = {key: _typed_value(value) for key, value in _extension_arguments(rope).items()}
    if rope.base == rope_before.base:
        typed = [shlex.quote(f"extension.{key}={value}") for key, value in arguments.items()]
        return " ".join([f"{model} extension={name}", *typed])
    class_name = "".join(map(str.capitalize, name.split("_")))
    base = {"_target_": "posbench.extensions.abf.Abf", "base": f"{rope.base:.10g}"}
    scaling = {"_target_": f"posbench.extensions.{name}.{class_name}", **arguments}
    words = [
        # null takes out the parts that compose.yaml has as an example.
        f"{model} extension=compose extension.parts.bands=null extension.parts.frequencies=null",
        _composed_part("base", base),
        _composed_part("scaling", scaling),
    ]
    return " ".join(words)


def _check_extension(rope: Rope, before: Rope, kinds: int) -> None:
    """Raise CannotExpress where no extension of posbench turns `before` into `rope`."""
    scaled_before = before.kind != "default" or before.divisors
    # Divisors of single pairs, a blend of two scalings, another share of channels that turn
    mixes = rope.divisors or rope.mix != 1 or rope.share != before.share
    other_amplitude = rope.amplitude != 1 and not _has_usual_amplitude(rope)
    reasons = (
        (kinds > 1, "it has one extension for all kinds of layers"),
        (
            scaled_before,
            f"the checkpoint is scaled already ({before.kind}), and its extensions go on from"
            " there",
        ),
        (mixes, "it has no such mixture"),
        (
            rope.kind == "default" and rope.amplitude != 1,
            "it has no amplitude without a scaling",
        ),
        (rope.sharper != before.sharper, "it has no factor on all logits"),
        (rope.kind == "proportional", "it has no proportional"),
        (
            other_amplitude,
            f"its amplitude is {usual_amplitude(rope):.4g}, or 1 with extension.temperature=false",
        ),
    )
    for holds, reason in reasons:
        if holds:
            raise CannotExpress(reason)


def _has_usual_amplitude(rope: Rope) -> bool:
    """True for the factor on cos and sin that posbench's extension has with its temperature."""
    if rope.kind not in ("yarn", "longrope"):
        return True
    return math.isclose(rope.amplitude, usual_amplitude(rope), rel_tol=1e-6)


def _extension_arguments(rope: Rope) -> dict[str, object]:
    """Arguments of posbench's extension for a scaling."""
    # Its base follows the length of each text, and cos and sin have no factor.
    if rope.kind == "dynamic":
        return {"factor": rope.factor}
    arguments: dict[str, object] = {}
    if rope.kind == "yarn":
        arguments = {"alpha": rope.beta_slow, "beta": rope.beta_fast}
        if not rope.truncate:
            arguments["truncate"] = False
    elif rope.kind == "llama3":
        arguments = {"alpha": rope.low, "beta": rope.high}
    elif rope.kind == "longrope":
        arguments = {"factors": list(rope.long), "short_factors": list(rope.short)}
    if not _has_usual_amplitude(rope):  # then it is 1: _check_extension refused others
        arguments["temperature"] = False
    target_len = int_if_whole(rope.factor * rope.original)
    return {**arguments, "mode": "fixed", "target_len": target_len}


def _typed_value(value: object) -> str:
    """A value as it is typed on a command line."""
    if isinstance(value, str):
        return value
    return json.dumps(value) if isinstance(value, bool | list) else f"{value:.10g}"


def _composed_part(name: str, arguments: dict[str, str]) -> str:
    """A part of a composed extension, such as '+extension.parts.base={_target_: ..., base: 10}'."""
    inner = ", ".join(f"{key}: {value}" for key, value in arguments.items())
    return f"'+extension.parts.{name}={{{inner}}}'"
