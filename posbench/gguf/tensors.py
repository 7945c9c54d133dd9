"""Tensors of a GGUF file under transformers' names, dequantised one at a time when read."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from posbench.common.errors import ConfigError
from posbench.common.files import opened
from posbench.config.typed_args import shown
from posbench.gguf.header import GgufFile, TensorEntry, readable

if TYPE_CHECKING:
    from torch import Tensor

FLOAT32 = 0  # number of the type of a GGUF file that is not quantised
WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
OF_LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


@dataclass(frozen=True)
class LazyTensor:
    """A tensor of a checkpoint: its shape, the name of its type, the call that reads it, and if
    what it reads is of 16 bits or more.
    """

    shape: list[int]
    dtype: str
    read: "Callable[[], Tensor]"
    floating: bool = True


def numbers(file: GgufFile, name: str) -> np.ndarray | None:
    """A list of float32 in a GGUF file, as float64; None for a tensor of another kind, or one cut
    short.
    """
    entry = file.tensors[name]
    count = math.prod(entry.shape)
    if (
        entry.kind != FLOAT32
        or len(entry.shape) != 1
        or not 0 < 4 * count <= file.size - entry.start
    ):
        return None
    found = np.frombuffer(_bytes(file, entry, 4 * count), "<f4")
    return found.astype(np.float64)


def gguf_tensors(file: GgufFile, permuted: dict[str, int]) -> dict[str, LazyTensor]:
    """{name in transformers: tensor} of a file, those of `permuted` put back in order. A tensor of
    no such name keeps its own.

    Raises ConfigError for a quantisation that the package gguf does not read, and for a tensor that
    the file does not hold whole."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    found = {}
    for name, entry in file.tensors.items():
        kind = next((kind for kind in GGMLQuantizationType if kind == entry.kind), None)
        if kind is None:
            raise ConfigError(
                f"{file.path} holds {shown(name)} as {entry.kind}, which is not supported: choose"
                " another."
            )
        block, size = GGML_QUANT_SIZES[kind]
        needed = math.prod(entry.shape) // block * size
        if entry.shape[-1] % block or not 0 < needed <= file.size - entry.start:
            lacking = (
                f"{shown(name)} is {list(entry.shape)} of {kind.name}, {needed:,} bytes from byte"
                f" {entry.start:,} of {file.size:,}"
            )
            raise ConfigError(
                f"{file.path} is not a complete GGUF file ({lacking}): download it again."
            )
        stem, _, part = name.rpartition(".")
        layer, _, last = stem.removeprefix("blk.").partition(".")
        theirs = (
            f"model.layers.{layer}.{OF_LAYER[last]}"
            if stem.startswith("blk.") and last in OF_LAYER
            else WHOLE.get(stem)
        )
        heads = permuted.get(last)
        if heads is not None and (heads < 1 or entry.shape[0] % (2 * heads)):
            raise ConfigError(
                f"{file.path} has {shown(name)} of {entry.shape[0]:,} rows for {heads:,} heads:"
                " download it again."
            )
        read = functools.partial(_dequantised, file, entry, needed, heads)
        found[f"{theirs}.{part}" if theirs else name] = LazyTensor(
            list(entry.shape), kind.name, read
        )
    return found


def _bytes(file: GgufFile, entry: TensorEntry, count: int) -> bytes:
    with readable(file.path), opened(file.path) as content:
        content.seek(entry.start)
        found = content.read(count)
    if len(found) < count:
        raise ConfigError(
            f"{file.path} was truncated while it was read: run the same command again."
        )
    return found


def _dequantised(file: GgufFile, entry: TensorEntry, count: int, heads: int | None) -> "Tensor":
    import torch
    from gguf import GGMLQuantizationType, dequantize

    content = np.frombuffer(_bytes(file, entry, count), np.uint8)
    kind = GGMLQuantizationType(entry.kind)
    try:
        values = dequantize(content.reshape(*entry.shape[:-1], -1), kind).astype(
            np.float32, copy=True
        )
    except NotImplementedError as error:
        raise ConfigError(
            f"{file.path} holds weights as {kind.name}, which is not supported: choose another."
        ) from error
    if heads is not None:
        values = values.reshape(heads, -1, 2, *entry.shape[1:]).swapaxes(1, 2).reshape(entry.shape)
    return torch.from_numpy(values)
