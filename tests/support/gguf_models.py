"""Small GGUF files, written by the package gguf from checkpoints of transformers as llama.cpp's
converter does.
"""

import json
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file

TOKENS = [
    *(f"<|{name}|>" for name in "abc"),
    *map(chr, range(33, 127)),
    *"Ġ¡¢£¤ĀāÐ½Ã©",
    "he",
    "Ġhe",
    "ll",
]
MERGES = ["h e", "Ġ he", "l l"]


def permuted(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of q or k as llama.cpp's converter stores them for Llama."""
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(weight.shape)


def quantized(weight: np.ndarray, kind: Kind) -> np.ndarray:
    """Bytes of a type. K-quants, which the package only reads, are random blocks whose factors are
    small.
    """
    try:
        return gguf.quantize(weight, kind)
    except NotImplementedError:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = np.random.default_rng(0).integers(
            0, 256, (weight.size // block, size), dtype=np.uint8
        )
        halves = {
            Kind.Q2_K: (80, 82),
            Kind.Q3_K: (108,),
            Kind.Q4_K: (0, 2),
            Kind.Q5_K: (0, 2),
            Kind.Q6_K: (208,),
        }
        for at in halves[kind]:
            blocks[:, at : at + 2] = np.array([1e-5], np.float16).view(np.uint8)
        return blocks.reshape(*weight.shape[:-1], -1)


def write_gguf(
    checkpoint: Path, kind: Kind = Kind.F32, metadata: dict | None = None, extra: dict | None = None
) -> Path:
    """GGUF file of a checkpoint's folder, its matrices quantised. `metadata` None leaves a key out;
    `extra` are more tensors.
    """
    config = json.loads((checkpoint / "config.json").read_text())
    arch = "llama" if config["model_type"] == "mistral" else config["model_type"]
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
    tokens = [*TOKENS, *(f"<pad{i}>" for i in range(config["vocab_size"] - len(TOKENS)))][
        : config["vocab_size"]
    ]
    described = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads["q"],
        "attention.head_count_kv": heads["k"],
        "attention.key_length": config.get("head_dim") or config["hidden_size"] // heads["q"],
        "attention.value_length": config.get("head_dim") or config["hidden_size"] // heads["q"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(config["rope_parameters"]["rope_theta"]),
        "vocab_size": config["vocab_size"],
    }
    described = {f"{arch}.{key}": value for key, value in described.items()}
    described |= {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(tokens) - 3),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        **(metadata or {}),
    }
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], config["num_hidden_layers"])
    file = checkpoint.parent / f"{checkpoint.name}.{kind.name}.gguf"
    writer = gguf.GGUFWriter(file, arch)
    for key, value in described.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif value is not None:
            types = {
                bool: writer.add_bool,
                int: writer.add_uint32,
                float: writer.add_float32,
                str: writer.add_string,
            }
            types[type(value)](key, value)
    for name, weight in load_file(checkpoint / "model.safetensors").items():
        if arch in ("llama", "smollm3") and ("q_proj" in name or "k_proj" in name):
            weight = permuted(weight, heads[name.split("_proj")[0][-1]])
        values, packed = weight.float().numpy(), weight.ndim == 2 and kind != Kind.F32
        name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(
            name, quantized(values, kind) if packed else values, raw_dtype=kind if packed else None
        )
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
