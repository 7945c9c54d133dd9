"""Setting of RoPE in llama.cpp, from the keys of a GGUF file and the flags of a command.

Checked against the llama.cpp of llama-cpp-python 0.3.36 (commit 0c1e570): src/llama-model.cpp reads
the keys, src/llama-context.cpp combines them with the flags, ggml/src/ggml-cpu/ops.cpp (rope_yarn)
turns. What differs from transformers:

- Type and factor are separate: the factor acts unless the type is `none`, and a file without a type
  is `linear`.
- YaRN is on wherever yarn_ext_factor is not 0; the type only decides its default. It always rounds
  its bounds (truncate).
- With YaRN yarn_attn_factor is overwritten; only the key rope.scaling.attn_factor changes its
  amplitude.
- rope_freqs.weight (Llama 3.1's scaling) divides theta before any of this.
- In sliding layers base and factor are those of the file, whatever the flags say.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from posbench.common.errors import ConfigError
from posbench.gguf.description import LARGEST_FACTOR, SCALING, model_keys
from posbench.gguf.header import GgufFile
from posbench.gguf.tensors import numbers
from posbench.tools.explanation.config_json import positive_number
from posbench.tools.explanation.facts import FACTS
from posbench.tools.explanation.frequencies import Rope, yarn_amplitude
from posbench.tools.explanation.read_rope import checked_head_width, valid_base
from posbench.tools.explanation.settings import FULL, MOST_LAYERS, SLIDING, LayerKind, Setting


@dataclass(frozen=True)
class Gguf:
    """Keys and divisors in a GGUF file; a list of divisors that it does not have is empty."""

    architecture: str
    keys: dict  # below the architecture's name
    divisors: tuple[float, ...] = ()
    long: tuple[float, ...] = ()
    short: tuple[float, ...] = ()


def gguf_from_file(file: GgufFile) -> Gguf:
    """Keys and divisors of a file. Raises ConfigError for one without an architecture, or with
    damaged divisors.
    """
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise ConfigError(f"{file.path} has no general.architecture: is it a model's file?")
    return Gguf(
        architecture,
        model_keys(file, architecture),
        divisors=_read_divisors(file, "rope_freqs.weight"),
        long=_read_divisors(file, "rope_factors_long.weight"),
        short=_read_divisors(file, "rope_factors_short.weight"),
    )


def _read_divisors(file: GgufFile, tensor: str) -> tuple[float, ...]:
    """Values of a tensor of divisors; () if the file has none."""
    if tensor not in file.tensors:
        return ()
    divisors = numbers(file, tensor)
    if divisors is None or not all(0 < divisor < math.inf for divisor in divisors.tolist()):
        raise ConfigError(
            f"{file.path} has a {tensor} that is not a list of divisors above 0: download it again."
        )
    return tuple(divisors.tolist())


class FactorAndBase(NamedTuple):
    """Factor by which positions are divided, and base, of full or of sliding layers."""

    factor: float
    base: float


def llama_setting(
    model: Gguf,
    name: str,
    flags: dict[str, float | str] | None = None,
    trained: float | None = None,
) -> Setting:
    """Setting that llama.cpp runs for a file's keys and flags. Raises ConfigError for a file that
    does not say its sizes.
    """
    flags = flags or {}
    keys = model.keys
    longest = positive_number(keys.get("context_length"))
    if longest is None:
        raise ConfigError(f"{name} lacks {model.architecture}.context_length: download it again.")
    layers = int(min(positive_number(keys.get("block_count"), 1), MOST_LAYERS))
    layers_of: dict[tuple[bool, bool], list[int]] = {}  # {(sliding, without RoPE): layers}
    for layer, sliding in enumerate(_slides_by_layer(model, layers)):
        lacks_rope = _lacks_rope(model.architecture, layer, sliding)
        layers_of.setdefault((sliding, lacks_rope), []).append(layer)
    kinds = []
    for (sliding, lacks_rope), of_kind in layers_of.items():
        kind = FULL
        factor_and_base = _full_factor_and_base(model, flags)
        window = None
        if sliding:  # flags do not reach these
            kind = SLIDING
            factor_and_base = _sliding_factor_and_base(model)
            window = positive_number(keys.get("attention.sliding_window"))
        rope = _rope(model, name, flags, longest, factor_and_base)  # raises without sizes of a head
        if lacks_rope:
            kind = f"{kind}, no RoPE"
            rope = None
        kinds.append(LayerKind(kind, tuple(of_kind), rope, window))
    return Setting(name, model.architecture, longest, trained or longest, tuple(kinds))


def _full_factor_and_base(model: Gguf, flags: dict) -> FactorAndBase:
    """Factor and base of full layers: those of the flags, else those of the file."""
    factor = scaling_factor(model, flags)
    if scaling_type(model, flags) == "none":
        factor = 1.0
    return FactorAndBase(
        factor, valid_base(flags.get("base"), valid_base(model.keys.get("rope.freq_base")))
    )


def _sliding_factor_and_base(model: Gguf) -> FactorAndBase:
    """Factor and base of sliding layers, which are the file's, whatever the flags say."""
    own_base = model.keys.get("rope.freq_base_swa")
    if model.architecture in FACTS["gguf_apart"]:
        return FactorAndBase(1.0, valid_base(own_base))
    base = valid_base(own_base, valid_base(model.keys.get("rope.freq_base")))
    return FactorAndBase(scaling_factor(model, {}), base)


