"""Description of a GGUF file's model in the keys of config.json. Torch-free.

Every key of the architecture must be known, so that nothing that changes the model is passed over:
transformers 5 ignores rope.scaling.* and rope_freqs.weight for Llama. What llama.cpp passes over in
these architectures (posbench/tools/explanation/facts.yaml) is passed over here too."""

import math
from array import array

import numpy as np

from posbench.common.errors import ConfigError, Undescribed
from posbench.config.typed_args import shown
from posbench.gguf.header import GgufFile
from posbench.gguf.tensors import numbers

# named as transformers' model types; Mistral's files say llama
ARCHITECTURES = ("llama", "qwen2", "qwen3", "smollm3")
# {key below the architecture's name: key of config.json}
CONFIG_KEYS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}
PERMUTED_ARCHITECTURES = ("llama", "smollm3")
USUAL_BASE = 10000.0  # llama.cpp's, where a file says none: files of Llama 2 of 2023 do not
HEAD_WIDTH = object()  # stands for a number of the file itself
# {key: the values that change nothing}
HARMLESS_VALUES = {
    "attention.value_length": (HEAD_WIDTH,),
    "rope.dimension_count": (HEAD_WIDTH,),
    "attention.causal": (True,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "tensor_data_layout": ("Meta AI original pth",),
}
SCALING = "rope.scaling."
PASSED_OVER_KEYS = (
    "finetuned",
    "yarn_log_multiplier",
    "yarn_ext_factor",
    "yarn_attn_factor",
    "yarn_beta_fast",
    "yarn_beta_slow",
)
READ_SCALING_KEYS = ("type", "factor", "original_context_length", "attn_factor")
KNOWN_SCALING_KEYS = {SCALING + key for key in (*READ_SCALING_KEYS, *PASSED_OVER_KEYS)}
DIVISORS_TENSOR = "rope_freqs.weight"
# LongRoPE's, of Phi-3 with 128,000 tokens and others
DIVISOR_TENSORS = (DIVISORS_TENSOR, "rope_factors_long.weight", "rope_factors_short.weight")
FACTORS_OF_NO_SCALING = (None, 0.0, 1.0)  # values of a factor of rope.scaling that scale nothing
LARGEST_FACTOR = 1e6  # of a scaling; any larger one is a damaged file


def describe(file: GgufFile) -> dict:
    """Keys of config.json for the model in a GGUF file.

    Raises ConfigError for a model that config.json and this model cannot describe exactly: an
    Undescribed one for another architecture, which transformers may have."""
    architecture = file.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise Undescribed(
            f"{file.path} holds a model of architecture {shown(architecture)}: choose one of"
            f" {', '.join(ARCHITECTURES)}."
        )
    # general.type may also be an adapter; a file that is no part of several says 0 or 1 of them
    for key, complete in (("general.type", ("model",)), ("split.count", (0, 1))):
        if file.metadata.get(key, complete[0]) not in complete:
            raise ConfigError(
                f"{file.path} has {key}={shown(file.metadata[key])} and is no complete model: merge"
                " split files into one."
            )
    keys = model_keys(file, architecture)
    _check_keys(keys, architecture, file)
    return {
        "rope_theta": USUAL_BASE,  # unless _stated_sizes reads another
        **_stated_sizes(file, keys),
        "model_type": architecture,
        "rope_scaling": _rope_scaling(keys, file),
    }


def sizes(file: GgufFile) -> dict:
    """Keys of config.json that a file of any architecture says of its sizes.

    transformers runs these models, so a scaling of RoPE, which it ignores, is a ConfigError."""
    keys = model_keys(file, file.metadata.get("general.architecture"))
    scalings = [
        f"rope.scaling.{key}={shown(keys[SCALING + key])}"
        for key in ("factor", "attn_factor")
        if keys.get(SCALING + key) not in FACTORS_OF_NO_SCALING
    ]
    scalings += [name for name in DIVISOR_TENSORS if name in file.tensors]
    if scalings:
        raise ConfigError(
            f"{file.path} has {' and '.join(scalings)}, which transformers does not read: give"
            " safetensors."
        )
    return _stated_sizes(file, keys)


def permuted_heads(file: GgufFile) -> dict[str, int]:
    """{last part of a tensor's name: heads} of tensors whose rows a file of Llama's kind permutes.

    Such as {"attn_q": 32, "attn_k": 8}. llama.cpp rotates neighbouring channels in those of
    PERMUTED_ARCHITECTURES, the halves of a head in others."""
    architecture = file.metadata.get("general.architecture")
    if architecture not in PERMUTED_ARCHITECTURES:
        return {}
    keys = model_keys(file, architecture)
    heads = keys["attention.head_count"]
    return {"attn_q": heads, "attn_k": keys.get("attention.head_count_kv", heads)}


def model_keys(file: GgufFile, architecture: str) -> dict:
    """{key: value} of the keys below an architecture's name, such as {"block_count": 32}.

    A value that a file lists for each layer is one where all layers are alike."""
    prefix = f"{architecture}."
    return {
        key.removeprefix(prefix): _single_value_if_alike(value)
        for key, value in file.metadata.items()
        if key.startswith(prefix)
    }


def _check_keys(keys: dict, architecture: str, file: GgufFile) -> None:
    """Raise ConfigError unless the keys are those of this model, with values that it has."""
    missing = [
        key for key in ("context_length", "attention.layer_norm_rms_epsilon") if key not in keys
    ]
    for key in ("embedding_length", "attention.head_count"):
        if not _is_positive_int(keys.get(key)):
            missing.append(key)
    if missing:
        names = " and ".join(f"{architecture}.{key}" for key in missing)
        raise ConfigError(f"{file.path} lacks {names}: download it again.")
    usual_width = keys["embedding_length"] // keys["attention.head_count"]
    head_width = keys.get("attention.key_length", usual_width)
    for key, value in keys.items():
        if key in CONFIG_KEYS or key in KNOWN_SCALING_KEYS:
            continue
        # HEAD_WIDTH stands for the width that this file's heads have anyway.
        harmless_values = [
            head_width if silent is HEAD_WIDTH else silent
            for silent in HARMLESS_VALUES.get(key, ())
        ]
        if value not in harmless_values:
            raise ConfigError(
                f"{file.path} has {shown(f'{architecture}.{key}')}={shown(value)}, which this"
                " model lacks: choose another."
            )


def _stated_sizes(file: GgufFile, keys: dict) -> dict:
    """Keys of config.json for sizes, tied embeddings and the BOS, from the `keys` of model_keys.

    Without a list of tokens vocab_size is None, as if a config.json did not have it."""
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    return {
        "vocab_size": len(tokens) if isinstance(tokens, list) else None,
        # may hold vocab_size
        **{CONFIG_KEYS[key]: value for key, value in keys.items() if key in CONFIG_KEYS},
        "tie_word_embeddings": "output.weight" not in file.tensors,  # the head's own matrix
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
    }


def _is_positive_int(value: object) -> bool:
    """True for a whole number above 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _single_value_if_alike(value: object) -> object:
    """`value`, or the one number of an array whose layers are all alike."""
    if not isinstance(value, array):
        return value
    return value[0] if len(set(value)) == 1 else value.tolist()


def _rope_scaling(keys: dict, file: GgufFile) -> dict | None:
    """rope_scaling of the scaling that a file says, or of the divisors that it holds.

    Llama 3.1's are stored as divisors alone."""
    factor = keys.get(SCALING + "factor")
    temperature = keys.get(SCALING + "attn_factor", 1.0)
    # llama.cpp (src/llama-model.cpp) takes a factor without a type as linear, and 0 as none.
    kind = keys.get(SCALING + "type", "none" if factor in FACTORS_OF_NO_SCALING else "linear")
    has_divisors = DIVISORS_TENSOR in file.tensors
    if kind == "none" and temperature == 1:
        return _rope_scaling_of_divisors(file, keys["context_length"]) if has_divisors else None
    valid = _is_factor(factor) and _is_factor(temperature)
    # config.json has no temperature for a linear scaling
    linear_and_more = kind == "linear" and temperature != 1
    if has_divisors or kind not in ("linear", "yarn") or not valid or linear_and_more:
        scaling = (
            f"rope.scaling.type={shown(kind)} with factor={shown(factor)} and"
            f" attn_factor={shown(temperature)}"
        )
        if has_divisors:
            scaling += f" beside {DIVISORS_TENSOR}"
        raise ConfigError(
            f"{file.path} has {scaling}, which is not read: choose another, or the folder of"
            " safetensors it was made from."
        )
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    scaling = {"rope_type": "yarn", "factor": factor}
    original = keys.get(SCALING + "original_context_length")
    if original is not None:
        scaling["original_max_position_embeddings"] = original
    if temperature != 1:
        # llama.cpp multiplies its own 0.1 ln s + 1, for s above 1, by attn_factor
        scaling["attention_factor"] = temperature * (0.1 * math.log(max(1.0, factor)) + 1)
    return scaling


def _is_factor(value: object) -> bool:
    """True for a factor by which a scaling or a temperature may multiply."""
    return isinstance(value, float) and 0 < value < LARGEST_FACTOR


def _rope_scaling_of_divisors(file: GgufFile, longest: object) -> dict | None:
    """rope_scaling of rope_freqs.weight: longrope, alike at every length and without temperature.

    None where all divisors are 1. A pair is slowed by the context's lengthening at most, so the
    training length is `longest`, the lengthened context, by the largest divisor."""
    divisors = numbers(file, DIVISORS_TENSOR)
    valid = divisors is not None and np.isfinite(divisors).all() and divisors.min() >= 1
    if not valid or not _is_positive_int(longest):
        raise ConfigError(
            f"{file.path} has a {DIVISORS_TENSOR} that is not a list of divisors of 1 or more:"
            " download it again."
        )
    largest = float(divisors.max())
    if largest == 1:
        return None
    return {
        "rope_type": "longrope",
        "long_factor": divisors.tolist(),
        "short_factor": divisors.tolist(),
        "factor": largest,
        "original_max_position_embeddings": longest / largest,
        "attention_factor": 1.0,
    }
