"""One setting as rope_parameters of transformers, vLLM or SGLang, laid over a checkpoint's own
config.json.

What is written for an engine is what gives the same frequencies and factors there: SGLang reads
attn_factor, a multiple of YaRN's own amplitude, where transformers and vLLM read attention_factor,
and both engines read only mscale and mscale_all_dim in DeepSeek's attention. A tool that merges a
mapping into the checkpoint's keeps old keys, so those that would act are set to what changes
nothing."""

import math
from dataclasses import replace

from posbench.pretrained.outline import NAMES
from posbench.tools.explanation.config_json import flat, nested, number, rope_words, text_path
from posbench.tools.explanation.facts import FACTS, HF, SGLANG, TYPES, VLLM, of_family
from posbench.tools.explanation.frequencies import Rope, frequencies, plain, usual_amplitude
from posbench.tools.explanation.read_rope import LONG
from posbench.tools.explanation.settings import LayerKind, Setting

USUAL = {
    "partial_rotary_factor": 1,
    "beta_fast": 32,
    "beta_slow": 1,
    "truncate": True,
    "extrapolation_factor": 1,
}
NEUTRAL = {
    **{
        key: float(value) if key == "partial_rotary_factor" else value
        for key, value in USUAL.items()
    },
    **dict.fromkeys(("attention_factor", "mscale", "mscale_all_dim")),
    "attn_factor": 1.0,
}


class Cannot(Exception):
    """Reason why a tool cannot express a setting."""


def whole(value: float) -> float | int:
    """A number as people type it: 4096 for 4096.0."""
    return int(value) if float(value).is_integer() and abs(value) < 2**53 else value


def overlay(
    setting: Setting, before: Setting, config: dict, tool: str, reach: float | None
) -> dict:
    """Keys of the description of text that give a tool the setting, with a length where it must
    grow. Raises Cannot where none do.
    """
    text = flat(config)
    if setting.family in FACTS["by_ratio"]:
        return _ratio(setting)
    if tool == VLLM and of_family(setting.family, "apart_in_vllm"):
        raise Cannot(f"its model file of {setting.family} reads attn_config alone")
    if (
        tool == SGLANG
        and of_family(setting.family, "unscaled")
        and any(kind.rope.kind != "default" for kind in setting.turning)
    ):
        raise Cannot(f"its model file of {setting.family} never passes a scaling on")
    keys = {"rope_parameters": _mapping(setting, before, text, tool, _merges(config, tool))}
    if tool == HF and text.get("rope_scaling") is not None:
        keys["rope_scaling"] = None  # which transformers would read instead
    original, rope = "original_max_position_embeddings", setting.turning[0].rope
    if (
        tool == HF
        and number(text.get(original), rope.original) != rope.original
        and rope.kind in LONG
    ):
        keys[original] = whole(
            rope.original
        )  # which transformers takes before the one in the mapping
    return keys | _longer(setting, before, text, tool, reach)


def _ratio(setting: Setting) -> dict:
    """rope_ratio, the one key by which the code of a family sets positions. Raises Cannot for what
    it cannot say.
    """
    rope = setting.turning[0].rope
    if (
        rope.kind != "default"
        or rope.amplitude != 1
        or rope.share != of_family(setting.family, "share")
    ):
        raise Cannot(f"{setting.family} reads rope_ratio alone")
    return {"rope_ratio": whole(_tidy(rope.base / 1e4))}


def _merges(config: dict, tool: str) -> bool:
    """True if the tool lays a given mapping over the checkpoint's, and does not replace that."""
    return tool == (VLLM if text_path(config) else SGLANG)


def _longer(setting: Setting, before: Setting, text: dict, tool: str, reach: float | None) -> dict:
    """The length, where it must grow: engines multiply what is stated by the factor of linear, but
    not of YaRN and Llama 3.
    """
    rope = setting.turning[0].rope
    if reach is None or rope.kind == "dynamic":
        return {}
    multiplied = tool == SGLANG or (tool == VLLM and not setting.family.startswith("gemma3"))
    wanted = math.ceil(reach / rope.factor) if multiplied and rope.kind == "linear" else reach
    if wanted <= before.longest:
        return {}
    stated = [name for name in ("model_max_length", *NAMES["length"]) if number(text.get(name))]
    return {stated[0] if stated else NAMES["length"][0]: whole(wanted)}


def _mapping(setting: Setting, before: Setting, text: dict, tool: str, merges: bool) -> dict:
    """rope_parameters, by kind of layer where kinds differ or the family keeps them apart."""
    owns = {kind.name: kind for kind in before.kinds}
    each = {
        kind.name: _of_kind(kind, owns.get(kind.name), setting.family, tool, merges)
        for kind in setting.turning
    }
    first = next(iter(each.values()))
    apart = (
        bool(of_family(setting.family, "bases"))
        or "rope_local_base_freq" in text
        or bool(nested(rope_words(text)))
    )
    if not apart and all(words == first for words in each.values()):
        return first
    unturned = {
        name: None
        for name, words in rope_words(text).items()
        if words is None and name.endswith("_attention")
    }
    return {**unturned, **each}