def _lacks_rope(architecture: str, layer: int, sliding: bool) -> bool:
    """True if llama.cpp turns nothing in a layer."""
    if architecture == "smollm3":
        return layer % 4 == 3  # fixed in llama.cpp, whatever the config.json said
    return architecture == "cohere2" and not sliding


def _slides_by_layer(model: Gguf, n_layers: int) -> list[bool]:
    """True for each layer with a sliding window."""
    pattern = model.keys.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        return [bool(slides) for slides in pattern[:n_layers]] + [False] * (n_layers - len(pattern))
    usual = FACTS["gguf_sliding_every"].get(model.architecture)
    if usual is None or positive_number(model.keys.get("attention.sliding_window")) is None:
        return [False] * n_layers
    # Every so many layers one is full.
    every = positive_number(pattern, usual)
    return [bool((layer + 1) % every) for layer in range(n_layers)]


def scaling_type(model: Gguf, flags: dict) -> str:
    """none, linear, yarn or longrope, as the engine takes it."""
    value = flags.get("scaling") or model.keys.get(f"{SCALING}type", "linear")
    return value if value in FACTS["gguf_types"] else "linear"


def scaling_factor(model: Gguf, flags: dict) -> float:
    """Factor by which positions are divided, before a type of none removes it."""
    values = (
        flags.get("factor"),
        model.keys.get(f"{SCALING}factor"),
        model.keys.get("rope.scale_linear"),
    )
    return next((value for value in values if positive_number(value)), 1.0)


def ext_factor(model: Gguf, flags: dict) -> float:
    """Share of theta itself that YaRN keeps; 0 is no YaRN."""
    factor = flags.get("ext", -1)  # llama.cpp's own default: below 0 nothing is typed
    if factor < 0:
        factor = _yarn_value(model, "ext_factor", -1.0)
    if factor < 0:
        factor = 1.0 if scaling_type(model, flags) == "yarn" else 0.0
    return factor


def _yarn_value(model: Gguf, name: str, default: float) -> float:
    """Value of the key yarn_NAME in a file, else the default; so too where llama.cpp does not read
    the key in files of this architecture, and for the absurd value of a damaged file.
    """
    key = f"{SCALING}yarn_{name}"
    value = model.keys.get(key, default)
    if model.architecture not in FACTS["gguf_read_by"][key]:
        return default
    return value if isinstance(value, int | float) and abs(value) < LARGEST_FACTOR else default


