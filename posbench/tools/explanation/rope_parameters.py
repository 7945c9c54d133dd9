"""One setting as rope_parameters of transformers, vLLM or SGLang, laid over a checkpoint's own
config.json.

What is written for an engine is what gives the same frequencies and factors there: SGLang reads
attn_factor, a multiple of YaRN's own amplitude, where transformers and vLLM read attention_factor,
and both engines read only mscale and mscale_all_dim in DeepSeek's attention. A tool that merges a
mapping into the checkpoint's keeps old keys, so those that would act are set to what changes
nothing."""

import math
from dataclasses import replace

from posbench.pretrained.outline import NAMES_IN_CONFIG
from posbench.tools.explanation.config_json import (
    kinds_with_own_mapping,
    positive_number,
    rope_mapping,
    text_description,
    text_path,
)
from posbench.tools.explanation.facts import FACTS, HF, SGLANG, TYPES, VLLM, fact_of_family
from posbench.tools.explanation.frequencies import (
    Rope,
    frequencies,
    unscaled_frequencies,
    usual_amplitude,
)
from posbench.tools.explanation.read_rope import TYPES_WITH_ORIGINAL
from posbench.tools.explanation.settings import LayerKind, Setting

DEFAULT_VALUES = {  # values that a mapping need not say
    "partial_rotary_factor": 1,
    "beta_fast": 32,
    "beta_slow": 1,
    "truncate": True,
    "extrapolation_factor": 1,
}
NEUTRAL_VALUES = {  # values that undo a key of the checkpoint's mapping, where a tool merges both
    **DEFAULT_VALUES,
    "partial_rotary_factor": 1.0,
    "attention_factor": None,
    "mscale": None,
    "mscale_all_dim": None,
    "attn_factor": 1.0,
}
ORIGINAL_LENGTH = "original_max_position_embeddings"


class CannotExpress(Exception):
    """Reason why a tool cannot express a setting."""


def int_if_whole(value: float) -> float | int:
    """A number as people type it: a whole one without ".0", if a float holds it exactly.

    >>> int_if_whole(4096.0)
    4096
    """
    return int(value) if float(value).is_integer() and abs(value) < 2**53 else value


def overlay(
    setting: Setting, before: Setting, config: dict, tool: str, reach: float | None
) -> dict:
    """Keys of the description of text that give a tool the setting, with a length where it must
    grow. Raises CannotExpress where none do.
    """
    family = setting.family
    text = text_description(config)
    if family in FACTS["by_ratio"]:
        return _rope_ratio(setting)
    if tool == VLLM and fact_of_family(family, "apart_in_vllm"):
        raise CannotExpress(f"its model file of {family} reads attn_config alone")
    scaled = any(kind.rope.kind != "default" for kind in setting.turning)
    if tool == SGLANG and scaled and fact_of_family(family, "unscaled"):
        raise CannotExpress(f"its model file of {family} never passes a scaling on")
    keys = {
        "rope_parameters": _rope_parameters(setting, before, text, tool, _tool_merges(config, tool))
    }
    if tool == HF:
        # transformers reads these before rope_parameters and what stands in it.
        if text.get("rope_scaling") is not None:
            keys["rope_scaling"] = None
        rope = setting.turning[0].rope
        if (
            rope.kind in TYPES_WITH_ORIGINAL
            and positive_number(text.get(ORIGINAL_LENGTH), rope.original) != rope.original
        ):
            keys[ORIGINAL_LENGTH] = int_if_whole(rope.original)
    return keys | _length_key(setting, before, text, tool, reach)


def _rope_ratio(setting: Setting) -> dict:
    """rope_ratio, the one key by which the code of a family sets positions. Raises CannotExpress
    for what it cannot say.
    """
    rope = setting.turning[0].rope  # these families have one kind of layers
    if (
        rope.kind != "default"
        or rope.amplitude != 1
        or rope.share != fact_of_family(setting.family, "share")
    ):
        raise CannotExpress(f"{setting.family} reads rope_ratio alone")
    # the base is 10000 times it
    return {"rope_ratio": int_if_whole(_without_rounding_error(rope.base / 1e4))}


def _tool_merges(config: dict, tool: str) -> bool:
    """True if the tool lays a given mapping over the checkpoint's, and does not replace that."""
    return tool == (VLLM if text_path(config) else SGLANG)