def _of_kind(kind: LayerKind, own: LayerKind | None, family: str, tool: str, merges: bool) -> dict:
    deepseek = bool(kind.rope.beside) and not of_family(family, "own_latent")
    rope, types = kind.rope, of_family(family, "types")
    if tool == HF and types and rope.kind not in types:
        if rope.kind in ("dynamic", "proportional"):
            raise Cannot(f"{family} takes no {rope.kind} there")
        rope = _as_longrope(rope)
    words = parameters(rope, tool, deepseek)
    said = own.said if own else {}
    if (
        of_family(family, "share")
        or number(said.get("partial_rotary_factor"), 1) != kind.rope.share
    ):
        words.setdefault("partial_rotary_factor", kind.rope.share)
    words |= {key: value for key, value in {**said, **kind.said}.items() if key in FACTS["kept"]}
    if merges:
        words |= {key: value for key, value in NEUTRAL.items() if key in said and key not in words}
        words |= {"type": words["rope_type"]} if "type" in said else {}
    return words


def parameters(rope: Rope, tool: str = HF, deepseek: bool = False) -> dict:
    """rope_parameters of one kind of layer. Raises Cannot where the tool has no words for it."""
    mixed = rope.kind == "yarn" and rope.mix != 1 and tool != SGLANG
    if rope.divisors or mixed or (rope.amplitude != 1 and rope.kind not in ("yarn", "longrope")):
        rope = _as_longrope(rope)
    if rope.kind == "dynamic" and tool != HF:
        raise Cannot(
            f"it computes one base for all lengths{', with max_trained_positions' * (tool == VLLM)}"
        )
    if rope.kind == "proportional" and rope.factor != 1 and tool != HF:
        raise Cannot("it reads no factor of this type")
    if rope.kind == "longrope" and tool == VLLM and rope.short != rope.long:
        raise Cannot(
            "it takes the long divisors for every text once it serves more than the training length"
        )
    if rope.sharper != 1 and rope.kind != "yarn":
        raise Cannot("it has no factor on all logits without YaRN")
    if deepseek and rope.kind == "yarn" and not rope.truncate and tool != HF:
        raise Cannot("it rounds YaRN's bounds in latent attention (truncate)")
    words = {
        "rope_type": rope.kind,
        "rope_theta": whole(rope.base),
        "partial_rotary_factor": rope.share,
    }
    words |= {
        "factor": float(rope.factor),
        "original_max_position_embeddings": whole(rope.original),
    }
    words |= {
        "low_freq_factor": rope.low,
        "high_freq_factor": rope.high,
        "beta_fast": rope.beta_fast,
        "beta_slow": rope.beta_slow,
    }
    words |= {
        "truncate": rope.truncate,
        "extrapolation_factor": rope.mix,
        "short_factor": list(rope.short),
        "long_factor": list(rope.long),
    }
    usual = USUAL | ({"factor": 1} if rope.kind in ("proportional", "longrope") else {})
    used = ["rope_type", "rope_theta", "partial_rotary_factor", *TYPES[rope.kind]]
    if rope.kind == "yarn":
        used.append("extrapolation_factor")
    words = {key: value for key, value in words.items() if key in used and value != usual.get(key)}
    return words | _factors(rope, tool, deepseek)


def _as_longrope(rope: Rope) -> Rope:
    """The same frequencies as divisors of LongRoPE, pair by pair. Raises Cannot for pairs that no
    divisor gives.
    """
    if (frequencies(rope) <= 0).any():
        raise Cannot("pairs stand still or turn backwards")
    bare = replace(rope, divisors=(), kind="default", factor=1.0)
    divisors = tuple((plain(bare) / frequencies(rope)).tolist())
    return replace(
        bare, kind="longrope", long=divisors, short=divisors, factor=max(1.0, max(divisors))
    )


def _factors(rope: Rope, tool: str, deepseek: bool) -> dict:
    """Keys for the factors on cos, sin and logits, where they are not those of the type."""
    if (
        rope.kind == "longrope" and tool != HF
    ):  # otherwise its amplitude follows from max_position_embeddings alone
        return {"short_mscale": rope.amplitude, "long_mscale": rope.amplitude}
    if rope.kind == "yarn" and (rope.sharper != 1 or (deepseek and tool != HF)):
        return _mscales(rope, tool)
    more = rope.amplitude / usual_amplitude(rope)
    if math.isclose(more, 1, rel_tol=1e-9):
        return {}
    return {"attn_factor": more} if tool == SGLANG else {"attention_factor": rope.amplitude}


def _mscales(rope: Rope, tool: str) -> dict:
    """mscale and mscale_all_dim of YaRN in latent attention, from the two factors that they
    give.
    """
    slope, root = 0.1 * math.log(rope.factor), math.sqrt(rope.sharper)
    if slope <= 0:
        if rope.amplitude == rope.sharper == 1:
            return {}
        raise Cannot("YaRN with factor 1 has no factor on logits")
    on_turning, on_all = (
        _tidy(value) for value in ((rope.amplitude * root - 1) / slope, (root - 1) / slope)
    )
    if on_all < 0 or on_turning < 0:
        raise Cannot("mscale and mscale_all_dim give no factor below 1")
    if tool == HF and not on_turning:
        return {"attention_factor": rope.amplitude, "mscale_all_dim": on_all}
    if tool != HF and (on_turning, on_all) == (1, 0):
        return {}
    return {"mscale": on_turning, "mscale_all_dim": on_all}


def _tidy(value: float) -> float:
    """A number without its rounding error: 0.707 of 0.7070000000000001."""
    return float(f"{value:.12g}") + 0.0 if abs(value) > 1e-12 else 0.0