def _rope(
    model: Gguf, name: str, flags: dict, longest: float, factor_and_base: FactorAndBase
) -> Rope:
    """RoPE of full or sliding layers. Raises ConfigError for a file that does not say the width of
    a head.
    """
    original = (
        positive_number(flags.get("orig"))
        or positive_number(model.keys.get(f"{SCALING}original_context_length"))
        or longest
    )
    head = _head_channels(model, name)
    long_text = positive_number(flags.get("ctx"), longest) > original
    divisors = model.divisors or (model.long if long_text else model.short)
    pairs = -(-head.turned // 2)
    if divisors and len(divisors) != pairs:
        raise ConfigError(
            f"{name} has {len(divisors)} divisors of RoPE, and {pairs} pairs turn: download it"
            " again."
        )
    rope = Rope(
        head_dim=head.width,
        base=factor_and_base.base,
        longest=longest,
        original=original,
        share=head.turned / head.width,
        factor=factor_and_base.factor,
        divisors=divisors,
        unturned_beside=head.unturned_beside,
    )
    if ext_factor(model, flags):  # any but 0 is YaRN, whatever the type
        return _with_yarn(rope, model, flags)
    amplitude = flags.get("attn", -1)  # below 0 nothing is typed
    if amplitude < 0:
        amplitude = _yarn_value(model, "attn_factor", 1.0)
    kind = "linear" if factor_and_base.factor != 1 else "default"
    return replace(rope, kind=kind, amplitude=amplitude * _attn_factor_of_file(model))


def _attn_factor_of_file(model: Gguf) -> float:
    """Factor on cos and sin by rope.scaling.attn_factor of a file, 1 where it has none."""
    return positive_number(model.keys.get(f"{SCALING}attn_factor"), 1.0)


def _with_yarn(rope: Rope, model: Gguf, flags: dict) -> Rope:
    """RoPE with YaRN: its bounds, and its factors on cos, sin and logits."""
    multiplier = log_multiplier(model)
    amplitude = _context_amplitude(model, flags, multiplier)
    context_factor = _full_factor_and_base(model, flags).factor
    # The kernel multiplies by the factor of these layers; the context has divided by its own.
    amplitude *= (1 + 0.1 * math.log(rope.factor)) / (1 + 0.1 * math.log(context_factor))
    sharper = 1.0
    # Latent attention: llama.cpp's kq_scale multiplies the logits of all channels, turned or not,
    # by the square of both factors, as DeepSeek's mscale_all_dim does.
    if rope.unturned_beside:
        mscale_factor = 1 + 0.1 * multiplier * math.log(rope.factor)
        sharper = (amplitude * _attn_factor_of_file(model) * mscale_factor) ** 2
    return replace(
        rope,
        kind="yarn",
        mix=ext_factor(model, flags),
        # 32 and 1 are llama.cpp's defaults, but for the files of grok.
        beta_fast=_yarn_beta(model, flags, "fast", 8.0 if model.architecture == "grok" else 32.0),
        beta_slow=_yarn_beta(model, flags, "slow", 1.0),
        amplitude=amplitude * _attn_factor_of_file(model),
        sharper=sharper,
    )


def _context_amplitude(model: Gguf, flags: dict, multiplier: float) -> float:
    """YaRN's factor on cos and sin by the factor of the whole context, not of these layers."""
    factor = _full_factor_and_base(model, flags).factor
    if not multiplier:
        return yarn_amplitude(factor)
    mscale = multiplier if model.architecture == "deepseek2" and multiplier != 1 else 1.0
    return yarn_amplitude(factor, mscale) / yarn_amplitude(factor, multiplier)


def _yarn_beta(model: Gguf, flags: dict, name: str, default: float) -> float:
    """beta_fast or beta_slow of YaRN, by the name of its flag."""
    of_file = positive_number(_yarn_value(model, f"beta_{name}", default), default)
    return positive_number(flags.get(name)) or of_file


def log_multiplier(model: Gguf) -> float:
    """mscale_all_dim of a file: the converter stores a tenth of it for latent attention, and itself
    for mistral3.
    """
    value = _yarn_value(model, "log_multiplier", 0.0)
    return 10 * value if model.architecture in FACTS["gguf_latent"] else value


class Head(NamedTuple):
    """Channels of a head, such as Head(64, 64, 128) of DeepSeek's latent attention."""

    width: int  # with positions
    turned: int  # of these
    unturned_beside: int  # without positions, in latent attention


def _head_channels(model: Gguf, name: str) -> Head:
    """Channels of a head. Raises ConfigError for a file that does not say their number."""
    keys = model.keys
    width, heads = (
        positive_number(keys.get("embedding_length")),
        positive_number(keys.get("attention.head_count")),
    )
    head_dim = positive_number(keys.get("attention.key_length"))
    if head_dim is None and width and heads:
        head_dim = width // heads
    if head_dim is None:
        raise ConfigError(
            f"{name} lacks {model.architecture}.embedding_length or attention.head_count: download"
            " it again."
        )
    head_dim = checked_head_width(head_dim, name)
    turned = positive_number(keys.get("rope.dimension_count"), head_dim)
    # An impossible number counts as none: then all channels turn.
    turned = int(turned) if 2 <= turned <= head_dim else head_dim
    # A head of latent attention has further channels, which are kept apart and never turn.
    latent_width = positive_number(keys.get("attention.key_length_mla"), 0)
    if latent_width > turned and model.architecture in FACTS["gguf_latent"]:
        latent_width = checked_head_width(latent_width, name)
        return Head(width=turned, turned=turned, unturned_beside=latent_width - turned)
    return Head(width=head_dim, turned=turned, unturned_beside=0)
