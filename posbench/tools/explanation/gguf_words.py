"""One setting as keys of a GGUF file or flags of llama.cpp, and the file that its converter makes
of a checkpoint.
"""

import math
from dataclasses import replace

import numpy as np

from posbench.tools.explanation.facts import FACTS
from posbench.tools.explanation.frequencies import (
    Rope,
    frequencies,
    unscaled_frequencies,
    usual_amplitude,
)
from posbench.tools.explanation.llama_cpp import SCALING, Gguf
from posbench.tools.explanation.rope_parameters import CannotExpress, int_if_whole
from posbench.tools.explanation.settings import FULL, SLIDING, LayerKind, Setting

TYPES_OF_FLAGS = ("default", "linear", "yarn")  # what flags of llama.cpp can say
DROPPED_TYPES = ("dynamic", "proportional")  # types for which the converter writes nothing
TYPE_KEY = f"{SCALING}type"
FACTOR_KEY = f"{SCALING}factor"
ORIGINAL_KEY = f"{SCALING}original_context_length"
AMPLITUDE_KEY = f"{SCALING}attn_factor"
LOG_MULTIPLIER_KEY = f"{SCALING}yarn_log_multiplier"
BETA_FAST_KEY, BETA_SLOW_KEY = f"{SCALING}yarn_beta_fast", f"{SCALING}yarn_beta_slow"
ARCHITECTURE_PREFIXES = tuple(
    f"{name}." for name in (*FACTS["gguf_families"], *FACTS["gguf_alike"], *FACTS["gguf_other"])
)
ARCHITECTURES = {
    family: name for name, families in FACTS["gguf_families"].items() for family in families
}


def architecture_of(family: str) -> str:
    """llama.cpp's name for a family of transformers. Raises CannotExpress for one without any.

    >>> architecture_of("glm4_moe")
    'glm4moe'
    """
    if family in ARCHITECTURES:
        return ARCHITECTURES[family]
    if f"{family}." in ARCHITECTURE_PREFIXES:  # an architecture of the same name
        return family
    raise CannotExpress(f"its converter does not know {family}")


def llama_cpp_reads(architecture: str, key: str) -> bool:
    """True if llama.cpp reads the key in files of an architecture."""
    return architecture in FACTS["gguf_read_by"][key]


def gguf_of(setting: Setting) -> Gguf:
    """Keys and tensors with which llama.cpp runs the setting. Raises CannotExpress for one that it
    cannot run from a file alone.
    """
    architecture = architecture_of(setting.family)
    rope = _full_rope(setting)
    layers = sum(len(kind.layers) for kind in setting.kinds)
    keys = {
        "context_length": int_if_whole(setting.longest),
        "block_count": layers,
        "attention.key_length": rope.head_dim,
        "rope.dimension_count": rope.turned,
        "rope.freq_base": float(rope.base),
    }
    if rope.unturned_beside and architecture in FACTS["gguf_latent"]:
        keys["attention.key_length_mla"] = rope.head_dim + rope.unturned_beside
    keys |= _window_keys(setting, architecture, layers)
    if rope.kind in DROPPED_TYPES:
        raise CannotExpress(f"it has no {rope.kind} scaling")
    if rope.kind == "longrope":
        original = int_if_whole(rope.original)
        keys |= {**_factor_keys(rope, architecture), TYPE_KEY: "longrope", ORIGINAL_KEY: original}
        return Gguf(architecture, keys, (), rope.long, rope.short)
    keys |= _scaling_keys(rope, architecture)
    keys |= _factor_keys(rope, architecture)
    divisors = rope.divisors
    if rope.kind == "llama3":
        divisors = tuple((unscaled_frequencies(rope) / frequencies(rope)).tolist())
    return Gguf(architecture, keys, divisors)


def _full_rope(setting: Setting) -> Rope:
    """RoPE of the full layers, or of the first kind that turns."""
    for kind in setting.turning:
        if kind.name.partition(",")[0] == FULL:
            return kind.rope
    return setting.turning[0].rope


