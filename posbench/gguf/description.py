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

ARCHITECTURES = (
    "llama",
    "qwen2",
    "qwen3",
    "smollm3",
)  # named as transformers' model types; Mistral's files say llama
# {key below the architecture's name: key of config.json}
KEYS = {
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
USUAL_BASE = 10000.0  # llama.cpp's, where a file says none: files of Llama 2 of 2023 do not
# {key: the values that change nothing}; None stands for the width of a head.
SILENT = {
    "attention.value_length": (None,),
    "rope.dimension_count": (None,),
    "attention.causal": (True,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "tensor_data_layout": ("Meta AI original pth",),
}
SCALING = "rope.scaling."
OF_OTHERS = (
    "finetuned",
    *(
        f"yarn_{one}"
        for one in ("log_multiplier", "ext_factor", "attn_factor", "beta_fast", "beta_slow")
    ),
)
SCALINGS = {
    SCALING + one
    for one in ("type", "factor", "original_context_length", "attn_factor", *OF_OTHERS)
}
FACTORS = "rope_freqs.weight"


def describe(file: GgufFile) -> dict:
    """Keys of config.json for the model in a GGUF file. Raises ConfigError for a model that is not
    exactly this one.
    """
    architecture = file.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise Undescribed(
            f"{file.path} holds a model of architecture {shown(architecture)}: choose one of"
            f" {', '.join(ARCHITECTURES)}."
        )
    for key, wanted in (("general.type", "model"), ("split.count", 1)):
        if file.metadata.get(key, wanted) not in (wanted, 0):
            raise ConfigError(
                f"{file.path} has {key}={shown(file.metadata[key])} and is no complete model: merge"
                " split files into one."
            )
    prefix, said = f"{architecture}.", model_keys(file, architecture)
    missing = [
        key for key in ("context_length", "attention.layer_norm_rms_epsilon") if key not in said
    ]
    missing += [
        key for key in ("embedding_length", "attention.head_count") if not _positive(said.get(key))
    ]
    if missing:
        raise ConfigError(
            f"{file.path} lacks {' and '.join(prefix + key for key in missing)}: download it again."
        )
    width = said.get(
        "attention.key_length", said["embedding_length"] // said["attention.head_count"]
    )
    for key, value in said.items():
        known = key in KEYS or key in SCALINGS
        if not known and (
            key not in SILENT or value not in [width if one is None else one for one in SILENT[key]]
        ):
            raise ConfigError(
                f"{file.path} has {shown(prefix + key)}={shown(value)}, which this model lacks:"
                " choose another."
            )
    return {
        "rope_theta": USUAL_BASE,
        **_sizes(file, said),
        "model_type": architecture,
        "rope_scaling": _scaling(said, file),
    }


def sizes(file: GgufFile) -> dict:
    """Keys of config.json that a file of any architecture says of its sizes. Raises ConfigError for
    a scaling of RoPE.
    """
    said = model_keys(file, file.metadata.get("general.architecture"))
    if (factor := said.get(SCALING + "factor")) not in (None, 0.0, 1.0) or FACTORS in file.tensors:
        raise ConfigError(
            f"{file.path} has rope.scaling.factor={factor} or {FACTORS}, which transformers does"
            " not read: give safetensors."
        )
    return _sizes(file, said)


def _sizes(file: GgufFile, said: dict) -> dict:
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    return {
        "vocab_size": len(tokens) if isinstance(tokens, list) else None,
        **{theirs: said[ours] for ours, theirs in KEYS.items() if ours in said},
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
    }


def permuted_heads(file: GgufFile) -> dict[str, int]:
    """{last part of a tensor's name: heads} of those whose rows a GGUF file of Llama's kind stores
    permuted.
    """
    architecture = file.metadata.get("general.architecture")
    if architecture not in ("llama", "smollm3"):
        return {}
    heads = file.metadata[f"{architecture}.attention.head_count"]
    return {
        "attn_q": heads,
        "attn_k": _scalar(file.metadata.get(f"{architecture}.attention.head_count_kv", heads)),
    }


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def model_keys(file: GgufFile, architecture: str) -> dict:
    """Keys of a model below its architecture's name."""
    prefix = f"{architecture}."
    return {
        key.removeprefix(prefix): _scalar(value)
        for key, value in file.metadata.items()
        if key.startswith(prefix)
    }


def _scalar(value: object) -> object:
    """`value`, or the one number of an array whose layers are all alike."""
    if not isinstance(value, array):
        return value
    return value[0] if len(set(value)) == 1 else value.tolist()


def _scaling(said: dict, file: GgufFile) -> dict | None:
    """rope_scaling of the scaling that a file says, or of the divisors that it holds. Llama 3.1's
    are stored as divisors alone.
    """
    factor, sharper = said.get(SCALING + "factor"), said.get(SCALING + "attn_factor", 1.0)
    # llama.cpp (src/llama-model.cpp) takes a factor without a type as linear, and 0 as none.
    kind = said.get(SCALING + "type", "none" if factor in (None, 0.0, 1.0) else "linear")
    if kind == "none" and sharper == 1:
        return _divisor_scaling(file, said["context_length"]) if FACTORS in file.tensors else None
    whole = all(isinstance(one, float) and 0 < one < 1e6 for one in (factor, sharper))
    if (
        FACTORS in file.tensors
        or kind not in ("linear", "yarn")
        or not whole
        or (kind == "linear" and sharper != 1)
    ):
        beside = f" beside {FACTORS}" if FACTORS in file.tensors else ""
        what = (
            f"rope.scaling.type={shown(kind)} with factor={shown(factor)} and"
            f" attn_factor={shown(sharper)}{beside}"
        )
        raise ConfigError(
            f"{file.path} has {what}, which is not read: choose another, or the folder of"
            " safetensors it was made from."
        )
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    original = said.get(SCALING + "original_context_length")
    before = {} if original is None else {"original_max_position_embeddings": original}
    # llama.cpp multiplies its own 0.1 ln s + 1 by attn_factor; its bounds are 32 turns and 1.
    attention = (
        {}
        if sharper == 1
        else {"attention_factor": sharper * (0.1 * math.log(max(1.0, factor)) + 1)}
    )
    return {"rope_type": "yarn", "factor": factor, **before, **attention}


def _divisor_scaling(file: GgufFile, longest: object) -> dict | None:
    """rope_scaling of rope_freqs.weight: longrope with the same divisors at every length and no
    temperature.
    """
    divisors = numbers(file, FACTORS)
    if (
        divisors is None
        or not np.isfinite(divisors).all()
        or divisors.min() < 1
        or not _positive(longest)
    ):
        raise ConfigError(
            f"{file.path} has a {FACTORS} that is not a list of divisors of 1 or more: download it"
            " again."
        )
    largest = float(divisors.max())
    if largest == 1:
        return None
    exact = divisors.tolist()
    shared = {
        "factor": largest,
        "original_max_position_embeddings": longest / largest,
        "attention_factor": 1.0,
    }
    return {"rope_type": "longrope", "long_factor": exact, "short_factor": exact, **shared}
