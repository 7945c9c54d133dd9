"""RoPE of one mapping with its defaults, as transformers 5.23 reads it, or vLLM 0.33.0 or SGLang
0.5.23.

The engines' readings differ where a function asks for the reader, as their layers/rotary_embedding
do. A value that cannot be read counts as missing, and checks.py says so."""

from dataclasses import replace

from posbench.common.errors import ConfigError
from posbench.pretrained.outline import stated_head_width, stated_size
from posbench.tools.explanation.config_json import (
    kinds_with_own_mapping,
    positive_number,
    rope_mapping,
)
from posbench.tools.explanation.facts import HF, SGLANG, TYPES, VLLM, fact_of_family
from posbench.tools.explanation.frequencies import Rope, longrope_amplitude, yarn_amplitude

MOST_CHANNELS = 2**16  # channels of a head
DESCRIPTION = "The description"  # what an error is about, as its first word
# types that count from original_max_position_embeddings
TYPES_WITH_ORIGINAL = (
    "yarn",
    "longrope",
    "llama3",
)


def valid_base(value: object, default: float = 1e4) -> float:
    """A base of frequencies, which is above 1, else the default."""
    return value if (positive_number(value) or 0) > 1 else default


def checked_head_width(width: float, name: str) -> int:
    """Channels of a head. Raises ConfigError for more than any model has, whose pairs would fill
    the memory.
    """
    if width > MOST_CHANNELS:
        raise ConfigError(
            f"{name} gives a head {width:,.0f} channels, and {MOST_CHANNELS:,} is the most that is"
            " explained: correct its sizes."
        )
    return int(width)


def read_rope(mapping: dict, config: dict, longest: float, reader: str = HF) -> Rope:
    """RoPE of a mapping with its defaults, in a model of `longest` tokens. Raises ConfigError for a
    model that does not say the width of a head.
    """
    family = str(config.get("model_type"))
    kind = _computed_type(mapping["rope_type"])
    if reader == SGLANG and fact_of_family(family, "unscaled"):
        kind = "default"  # its model file never passes a scaling on
    original = longest
    if kind in TYPES_WITH_ORIGINAL:
        original = positive_number(mapping.get("original_max_position_embeddings"), longest)
    implied = longest / original if kind in ("yarn", "longrope") else 1.0
    rope = Rope(
        head_dim=_turning_width(config),
        base=valid_base(mapping.get("rope_theta")),
        longest=longest,
        original=original,
        kind=kind,
        share=min(1.0, positive_number(mapping.get("partial_rotary_factor"), 1.0)),
        factor=positive_number(mapping.get("factor")) or implied,
        unturned_beside=_latent_width(config),
    )
    match kind:
        case "yarn":
            return _read_yarn(rope, mapping, config, reader)
        case "llama3":
            low = positive_number(mapping.get("low_freq_factor"), 1.0)
            high = positive_number(mapping.get("high_freq_factor"), 4.0)
            return replace(rope, low=low, high=high)
        case "longrope":
            return _read_longrope(rope, mapping, reader, family)
        case "dynamic":
            return _read_dynamic(rope, mapping, reader, family)
        case "proportional" if reader != HF:  # engines read no factor of this type
            return replace(rope, factor=1.0)
    return rope


def _turning_width(config: dict) -> int:
    """Channels of a head that may turn; those of latent attention stand apart."""
    rotary_width = positive_number(config.get("qk_rope_head_dim"))
    width = rotary_width or stated_head_width(config, DESCRIPTION)
    if width is None:
        hidden, heads = (stated_size(config, name, DESCRIPTION) for name in ("d_model", "n_head"))
        sizes = f"hidden_size={hidden} and num_attention_heads={heads} do not say it"
        raise ConfigError(
            f"{DESCRIPTION} lacks head_dim, and {sizes}: is it a checkpoint's config.json?"
        )
    return checked_head_width(width, DESCRIPTION)


def _latent_width(config: dict) -> int:
    """Channels of a head of latent attention that do not turn; 0 in other attention."""
    if not positive_number(config.get("qk_rope_head_dim")):
        return 0
    return checked_head_width(positive_number(config.get("qk_nope_head_dim"), 0), DESCRIPTION)


def _computed_type(rope_type: str) -> str:
    """Type as it is computed: that of an older name, and default for one that nobody knows."""
    if rope_type in TYPES:
        return rope_type
    return "longrope" if rope_type == "su" else "default"