def _scaling_keys(rope: Rope, architecture: str) -> dict:
    """Keys of linear and YaRN, but for factors on cos, sin and logits; {} of other types."""
    if rope.kind == "linear":
        return {TYPE_KEY: "linear", FACTOR_KEY: float(rope.factor)}
    if rope.kind != "yarn":
        return {}
    theta = frequencies(rope)
    rounded = frequencies(replace(rope, truncate=True))
    if not np.allclose(theta, rounded, rtol=1e-9, atol=0):
        raise CannotExpress("it always rounds YaRN's bounds (truncate)")  # it: llama.cpp
    keys = {
        TYPE_KEY: "yarn",
        FACTOR_KEY: float(rope.factor),
        ORIGINAL_KEY: int_if_whole(rope.original),
    }
    if llama_cpp_reads(architecture, BETA_FAST_KEY):
        keys |= {BETA_FAST_KEY: float(rope.beta_fast), BETA_SLOW_KEY: float(rope.beta_slow)}
    return keys


def _window_keys(setting: Setting, architecture: str, layers: int) -> dict:
    """Keys of sliding layers. Raises CannotExpress where they turn otherwise than full ones, and
    llama.cpp's way with them is not known.
    """
    # Of other architectures it is not known which of their layers llama.cpp lets slide.
    has_pattern = architecture in FACTS["gguf_sliding_every"]
    sliding_is_unscaled = architecture in FACTS["gguf_apart"]  # a base of their own alone
    keys = {}
    for kind in setting.kinds:
        if not kind.window:
            continue
        keys["attention.sliding_window"] = int_if_whole(kind.window)
        if has_pattern:
            slides = [layer in kind.layers for layer in range(layers)]
            keys["attention.sliding_window_pattern"] = slides
            if kind.rope:
                keys["rope.freq_base_swa"] = float(kind.rope.base)
    ropes = {replace(kind.rope, longest=0) for kind in setting.turning}  # alike but for the length
    if len(ropes) > 1 and not has_pattern:
        raise CannotExpress("explain does not know how it turns the sliding layers of this family")
    by_sliding = {kind.name.startswith(SLIDING): kind.rope for kind in setting.turning}
    if len(by_sliding) > 1:
        full, sliding = by_sliding[False], by_sliding[True]
        if sliding_is_unscaled and sliding.kind != "default":
            raise CannotExpress("its sliding layers have no scaling in this family")
        if not sliding_is_unscaled and sliding != replace(full, base=sliding.base):
            raise CannotExpress("its sliding layers have the scaling of the others in this family")
    return keys


def _factor_keys(rope: Rope, architecture: str) -> dict:
    """Keys for the factors on cos, sin and logits. Raises CannotExpress for factors that the
    architecture does not have.
    """
    if rope.kind == "yarn" and rope.unturned_beside and architecture in FACTS["gguf_latent"]:
        return _latent_keys(rope, architecture)
    if rope.sharper != 1:
        raise CannotExpress("it has no factor on all logits in this family")
    if rope.kind != "yarn":
        return _amplitude_key(rope.amplitude)
    return _yarn_amplitude_keys(rope, architecture)


def _yarn_amplitude_keys(rope: Rope, architecture: str) -> dict:
    """Keys for YaRN's factor on cos and sin alone: 0 takes back a factor on logits that the
    checkpoint's file has.
    """
    keys = _amplitude_key(rope.amplitude / usual_amplitude(rope))
    return (
        {LOG_MULTIPLIER_KEY: 0.0, **keys}
        if llama_cpp_reads(architecture, LOG_MULTIPLIER_KEY)
        else keys
    )


def _amplitude_key(factor: float) -> dict:
    """Key for a factor on cos and sin beside that of the type; {} for 1."""
    return {} if math.isclose(factor, 1, rel_tol=1e-9) else {AMPLITUDE_KEY: factor}


def _latent_keys(rope: Rope, architecture: str) -> dict:
    """Keys that give latent attention both factors: mscale_all_dim, a tenth of which is stored, and
    rope.scaling.attn_factor.
    """
    slope = 0.1 * math.log(rope.factor)  # YaRN's factor on cos and sin is 1 + slope
    if slope <= 0:
        raise CannotExpress("YaRN with factor 1 has no factor on logits")
    # mscale_all_dim: llama.cpp takes (amplitude * (1 + slope * on_all))^2 as the factor on all
    # logits, which is to be rope.sharper.
    on_all = (math.sqrt(rope.sharper) / rope.amplitude - 1) / slope
    if abs(on_all) < 1e-9:  # logits have no factor but that of cos and sin
        return _yarn_amplitude_keys(rope, architecture)
    if not llama_cpp_reads(architecture, LOG_MULTIPLIER_KEY):
        raise CannotExpress(
            "it multiplies all logits by the factor on cos and sin, and has no other"
        )
    factor = rope.amplitude
    # The file's factor multiplies llama.cpp's own, which is 1 for deepseek2 and elsewhere
    # (1 + slope) / (1 + slope * on_all).
    if architecture != "deepseek2":
        factor = rope.amplitude * (1 + slope * on_all) / (1 + slope)
    return {LOG_MULTIPLIER_KEY: float(f"{on_all / 10:.12g}"), **_amplitude_key(factor)}


