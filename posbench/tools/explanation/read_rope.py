"""RoPE of one mapping with its defaults, as transformers 5.23 reads it, or vLLM 0.33.0 or SGLang
0.5.23.

The engines' readings differ where a function asks for the reader, as their layers/rotary_embedding
do. A value that cannot be read counts as missing, and checks.py says so."""

from dataclasses import replace

from posbench.common.errors import ConfigError
from posbench.pretrained.outline import size_of, stated_width
from posbench.tools.explanation.config_json import nested, number, rope_words
from posbench.tools.explanation.facts import HF, SGLANG, TYPES, VLLM, of_family
from posbench.tools.explanation.frequencies import Rope, longrope_amplitude, yarn_amplitude

WIDEST = 2**16  # channels of a head
HERE = "The description"  # in an error
LONG = ("yarn", "longrope", "llama3")  # types that count from original_max_position_embeddings


def base_of(value: object, default: float = 1e4) -> float:
    """A base of frequencies, which is above 1, else the default."""
    return value if (number(value) or 0) > 1 else default


def head_width(width: float, name: str) -> int:
    """Channels of a head. Raises ConfigError for more than any model has, whose pairs would fill
    the memory.
    """
    if width > WIDEST:
        raise ConfigError(
            f"{name} gives a head {width:,.0f} channels, and {WIDEST:,} is the most that is"
            " explained: correct its sizes."
        )
    return int(width)


def read_rope(said: dict, config: dict, longest: float, reader: str = HF) -> Rope:
    """RoPE of words with defaults. Raises ConfigError for a model that does not say the width of a
    head.
    """
    family = str(config.get("model_type"))
    kind = (
        "default"
        if reader == SGLANG and of_family(family, "unscaled")
        else _kind(said["rope_type"])
    )
    original = (
        number(said.get("original_max_position_embeddings"), longest) if kind in LONG else longest
    )
    factor = number(said.get("factor")) or (
        longest / original if kind in ("yarn", "longrope") else 1.0
    )
    latent = number(config.get("qk_rope_head_dim")) and number(config.get("qk_nope_head_dim"))
    head_dim = number(config.get("qk_rope_head_dim")) or stated_width(config, HERE)
    if head_dim is None:
        width, heads = (size_of(config, name, HERE) for name in ("d_model", "n_head"))
        sizes = f"hidden_size={width} and num_attention_heads={heads} do not say it"
        raise ConfigError(f"{HERE} lacks head_dim, and {sizes}: is it a checkpoint's config.json?")
    head_dim, beside = head_width(head_dim, HERE), head_width(latent or 0, HERE)
    share = min(1.0, number(said.get("partial_rotary_factor"), 1.0))
    rope = Rope(
        head_dim,
        base_of(said.get("rope_theta")),
        longest,
        original,
        kind,
        share,
        factor,
        beside=beside,
    )
    match kind:
        case "yarn":
            # transformers looks for truncate beside the kinds of layers, where it is never written.
            by_kind = reader == HF and bool(nested(rope_words(config)))
            deepseek = bool(latent) and reader != HF and not of_family(family, "own_latent")
            return _read_yarn(
                rope,
                said,
                reader,
                deepseek,
                cuts=by_kind or said.get("truncate", True) is not False,
            )
        case "llama3":
            return replace(
                rope,
                low=number(said.get("low_freq_factor"), 1.0),
                high=number(said.get("high_freq_factor"), 4.0),
            )
        case "longrope":
            return _read_longrope(rope, said, reader, family)
        case "dynamic":
            return _read_dynamic(rope, said, reader, family)
        case "proportional" if reader != HF:
            return replace(rope, factor=1.0)
    return rope


def _kind(rope_type: str) -> str:
    """Type as it is computed: that of an older name, and default for one that nobody knows."""
    if rope_type in TYPES:
        return rope_type
    return "longrope" if rope_type == "su" else "default"


def _read_yarn(rope: Rope, said: dict, reader: str, deepseek: bool, cuts: bool) -> Rope:
    """YaRN of these words. With `deepseek` by the classes that vLLM and SGLang have for latent
    attention, which read other keys.
    """
    scale, whole = (number(said.get(key)) for key in ("mscale", "mscale_all_dim"))
    given, mix = number(said.get("attention_factor")), said.get("extrapolation_factor")
    usual = yarn_amplitude(rope.factor)
    amplitude = usual
    if scale and whole:
        amplitude = yarn_amplitude(rope.factor, scale) / yarn_amplitude(rope.factor, whole)
    sharper = yarn_amplitude(rope.factor, whole) ** 2 if rope.beside and whole else 1.0
    if deepseek:
        cuts = True
        scale = 1.0 if said.get("mscale") is None else scale or 0.0
        amplitude = yarn_amplitude(rope.factor, scale) / yarn_amplitude(rope.factor, whole or 0.0)
        if reader == VLLM and given == 1:  # its deepseek_llama_scaling
            sharper = 1.0
    elif reader != SGLANG and given:
        amplitude = given
    if reader == SGLANG:
        amplitude *= number(said.get("attn_factor"), 1.0)
        rope = replace(rope, mix=mix if isinstance(mix, int | float) else 1.0)
    bounds = {
        "beta_fast": number(said.get("beta_fast"), 32.0),
        "beta_slow": number(said.get("beta_slow"), 1.0),
    }
    return replace(rope, **bounds, truncate=cuts, sharper=sharper, amplitude=amplitude)


def _read_longrope(rope: Rope, said: dict, reader: str, family: str) -> Rope:
    lists, pairs = {}, -(-rope.turned // 2)
    for key in ("long", "short"):
        value = said.get(f"{key}_factor")
        good = isinstance(value, list) and len(value) == pairs and all(map(number, value))
        lists[key] = tuple(value) if good else (1.0,) * pairs
    if reader == VLLM and rope.longest > rope.original:
        lists["short"] = lists["long"]
    given, factor = number(said.get("attention_factor")), rope.factor
    if family == "phimoe" and reader == HF:
        given = number(said.get("long_mscale"))
    if reader != HF:
        given, factor = number(said.get("long_mscale")), rope.longest / rope.original
    return replace(rope, amplitude=given or longrope_amplitude(factor, rope.original), **lists)


def _read_dynamic(rope: Rope, said: dict, reader: str, family: str) -> Rope:
    """Dynamic NTK; where it has one base for all lengths, that base."""
    alpha = number(said.get("alpha"))
    if alpha and (reader != HF or of_family(family, "alpha")):
        grown = alpha
    elif reader == HF:
        return rope
    else:
        trained = (
            number(said.get("max_trained_positions"), rope.longest)
            if reader == VLLM
            else rope.longest / rope.factor
        )
        grown = rope.factor * rope.longest / trained - (rope.factor - 1)
    base = rope.base * grown ** (rope.turned / max(1, rope.turned - 2))
    return replace(rope, kind="default", factor=1.0, base=base)
