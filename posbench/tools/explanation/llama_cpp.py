"""Setting of RoPE in llama.cpp, from the keys of a GGUF file and the flags of a command.

Checked against the llama.cpp of llama-cpp-python 0.3.36 (commit 0c1e570): src/llama-model.cpp reads
the keys, src/llama-context.cpp combines them with the flags, ggml/src/ggml-cpu/ops.cpp (rope_yarn)
turns. What differs from transformers:

- Type and factor are separate: the factor acts unless the type is `none`, and a file without a type is `linear`.
- YaRN is on wherever yarn_ext_factor is not 0; the type only decides its default. It always rounds its bounds (truncate).
- With YaRN yarn_attn_factor is overwritten; only the key rope.scaling.attn_factor changes its amplitude.
- rope_freqs.weight (Llama 3.1's scaling) divides theta before any of this.
- In sliding layers base and factor are those of the file, whatever the flags say.
"""

import math
from dataclasses import dataclass

from posbench.common.errors import ConfigError
from posbench.gguf.description import SCALING, model_keys
from posbench.gguf.header import GgufFile
from posbench.gguf.tensors import numbers
from posbench.tools.explanation.config_json import number
from posbench.tools.explanation.facts import FACTS
from posbench.tools.explanation.frequencies import Rope, yarn_amplitude
from posbench.tools.explanation.read_rope import base_of, head_width
from posbench.tools.explanation.settings import FULL, MOST_LAYERS, SLIDING, LayerKind, Setting


@dataclass(frozen=True)
class Gguf:
    """Keys of a model below its architecture's name, and its tensors of divisors (empty if it has
    none).
    """

    architecture: str
    keys: dict
    divisors: tuple[float, ...] = ()
    long: tuple[float, ...] = ()
    short: tuple[float, ...] = ()


def read_keys(file: GgufFile) -> Gguf:
    """Keys and divisors of a file. Raises ConfigError for one without an architecture, or with
    damaged divisors.
    """
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise ConfigError(f"{file.path} has no general.architecture: is it a model's file?")
    lists = {}
    for name, tensor in (
        ("divisors", "rope_freqs.weight"),
        ("long", "rope_factors_long.weight"),
        ("short", "rope_factors_short.weight"),
    ):
        if tensor in file.tensors:
            found = numbers(file, tensor)
            if found is None or not all(0 < one < math.inf for one in found.tolist()):
                raise ConfigError(
                    f"{file.path} has a {tensor} that is not a list of divisors above 0: download"
                    " it again."
                )
            lists[name] = tuple(found.tolist())
    return Gguf(architecture, model_keys(file, architecture), **lists)


def llama_setting(
    model: Gguf,
    name: str,
    flags: dict[str, float | str] | None = None,
    trained: float | None = None,
) -> Setting:
    """Setting that llama.cpp runs for a file's keys and flags. Raises ConfigError for a file that
    does not say its sizes.
    """
    flags, keys = flags or {}, model.keys
    longest, layers = number(keys.get("context_length")), number(keys.get("block_count"), 1)
    if longest is None:
        raise ConfigError(f"{name} lacks {model.architecture}.context_length: download it again.")
    own_base = base_of(keys.get("rope.freq_base"))
    turns = {
        False: (
            1.0 if scaling_type(model, flags) == "none" else scaling_factor(model, flags),
            base_of(flags.get("base"), own_base),
        )
    }
    # Sliding layers have the file's factor and base, or a base of their own.
    apart = model.architecture in FACTS["gguf_apart"]
    own_base = base_of(keys.get("rope.freq_base_swa"), 1e4 if apart else own_base)
    turns[True] = (1.0 if apart else scaling_factor(model, {}), own_base)
    windows, kinds = _windows(model, int(min(layers, MOST_LAYERS))), {}
    for layer, sliding in enumerate(windows):
        unturned = (model.architecture == "smollm3" and layer % 4 == 3) or (
            model.architecture == "cohere2" and not sliding
        )
        kinds.setdefault((sliding, unturned), []).append(layer)
    found = []
    for (sliding, unturned), mine in kinds.items():
        rope = _rope(model, name, flags, longest, *turns[sliding])
        kind = (SLIDING if sliding else FULL) + ", no RoPE" * unturned
        window = number(keys.get("attention.sliding_window")) if sliding else None
        found.append(LayerKind(kind, tuple(mine), None if unturned else rope, window))
    return Setting(name, model.architecture, longest, trained or longest, tuple(found))


def _windows(model: Gguf, count: int) -> list[bool]:
    """True for each layer with a sliding window."""
    pattern, window = (
        model.keys.get("attention.sliding_window_pattern"),
        number(model.keys.get("attention.sliding_window")),
    )
    if isinstance(pattern, list):
        return [bool(one) for one in pattern[:count]] + [False] * (count - len(pattern))
    if window is None or model.architecture not in FACTS["gguf_sliding_every"]:
        return [False] * count
    every = number(pattern, FACTS["gguf_sliding_every"][model.architecture])
    return [bool((layer + 1) % every) for layer in range(count)]


