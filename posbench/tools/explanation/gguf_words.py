"""One setting as keys of a GGUF file or flags of llama.cpp, and the file that its converter makes
of a checkpoint.
"""

import math
from dataclasses import replace

import numpy as np

from posbench.tools.explanation.facts import FACTS
from posbench.tools.explanation.frequencies import Rope, frequencies, plain, usual_amplitude
from posbench.tools.explanation.llama_cpp import SCALING, Gguf
from posbench.tools.explanation.rope_parameters import Cannot, short_number
from posbench.tools.explanation.settings import FULL, SLIDING, LayerKind, Setting

STATIC = ("default", "linear", "yarn")  # what flags of llama.cpp can say
DROPPED = ("dynamic", "proportional")  # types for which the converter writes nothing
TYPE = f"{SCALING}type"
FACTOR = f"{SCALING}factor"
ORIGINAL = f"{SCALING}original_context_length"
AMPLITUDE = f"{SCALING}attn_factor"
MULTIPLIER = f"{SCALING}yarn_log_multiplier"
BETA_FAST, BETA_SLOW = f"{SCALING}yarn_beta_fast", f"{SCALING}yarn_beta_slow"
KEYS_BEFORE = tuple(
    f"{name}." for name in (*FACTS["gguf_families"], *FACTS["gguf_alike"], *FACTS["gguf_other"])
)
ARCHITECTURES = {
    family: name for name, families in FACTS["gguf_families"].items() for family in families
}


def architecture(family: str) -> str:
    """llama.cpp's name for a family of transformers. Raises Cannot for one without any.

    >>> architecture("glm4_moe")
    'glm4moe'
    """
    if family in ARCHITECTURES:
        return ARCHITECTURES[family]
    if f"{family}." in KEYS_BEFORE:
        return family
    raise Cannot(f"its converter does not know {family}")


def reads(name: str, key: str) -> bool:
    """True if llama.cpp reads the key in files of an architecture."""
    return name in FACTS["gguf_read_by"][key]


def gguf_of(setting: Setting) -> Gguf:
    """Keys and tensors with which llama.cpp runs the setting. Raises Cannot for one that it cannot
    run from a file alone.
    """
    name = architecture(setting.family)
    rope = _full_rope(setting)
    layers = sum(len(kind.layers) for kind in setting.kinds)
    keys = {
        "context_length": short_number(setting.longest),
        "block_count": layers,
        "attention.key_length": rope.head_dim,
        "rope.dimension_count": rope.turned,
        "rope.freq_base": float(rope.base),
    }
    if rope.beside and name in FACTS["gguf_latent"]:
        keys["attention.key_length_mla"] = rope.head_dim + rope.beside
    keys |= _window_keys(setting, name, layers)
    if rope.kind in DROPPED:
        raise Cannot(f"it has no {rope.kind} scaling")
    if rope.kind == "longrope":
        original = short_number(rope.original)
        keys |= {**_amplitude(rope, name), TYPE: "longrope", ORIGINAL: original}
        return Gguf(name, keys, (), rope.long, rope.short)
    keys |= _scaling_keys(rope, name)
    keys |= _amplitude(rope, name)
    divisors = rope.divisors
    if rope.kind == "llama3":
        divisors = tuple((plain(rope) / frequencies(rope)).tolist())
    return Gguf(name, keys, divisors)


def _full_rope(setting: Setting) -> Rope:
    """RoPE of the full layers, or of the first kind that turns."""
    for kind in setting.turning:
        if kind.name.partition(",")[0] == FULL:
            return kind.rope
    return setting.turning[0].rope


def _scaling_keys(rope: Rope, name: str) -> dict:
    """Keys of linear and YaRN, but for factors on cos, sin and logits; {} of other types."""
    if rope.kind == "linear":
        return {TYPE: "linear", FACTOR: float(rope.factor)}
    if rope.kind != "yarn":
        return {}
    theta = frequencies(rope)
    rounded = frequencies(replace(rope, truncate=True))
    if not np.allclose(theta, rounded, rtol=1e-9, atol=0):
        raise Cannot("it always rounds YaRN's bounds (truncate)")
    keys = {TYPE: "yarn", FACTOR: float(rope.factor), ORIGINAL: short_number(rope.original)}
    if reads(name, BETA_FAST):
        keys |= {BETA_FAST: float(rope.beta_fast), BETA_SLOW: float(rope.beta_slow)}
    return keys