def _length_key(
    setting: Setting, before: Setting, text: dict, tool: str, reach: float | None
) -> dict:
    """{key: length to state}, where the length stated before is too short for `reach`; else {}.

    Engines multiply the stated length by the factor of linear, but not of YaRN and Llama 3.
    `reach` is None where it is unknown. `text` is the config of the text model.
    """
    rope = setting.turning[0].rope
    # dynamic takes its frequencies from the stated length, which therefore stays.
    if reach is None or rope.kind == "dynamic":
        return {}
    length_to_state = reach
    if rope.kind == "linear" and tool != HF:
        # vLLM takes the length of Gemma 3 as multiplied already.
        if tool == SGLANG or not setting.family.startswith("gemma3"):
            length_to_state = math.ceil(reach / rope.factor)
    if length_to_state <= before.longest:  # which is the stated length
        return {}
    stated_names = [
        name
        for name in ("model_max_length", *NAMES_IN_CONFIG["length"])
        if positive_number(text.get(name))
    ]
    name = stated_names[0] if stated_names else NAMES_IN_CONFIG["length"][0]
    return {name: int_if_whole(length_to_state)}


def _rope_parameters(
    setting: Setting, before: Setting, text: dict, tool: str, merges: bool
) -> dict:
    """rope_parameters, by kind of layer where kinds differ or the family keeps them apart.

    `merges`: the tool lays them over the checkpoint's mapping, whose other keys stay."""
    old_mapping = rope_mapping(text)
    kinds_before = {kind.name: kind for kind in before.kinds}
    mappings = {}
    for kind in setting.turning:
        kind_before = kinds_before.get(kind.name)
        mappings[kind.name] = _parameters_of_kind(kind, kind_before, setting.family, tool, merges)
    has_bases = fact_of_family(setting.family, "bases") or "rope_local_base_freq" in text
    first, *others = mappings.values()
    if (
        not has_bases
        and not kinds_with_own_mapping(old_mapping)
        and all(other == first for other in others)
    ):
        return first
    unturned = [  # kinds that the checkpoint has without RoPE
        name for name, value in old_mapping.items() if value is None and name.endswith("_attention")
    ]
    return {**dict.fromkeys(unturned), **mappings}


def _parameters_of_kind(
    kind: LayerKind, kind_before: LayerKind | None, family: str, tool: str, merges: bool
) -> dict:
    """rope_parameters of one kind of layer; `kind_before` is that kind in the checkpoint's
    setting.
    """
    rope = kind.rope
    types = fact_of_family(family, "types")
    if tool == HF and types and rope.kind not in types:
        if rope.kind in ("dynamic", "proportional"):
            raise CannotExpress(f"{family} takes no {rope.kind} there")
        rope = _as_longrope(rope)  # whose divisors say any frequencies that stay the same
    # Engines compute latent attention by their classes for DeepSeek, but for these families.
    deepseek = bool(rope.unturned_beside) and not fact_of_family(family, "own_latent")
    mapping = parameters(rope, tool, deepseek)
    old_mapping = kind_before.mapping if kind_before else {}
    share = kind.rope.share
    # `parameters` leaves out a share of 1, which would here be read as that of the family or the
    # old mapping.
    if (
        fact_of_family(family, "share")
        or positive_number(old_mapping.get("partial_rotary_factor"), 1) != share
    ):
        mapping.setdefault("partial_rotary_factor", share)
    # Keys that change no frequency stay, as the setting states them or else as the checkpoint does.
    for key, value in {**old_mapping, **kind.mapping}.items():
        if key in FACTS["kept"]:
            mapping[key] = value
    if merges:  # old values stay where the new mapping says nothing
        for key, value in NEUTRAL_VALUES.items():
            if key in old_mapping:
                mapping.setdefault(key, value)
        if "type" in old_mapping:
            mapping["type"] = mapping["rope_type"]
    return mapping


def parameters(rope: Rope, tool: str = HF, deepseek: bool = False) -> dict:
    """rope_parameters of one kind of layer. Raises CannotExpress where the tool has no words for
    it.
    """
    # What a tool has no key for is said by the divisors and the amplitude of LongRoPE: the mix of
    # YaRN, which SGLang alone reads, and amplitudes of other types.
    mixed = rope.kind == "yarn" and rope.mix != 1 and tool != SGLANG
    has_amplitude = rope.amplitude != 1 and rope.kind not in ("yarn", "longrope")
    if rope.divisors or mixed or has_amplitude:
        rope = _as_longrope(rope)
    _check_tool(rope, tool, deepseek)
    values = {
        "rope_type": rope.kind,
        "rope_theta": int_if_whole(rope.base),
        "partial_rotary_factor": rope.share,
        "factor": float(rope.factor),
        ORIGINAL_LENGTH: int_if_whole(rope.original),
        "low_freq_factor": rope.low,
        "high_freq_factor": rope.high,
        "beta_fast": rope.beta_fast,
        "beta_slow": rope.beta_slow,
        "truncate": rope.truncate,
        "extrapolation_factor": rope.mix,
        "short_factor": list(rope.short),
        "long_factor": list(rope.long),
    }
    keys = {"rope_type", "rope_theta", "partial_rotary_factor", *TYPES[rope.kind]}
    if rope.kind == "yarn":
        keys.add("extrapolation_factor")
    usual = dict(DEFAULT_VALUES)  # values that need not be said
    if rope.kind in ("proportional", "longrope"):
        usual["factor"] = 1
    mapping = {
        key: value for key, value in values.items() if key in keys and value != usual.get(key)
    }
    return mapping | _factor_keys(rope, tool, deepseek)