def scaling_type(model: Gguf, flags: dict) -> str:
    """none, linear, yarn or longrope, as the engine takes it."""
    said = flags.get("scaling") or model.keys.get(f"{SCALING}type", "linear")
    return said if said in FACTS["gguf_types"] else "linear"


def scaling_factor(model: Gguf, flags: dict) -> float:
    """Factor by which positions are divided, before a type of none removes it."""
    own = (
        number(model.keys.get(f"{SCALING}factor"))
        or number(model.keys.get("rope.scale_linear"))
        or 1.0
    )
    return number(flags.get("factor")) or own


def ext_factor(model: Gguf, flags: dict) -> float:
    """Share of theta itself that YaRN keeps; 0 is no YaRN."""
    own = _of_architecture(model, "ext_factor", -1.0)
    asked = flags["ext"] if flags.get("ext", -1) >= 0 else own
    return asked if asked >= 0 else float(scaling_type(model, flags) == "yarn")


def _of_architecture(model: Gguf, name: str, default: float) -> float:
    """Value of a yarn key, for the architectures that read it."""
    key = f"{SCALING}yarn_{name}"
    value = model.keys.get(key, default)
    good = (
        model.architecture in FACTS["gguf_read_by"][key]
        and isinstance(value, int | float)
        and abs(value) < 1e6
    )
    return value if good else default


def _rope(model: Gguf, name: str, flags: dict, longest: float, factor: float, base: float) -> Rope:
    """RoPE of one base and factor. Raises ConfigError for a file that does not say the width of a
    head.
    """
    keys, ext = model.keys, ext_factor(model, flags)
    original = (
        number(flags.get("orig"))
        or number(keys.get(f"{SCALING}original_context_length"))
        or longest
    )
    head_dim, turned, beside = _head(model, name)
    lists = model.long if number(flags.get("ctx"), longest) > original else model.short
    shared = {
        "head_dim": head_dim,
        "base": base,
        "longest": longest,
        "share": turned / head_dim,
        "factor": factor,
        "beside": beside,
    }
    shared["divisors"] = model.divisors or lists
    if shared["divisors"] and len(shared["divisors"]) != -(-turned // 2):
        raise ConfigError(
            f"{name} has {len(shared['divisors'])} divisors of RoPE, and {-(-turned // 2)} pairs"
            " turn: download it again."
        )
    own = number(keys.get(f"{SCALING}attn_factor"), 1.0)
    if not ext:
        given = (
            flags["attn"]
            if flags.get("attn", -1) >= 0
            else _of_architecture(model, "attn_factor", 1.0)
        )
        return Rope(
            **shared,
            original=original,
            kind="linear" if factor != 1 else "default",
            amplitude=given * own,
        )
    whole = log_multiplier(model)
    scale = whole if model.architecture == "deepseek2" and whole != 1 else 1.0
    over = (
        1.0 if scaling_type(model, flags) == "none" else scaling_factor(model, flags)
    )  # of the whole context, not of this layer
    attn = (
        yarn_amplitude(over, scale) / yarn_amplitude(over, whole) if whole else yarn_amplitude(over)
    )
    attn *= (1 + 0.1 * math.log(factor)) / (1 + 0.1 * math.log(over))
    sharper = (attn * own * (1 + 0.1 * whole * math.log(factor))) ** 2 if beside else 1.0
    bounds = {}
    for flag, bound, default in (
        ("fast", "beta_fast", 8.0 if model.architecture == "grok" else 32.0),
        ("slow", "beta_slow", 1.0),
    ):
        bounds[bound] = number(flags.get(flag)) or number(
            _of_architecture(model, bound, default), default
        )
    return Rope(
        **shared,
        **bounds,
        original=original,
        kind="yarn",
        mix=ext,
        amplitude=attn * own,
        sharper=sharper,
    )


def log_multiplier(model: Gguf) -> float:
    """mscale_all_dim of a file: the converter stores a tenth of it for latent attention, and itself
    for mistral3.
    """
    return _of_architecture(model, "log_multiplier", 0.0) * (
        10 if model.architecture in FACTS["gguf_latent"] else 1
    )


def _head(model: Gguf, name: str) -> tuple[int, int, int]:
    """(Channels with positions, how many of them turn, channels beside them in latent attention),
    such as (64, 64, 128) of DeepSeek.

    Raises ConfigError for a file that does not say the width of a head.
    """
    keys = model.keys
    width, heads = number(keys.get("embedding_length")), number(keys.get("attention.head_count"))
    head_dim = number(keys.get("attention.key_length")) or (
        width // heads if width and heads else None
    )
    if head_dim is None:
        raise ConfigError(
            f"{name} lacks {model.architecture}.embedding_length or attention.head_count: download"
            " it again."
        )
    head_dim = head_width(head_dim, name)
    turned = number(keys.get("rope.dimension_count"), head_dim)
    turned = int(turned) if 2 <= turned <= head_dim else head_dim
    whole = number(keys.get("attention.key_length_mla"), 0)
    if whole > turned and model.architecture in FACTS["gguf_latent"]:
        return turned, turned, head_width(whole, name) - turned
    return head_dim, turned, 0