def converted_file(setting: Setting) -> Gguf:
    """The file that llama.cpp's converter makes of a checkpoint: types that it does not know are
    dropped, and keys that nobody reads.
    """
    architecture = architecture_of(setting.family)
    kinds = tuple(
        replace(kind, rope=_converted_rope(kind.rope, architecture)) if kind.rope else kind
        for kind in setting.kinds
    )
    return gguf_of(replace(setting, kinds=kinds))


def _converted_rope(rope: Rope, architecture: str) -> Rope:
    """RoPE of one kind of layers in the converted file."""
    if rope.kind in DROPPED_TYPES:
        return replace(rope, kind="default", factor=1.0)
    if rope.kind != "yarn":
        return rope
    # llama.cpp always rounds YaRN's bounds, and the file has no mix.
    rope = replace(rope, truncate=True, mix=1.0, **_converted_factors(rope, architecture))
    return (
        rope
        if llama_cpp_reads(architecture, BETA_FAST_KEY)
        else replace(rope, beta_fast=32.0, beta_slow=1.0)  # its defaults, without the keys
    )


def _converted_factors(rope: Rope, architecture: str) -> dict:
    """Fields of `rope` that change in the converter's file: its factors of YaRN are those that the
    type itself gives, or mscale_all_dim in families for which the converter writes it.

    `amplitude` is on cos and sin, `sharper` on all logits of latent attention, turned or not.
    """
    usual = usual_amplitude(rope)
    # Other than latent attention, of which llama.cpp multiplies all logits.
    if not rope.unturned_beside or architecture not in FACTS["gguf_latent"]:
        if llama_cpp_reads(architecture, LOG_MULTIPLIER_KEY):
            return {}  # the file has mscale_all_dim, and so the same factors
        return {"amplitude": usual}
    root = math.sqrt(rope.sharper)  # the factor of mscale_all_dim
    has_mscale_all_dim = root != 1 and llama_cpp_reads(architecture, LOG_MULTIPLIER_KEY)
    # llama.cpp multiplies all logits by (amplitude * root)^2, without the key by amplitude^2. Those
    # of the turned channels have amplitude^2 of cos and sin besides.
    if not has_mscale_all_dim:
        return {"amplitude": usual, "sharper": usual**2}
    if architecture == "deepseek2":  # whose factor on cos and sin is 1 with the key; sharper stays
        return {"amplitude": 1.0}
    return {"amplitude": usual / root, "sharper": usual**2}


def keys_over_file(setting: Setting, before: Setting) -> dict:
    """Keys of RoPE that give the setting when they are laid over the file of the checkpoint. Raises
    CannotExpress where none do.
    """
    model = gguf_of(setting)
    file = converted_file(before)
    _check_divisors(model, file)
    keys = dict(model.keys)
    turned = keys["rope.dimension_count"]
    if file.keys.get("rope.dimension_count", turned) != turned:
        raise CannotExpress("the file fixes which channels turn")
    factor = keys.get(AMPLITUDE_KEY, 1.0)
    for rope in _other_ropes(setting):
        if not math.isclose(rope.amplitude, factor * usual_amplitude(rope), rel_tol=1e-6):
            raise CannotExpress("its attn_factor reaches sliding layers too")
    for key in (FACTOR_KEY, AMPLITUDE_KEY):
        if key in file.keys:
            keys.setdefault(key, 1.0)  # undoes that of the file
    # Sizes stay as the file has them, the number of channels that turn too, as is checked above.
    return {
        key: value
        for key, value in keys.items()
        if key.startswith("rope.") and key != "rope.dimension_count"
    }


def _check_divisors(model: Gguf, file: Gguf) -> None:
    """Raise CannotExpress if the file has divisors that are not those of the model, since they
    stay.
    """
    lists = (
        (model.divisors, file.divisors),
        (model.long, file.long),
        (model.short, file.short),
    )
    for divisors, of_file in lists:
        same = len(divisors) == len(of_file) and np.allclose(divisors, of_file, rtol=1e-9)
        if of_file and not same:
            raise CannotExpress("the file's own divisors stay")