def _window_keys(setting: Setting, name: str, layers: int) -> dict:
    """Keys of sliding layers. Raises Cannot where they turn otherwise than full ones, and
    llama.cpp's way with them is not known.
    """
    has_pattern = name in FACTS["gguf_sliding_every"]
    apart = name in FACTS["gguf_apart"]
    keys = {}
    for kind in setting.kinds:
        if not kind.window:
            continue
        keys["attention.sliding_window"] = short_number(kind.window)
        if has_pattern:
            slides = [layer in kind.layers for layer in range(layers)]
            keys["attention.sliding_window_pattern"] = slides
            if kind.rope:
                keys["rope.freq_base_swa"] = float(kind.rope.base)
    ropes = {replace(kind.rope, longest=0) for kind in setting.turning}  # alike but for the length
    if len(ropes) > 1 and not has_pattern:
        raise Cannot("explain does not know how it turns the sliding layers of this family")
    by_sliding = {kind.name.startswith(SLIDING): kind.rope for kind in setting.turning}
    if len(by_sliding) > 1:
        full, sliding = by_sliding[False], by_sliding[True]
        if apart and sliding.kind != "default":
            raise Cannot("its sliding layers have no scaling in this family")
        if not apart and sliding != replace(full, base=sliding.base):
            raise Cannot("its sliding layers have the scaling of the others in this family")
    return keys


def _amplitude(rope: Rope, name: str) -> dict:
    """Keys for the factors on cos, sin and logits. Raises Cannot for factors that the architecture
    does not have.
    """
    if rope.kind == "yarn" and rope.beside and name in FACTS["gguf_latent"]:
        return _latent_keys(rope, name)
    if rope.sharper != 1:
        raise Cannot("it has no factor on all logits in this family")
    if rope.kind != "yarn":
        return _attn_factor(rope.amplitude)
    return _yarn_amplitude(rope, name)


def _yarn_amplitude(rope: Rope, name: str) -> dict:
    """Keys for YaRN's factor on cos and sin alone."""
    keys = _attn_factor(rope.amplitude / usual_amplitude(rope))
    return {MULTIPLIER: 0.0, **keys} if reads(name, MULTIPLIER) else keys


def _attn_factor(factor: float) -> dict:
    """Key for a factor on cos and sin beside that of the type; {} for 1."""
    return {} if math.isclose(factor, 1, rel_tol=1e-9) else {AMPLITUDE: factor}


def _latent_keys(rope: Rope, name: str) -> dict:
    """Keys that give latent attention both factors: mscale_all_dim, a tenth of which is stored, and
    rope.scaling.attn_factor.
    """
    slope = 0.1 * math.log(rope.factor)
    if slope <= 0:
        raise Cannot("YaRN with factor 1 has no factor on logits")
    on_all = (math.sqrt(rope.sharper) / rope.amplitude - 1) / slope
    if abs(on_all) < 1e-9:
        return _yarn_amplitude(rope, name)
    if not reads(name, MULTIPLIER):
        raise Cannot("it multiplies all logits by the factor on cos and sin, and has no other")
    factor = rope.amplitude
    if name != "deepseek2":  # where llama.cpp's own is 1, else (1 + slope) / (1 + slope * on_all)
        factor = rope.amplitude * (1 + slope * on_all) / (1 + slope)
    return {MULTIPLIER: float(f"{on_all / 10:.12g}"), **_attn_factor(factor)}


def converted(setting: Setting) -> Gguf:
    """The file that llama.cpp's converter makes of a checkpoint: types that it does not know are
    dropped, and keys that nobody reads.
    """
    name = architecture(setting.family)
    kinds = tuple(
        replace(kind, rope=_converted_rope(kind.rope, name)) if kind.rope else kind
        for kind in setting.kinds
    )
    return gguf_of(replace(setting, kinds=kinds))


def _converted_rope(rope: Rope, name: str) -> Rope:
    """RoPE of one kind of layers in the converted file."""
    if rope.kind in DROPPED:
        return replace(rope, kind="default", factor=1.0)
    if rope.kind != "yarn":
        return rope
    # llama.cpp always rounds YaRN's bounds, and the file has no mix.
    rope = replace(rope, truncate=True, mix=1.0, **_converted_factors(rope, name))
    return rope if reads(name, BETA_FAST) else replace(rope, beta_fast=32.0, beta_slow=1.0)


def _converted_factors(rope: Rope, name: str) -> dict:
    """Factors of YaRN that remain of a checkpoint's: those of mscale_all_dim, in families for which
    the converter writes it.
    """
    usual = usual_amplitude(rope)
    if not rope.beside or name not in FACTS["gguf_latent"]:
        return {} if reads(name, MULTIPLIER) else {"amplitude": usual}
    root = math.sqrt(rope.sharper)
    if root == 1 or not reads(name, MULTIPLIER):
        return {"amplitude": usual, "sharper": usual**2}
    if name == "deepseek2":
        return {"amplitude": 1.0}
    return {"amplitude": usual / root, "sharper": usual**2}