def _read_yarn(rope: Rope, mapping: dict, config: dict, reader: str) -> Rope:
    """YaRN of a mapping."""
    # transformers looks for truncate beside the kinds of layers, where it is never written.
    by_kind = reader == HF and bool(kinds_with_own_mapping(rope_mapping(config)))
    rope = replace(
        rope,
        beta_fast=positive_number(mapping.get("beta_fast"), 32.0),
        beta_slow=positive_number(mapping.get("beta_slow"), 1.0),
        truncate=by_kind or mapping.get("truncate", True) is not False,
    )
    # Latent attention: vLLM and SGLang run it by DeepSeek's classes, unless it has one of its own.
    if (
        rope.unturned_beside
        and reader != HF
        and not fact_of_family(str(config.get("model_type")), "own_latent")
    ):
        rope = _deepseek_factors(rope, mapping, reader)
    else:
        rope = _yarn_factors(rope, mapping, reader)
    if reader == SGLANG:
        mix = mapping.get("extrapolation_factor")
        amplitude = rope.amplitude * positive_number(mapping.get("attn_factor"), 1.0)
        return replace(rope, mix=mix if isinstance(mix, int | float) else 1.0, amplitude=amplitude)
    return rope


def _yarn_factors(rope: Rope, mapping: dict, reader: str) -> Rope:
    """YaRN with the factors on cos, sin and logits of a mapping."""
    mscale, mscale_all_dim = (
        positive_number(mapping.get("mscale")),
        positive_number(mapping.get("mscale_all_dim")),
    )
    attention_factor = positive_number(mapping.get("attention_factor"))
    amplitude = yarn_amplitude(rope.factor)
    sharper = 1.0
    if reader != SGLANG and attention_factor:  # which SGLang does not read
        amplitude = attention_factor
    elif mscale and mscale_all_dim:
        on_all = yarn_amplitude(rope.factor, mscale_all_dim)
        amplitude = yarn_amplitude(rope.factor, mscale) / on_all
    # Latent attention alone multiplies its logits too.
    if rope.unturned_beside and mscale_all_dim:
        sharper = yarn_amplitude(rope.factor, mscale_all_dim) ** 2
    return replace(rope, amplitude=amplitude, sharper=sharper)


def _deepseek_factors(rope: Rope, mapping: dict, reader: str) -> Rope:
    """YaRN by the classes that vLLM and SGLang have for latent attention, which read other keys."""
    mscale = 1.0  # their default; 0 or less gives no amplitude
    if mapping.get("mscale") is not None:
        mscale = positive_number(mapping["mscale"], 0.0)
    # Without mscale_all_dim this is 1.
    on_all = yarn_amplitude(rope.factor, positive_number(mapping.get("mscale_all_dim"), 0.0))
    sharper = on_all**2
    if reader == VLLM and positive_number(mapping.get("attention_factor")) == 1:
        sharper = 1.0  # vLLM then takes its class deepseek_llama_scaling, without that factor
    amplitude = yarn_amplitude(rope.factor, mscale) / on_all
    # These classes always round the bounds of YaRN's ramp: they read no `truncate`.
    return replace(rope, truncate=True, amplitude=amplitude, sharper=sharper)


def _read_longrope(rope: Rope, mapping: dict, reader: str, family: str) -> Rope:
    """LongRoPE of a mapping. vLLM takes the long divisors for every text once it serves more than
    the training length; engines, and transformers for PhiMoE, have another key for the amplitude.
    """
    pairs = -(-rope.turned // 2)
    long = _valid_divisors(mapping.get("long_factor"), pairs)
    short = _valid_divisors(mapping.get("short_factor"), pairs)
    if reader == VLLM and rope.longest > rope.original:
        short = long
    key = "attention_factor"
    factor = rope.factor
    if reader != HF:  # engines take the ratio of the lengths in place of the stated factor
        key = "long_mscale"
        factor = rope.longest / rope.original
    elif family == "phimoe":
        key = "long_mscale"
    amplitude = positive_number(mapping.get(key)) or longrope_amplitude(factor, rope.original)
    return replace(rope, amplitude=amplitude, long=long, short=short)


def _valid_divisors(value: object, pairs: int) -> tuple[float, ...]:
    """A positive number for each pair, or 1 for each where the value is no such list."""
    if isinstance(value, list) and len(value) == pairs and all(map(positive_number, value)):
        return tuple(value)
    return (1.0,) * pairs


def _read_dynamic(rope: Rope, mapping: dict, reader: str, family: str) -> Rope:
    """Dynamic NTK; where it has one base for all lengths, that base."""
    alpha = positive_number(mapping.get("alpha"))  # growth of the base, of NTK with a fixed base
    if alpha and (reader != HF or fact_of_family(family, "alpha")):
        growth = alpha
    elif reader == HF:
        return rope  # its base grows with the text
    else:
        # SGLang takes the base of a text `factor` times as long as max_position_embeddings.
        trained = rope.longest / rope.factor
        if reader == VLLM:
            trained = positive_number(mapping.get("max_trained_positions"), rope.longest)
        growth = rope.factor * rope.longest / trained - (rope.factor - 1)
    base = rope.base * growth ** (rope.turned / max(1, rope.turned - 2))
    return replace(rope, kind="default", factor=1.0, base=base)