def _other_ropes(setting: Setting) -> list[Rope]:
    """RoPE of sliding layers where the first kind is full, or the other way round."""
    first, *others = setting.turning
    first_slides = first.name.startswith(SLIDING)
    return [kind.rope for kind in others if kind.name.startswith(SLIDING) != first_slides]


def flag_words(setting: Setting, before: Setting, reach: float | None) -> str:
    """Flags over the file that llama.cpp's converter makes of the checkpoint as it is.

    `before`: the checkpoint's own setting; `reach`: tokens of context to ask for, None for the
    file's."""
    # Of the layers with the widest view: flags do not reach sliding ones.
    rope, rope_before = setting.turning[0].rope, before.turning[0].rope
    if len(setting.kinds) > 1 and _sliding_kinds(setting) != _sliding_kinds(before):
        raise CannotExpress("its flags do not reach sliding layers")
    length = f" -c {int_if_whole(reach)}" if reach else ""
    if rope.kind not in TYPES_OF_FLAGS or rope.divisors:
        # The file holds the checkpoint's own scaling, but for types that the converter drops.
        if rope != rope_before or rope.kind in DROPPED_TYPES:
            missing = "list of divisors" if rope.divisors else rope.kind
            raise CannotExpress(f"its flags have no {missing}")
        architecture_of(setting.family)  # raises for a family that has no file
        words = "none: the file holds its divisors"
        return f"{words}, only{length}" if length else words
    if rope_before.divisors or rope_before.kind in ("llama3", "longrope"):
        raise CannotExpress("the file's own divisors stay, whatever the flags say")
    flags = _flags_of_keys(rope, keys_over_file(setting, before), architecture_of(setting.family))
    return " ".join(f"{flag} {_typed_value(value)}" for flag, value in flags.items()) + length


def _sliding_kinds(setting: Setting) -> list[LayerKind]:
    """Kinds of sliding layers, whatever words they have in a config.json."""
    return [replace(kind, mapping={}) for kind in setting.kinds if kind.name.startswith(SLIDING)]


def _flags_of_keys(rope: Rope, keys: dict, architecture: str) -> dict[str, str | float]:
    """{flag of llama.cpp: its value} for keys of a file."""
    flags = {"--rope-scaling": keys.get(TYPE_KEY, "none")}
    # Without a type, a factor of 1 undoes that of the file, as "none" does.
    if TYPE_KEY in keys and FACTOR_KEY in keys:
        flags["--rope-scale"] = keys[FACTOR_KEY]
    if TYPE_KEY in keys and ORIGINAL_KEY in keys:
        flags["--yarn-orig-ctx"] = keys[ORIGINAL_KEY]
    if rope.kind == "yarn":
        flags |= {"--yarn-beta-slow": rope.beta_slow, "--yarn-beta-fast": rope.beta_fast}
        if rope.mix != 1:
            flags["--yarn-ext-factor"] = rope.mix
    factors = [
        f"{architecture}.{key}=float:{keys[key]:.10g}"
        for key in (LOG_MULTIPLIER_KEY, AMPLITUDE_KEY)
        if key in keys
    ]
    if factors:
        flags["--override-kv"] = ",".join(factors)
    flags["--rope-freq-base"] = rope.base
    return flags


def _typed_value(value: str | float) -> str:
    """Value of a flag as it is typed."""
    return value if isinstance(value, str) else f"{value:.10g}"


def key_words(setting: Setting, before: Setting) -> str:
    """Keys of a GGUF file; divisors are tensors, which only the converter writes."""
    model = gguf_of(setting)
    rope = setting.turning[0].rope
    architecture = model.architecture
    other_betas = (rope.beta_fast, rope.beta_slow) != (32, 1)  # YaRN's defaults
    # mix is yarn_ext_factor, which is never written here, as only files of grok have it.
    if rope.kind == "yarn" and (
        rope.mix != 1 or (other_betas and not llama_cpp_reads(architecture, BETA_FAST_KEY))
    ):
        raise CannotExpress(
            "it reads yarn_beta_fast, yarn_beta_slow and yarn_ext_factor in files of grok (betas:"
            " mistral3 too); use flags"
        )
    # The type none, where the setting has no other, takes back a scaling of the file.
    keys = {TYPE_KEY: "none", **keys_over_file(setting, before)}
    words = " ".join(f"{architecture}.{key}={value}" for key, value in keys.items())
    if model.divisors:
        words += " and the tensor rope_freqs.weight, which the converter writes"
    elif model.long:
        words += (
            " and the tensors rope_factors_long.weight and rope_factors_short.weight, which the"
            " converter writes"
        )
    return words