def over_file(setting: Setting, before: Setting) -> dict:
    """Keys of RoPE that give the setting when they are laid over the file of the checkpoint. Raises
    Cannot where none do.
    """
    model = gguf_of(setting)
    file = converted(before)
    _check_divisors(model, file)
    keys = model.keys
    turned = keys["rope.dimension_count"]
    if file.keys.get("rope.dimension_count", turned) != turned:
        raise Cannot("the file fixes which channels turn")
    factor = keys.get(AMPLITUDE, 1.0)
    for rope in _other_ropes(setting):
        if not math.isclose(rope.amplitude, factor * usual_amplitude(rope), rel_tol=1e-6):
            raise Cannot("its attn_factor reaches sliding layers too")
    for key in (FACTOR, AMPLITUDE):
        if key in file.keys:
            keys.setdefault(key, 1.0)  # undoes that of the file
    return {
        key: value
        for key, value in keys.items()
        if key.startswith("rope.") and key != "rope.dimension_count"
    }


def _check_divisors(model: Gguf, file: Gguf) -> None:
    """Raise Cannot if the file has divisors that are not those of the model, since they stay."""
    lists = (
        (model.divisors, file.divisors),
        (model.long, file.long),
        (model.short, file.short),
    )
    for divisors, of_file in lists:
        same = len(divisors) == len(of_file) and np.allclose(divisors, of_file, rtol=1e-9)
        if of_file and not same:
            raise Cannot("the file's own divisors stay")


def _other_ropes(setting: Setting) -> list[Rope]:
    """RoPE of sliding layers where the first kind is full, or the other way round."""
    first, *others = setting.turning
    first_slides = first.name.startswith(SLIDING)
    return [kind.rope for kind in others if kind.name.startswith(SLIDING) != first_slides]


def flag_words(setting: Setting, before: Setting, reach: float | None) -> str:
    """Flags over the file that llama.cpp's converter makes of the checkpoint as it is."""
    rope, rope_before = setting.turning[0].rope, before.turning[0].rope
    if len(setting.kinds) > 1 and _sliding(setting) != _sliding(before):
        raise Cannot("its flags do not reach sliding layers")
    length = f" -c {short_number(reach)}" if reach else ""
    if rope.kind not in STATIC or rope.divisors:
        if rope != rope_before or rope.kind in DROPPED:
            missing = "list of divisors" if rope.divisors else rope.kind
            raise Cannot(f"its flags have no {missing}")
        architecture(setting.family)
        words = "none: the file holds its divisors"
        return f"{words}, only{length}" if length else words
    if rope_before.divisors or rope_before.kind in ("llama3", "longrope"):
        raise Cannot("the file's own divisors stay, whatever the flags say")
    flags = _flags(rope, over_file(setting, before), architecture(setting.family))
    return " ".join(f"{flag} {_typed(value)}" for flag, value in flags.items()) + length


def _sliding(setting: Setting) -> list[LayerKind]:
    """Kinds of sliding layers, whatever words they have in a config.json."""
    return [replace(kind, mapping={}) for kind in setting.kinds if kind.name.startswith(SLIDING)]


def _flags(rope: Rope, keys: dict, name: str) -> dict[str, str | float]:
    """{flag of llama.cpp: its value} for keys of a file."""
    flags = {"--rope-scaling": keys.get(TYPE, "none")}
    if TYPE in keys and FACTOR in keys:
        flags["--rope-scale"] = keys[FACTOR]
    if TYPE in keys and ORIGINAL in keys:
        flags["--yarn-orig-ctx"] = keys[ORIGINAL]
    if rope.kind == "yarn":
        flags |= {"--yarn-beta-slow": rope.beta_slow, "--yarn-beta-fast": rope.beta_fast}
        if rope.mix != 1:
            flags["--yarn-ext-factor"] = rope.mix
    factors = [
        f"{name}.{key}=float:{keys[key]:.10g}" for key in (MULTIPLIER, AMPLITUDE) if key in keys
    ]
    if factors:
        flags["--override-kv"] = ",".join(factors)
    flags["--rope-freq-base"] = rope.base
    return flags


def _typed(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.10g}"


def key_words(setting: Setting, before: Setting) -> str:
    """Keys of a GGUF file; divisors are tensors, which only the converter writes."""
    model = gguf_of(setting)
    rope = setting.turning[0].rope
    name = model.architecture
    own_betas = (rope.beta_fast, rope.beta_slow) != (32, 1)
    if rope.kind == "yarn" and (rope.mix != 1 or (own_betas and not reads(name, BETA_FAST))):
        raise Cannot(
            "it reads yarn_beta_fast, yarn_beta_slow and yarn_ext_factor in files of grok (betas:"
            " mistral3 too); use flags"
        )
    keys = {TYPE: "none", **over_file(setting, before)}
    words = " ".join(f"{name}.{key}={value}" for key, value in keys.items())
    if model.divisors:
        words += " and the tensor rope_freqs.weight, which the converter writes"
    elif model.long:
        words += (
            " and the tensors rope_factors_long.weight and rope_factors_short.weight, which the"
            " converter writes"
        )
    return words