def _check_tool(rope: Rope, tool: str, deepseek: bool) -> None:
    """Raise CannotExpress where the tool computes this type otherwise."""
    if rope.kind == "dynamic" and tool == VLLM:
        raise CannotExpress("it computes one base for all lengths, with max_trained_positions")
    if rope.kind == "dynamic" and tool == SGLANG:
        raise CannotExpress("it computes one base for all lengths")
    if rope.kind == "proportional" and rope.factor != 1 and tool != HF:
        raise CannotExpress("it reads no factor of this type")
    if rope.kind == "longrope" and tool == VLLM and rope.short != rope.long:
        raise CannotExpress(
            "it takes the long divisors for every text once it serves more than the training length"
        )
    if rope.sharper != 1 and rope.kind != "yarn":
        raise CannotExpress("it has no factor on all logits without YaRN")
    if deepseek and rope.kind == "yarn" and not rope.truncate and tool != HF:
        raise CannotExpress("it rounds YaRN's bounds in latent attention (truncate)")


def _as_longrope(rope: Rope) -> Rope:
    """The same frequencies as divisors of LongRoPE, pair by pair. Raises CannotExpress for pairs
    that no divisor gives.
    """
    if (frequencies(rope) <= 0).any():
        raise CannotExpress("pairs stand still or turn backwards")
    bare = replace(rope, divisors=(), kind="default", factor=1.0)
    divisors = tuple((unscaled_frequencies(bare) / frequencies(rope)).tolist())
    # LongRoPE turns by its divisors alone; transformers wants a factor of at least 1 beside them.
    factor = max(1.0, max(divisors))
    return replace(bare, kind="longrope", long=divisors, short=divisors, factor=factor)


def _factor_keys(rope: Rope, tool: str, deepseek: bool) -> dict:
    """Keys for the factors on cos, sin and logits, where they are not those of the type.

    `deepseek`: engines compute the family by their classes for DeepSeek, which read mscale alone.
    """
    if rope.kind == "longrope" and tool != HF:
        # Otherwise the amplitude there follows from max_position_embeddings alone.
        return {"short_mscale": rope.amplitude, "long_mscale": rope.amplitude}
    if rope.kind == "yarn" and (rope.sharper != 1 or (deepseek and tool != HF)):
        return _mscale_keys(rope, tool)
    multiple = rope.amplitude / usual_amplitude(rope)
    if math.isclose(multiple, 1, rel_tol=1e-9):
        return {}
    # SGLang's multiplies the usual amplitude, the key of the others replaces it.
    return {"attn_factor": multiple} if tool == SGLANG else {"attention_factor": rope.amplitude}


def _mscale_keys(rope: Rope, tool: str) -> dict:
    """mscale and mscale_all_dim of YaRN in latent attention, from the two factors that they give;
    {} where the tool's defaults give them.
    """
    # An mscale gives the factor 1 + slope * mscale, with YaRN's 0.1. On all logits that of
    # mscale_all_dim is squared; `amplitude` is that of mscale divided by that of mscale_all_dim.
    slope = 0.1 * math.log(rope.factor)
    root = math.sqrt(rope.sharper)  # the factor of mscale_all_dim
    if slope <= 0:
        if rope.amplitude == rope.sharper == 1:
            return {}
        raise CannotExpress("YaRN with factor 1 has no factor on logits")
    mscale = _without_rounding_error((rope.amplitude * root - 1) / slope)
    mscale_all_dim = _without_rounding_error((root - 1) / slope)
    if mscale_all_dim < 0 or mscale < 0:
        raise CannotExpress("mscale and mscale_all_dim give no factor below 1")
    if tool == HF and not mscale:  # transformers takes an mscale of 0 as none
        return {"attention_factor": rope.amplitude, "mscale_all_dim": mscale_all_dim}
    if tool != HF and (mscale, mscale_all_dim) == (1, 0):  # the defaults
        return {}
    return {"mscale": mscale, "mscale_all_dim": mscale_all_dim}


def _without_rounding_error(value: float) -> float:
    """A number without its rounding error.

    >>> _without_rounding_error(0.7070000000000001)
    0.707
    """
    return float(f"{value:.12g}") + 0.0 if abs(value) > 1e-12 else 0.0
