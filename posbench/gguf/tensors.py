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
from posbench.gguf.header import GgufFile, TensorEntry, incomplete, readable

if TYPE_CHECKING:
    from torch import Tensor

FLOAT32 = 0  # number of the type of a GGUF file that is not quantised
# {stem in a GGUF file: stem in transformers}
NAMES_OF_MODEL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
NAMES_OF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True)
class LazyTensor:
    """A tensor of a checkpoint, and the call that reads it. `dtype` is the name of its type.

    `floating` tells whether what `read` gives is of 16 bits or more."""

    shape: list[int]
    dtype: str
    read: "Callable[[], Tensor]"
    floating: bool = True


def numbers(file: GgufFile, name: str) -> np.ndarray | None:
    """List of float32 in a GGUF file, as float64; None for another kind, or one cut short."""
    entry = file.tensors[name]
    size = 4 * math.prod(entry.shape)  # 4 bytes each
    is_list = entry.kind == FLOAT32 and len(entry.shape) == 1
    if not is_list or not 0 < size <= file.size - entry.start:
        return None
    return np.frombuffer(_tensor_bytes(file, entry, size), "<f4").astype(np.float64)


def gguf_tensors(file: GgufFile, permuted: dict[str, int]) -> dict[str, LazyTensor]:
    """{name in transformers: tensor} of a file, those of `permuted` put back in order.

    A tensor without a name in transformers keeps its own. Raises ConfigError for a quantisation
    that the package gguf does not read, and for a tensor that the file does not hold to its end."""
    tensors = {}
    for name, entry in file.tensors.items():
        kind, size = _quantisation(file, name, entry)
        heads = permuted.get(_name_in_layer(name))
        # each head has two halves of as many rows, which _dequantised puts apart
        if heads is not None and (heads < 1 or entry.shape[0] % (2 * heads)):
            raise ConfigError(
                f"{file.path} has {shown(name)} of {entry.shape[0]:,} rows for {heads:,} heads:"
                " download it again."
            )
        read = functools.partial(_dequantised, file, entry, size, heads)
        tensors[transformers_name(name)] = LazyTensor(list(entry.shape), kind, read)
    return tensors


def transformers_name(name: str) -> str:
    """Name in transformers of a tensor of a GGUF file; `name` itself where it has none there.

    >>> transformers_name("blk.3.attn_q.weight")
    'model.layers.3.self_attn.q_proj.weight'
    >>> transformers_name("output.weight")
    'lm_head.weight'
    """
    stem, _, end = name.rpartition(".")
    layer, _, part = stem.removeprefix("blk.").partition(".")
    if stem.startswith("blk.") and part in NAMES_OF_LAYER:
        return f"model.layers.{layer}.{NAMES_OF_LAYER[part]}.{end}"
    if stem in NAMES_OF_MODEL:
        return f"{NAMES_OF_MODEL[stem]}.{end}"
    return name


def _name_in_layer(name: str) -> str:
    """The attn_q of blk.3.attn_q.weight."""
    return name.rpartition(".")[0].removeprefix("blk.").partition(".")[2]


def _quantisation(file: GgufFile, name: str, entry: TensorEntry) -> tuple[str, int]:
    """(name of a tensor's type, its bytes in the file), such as ("Q8_0", 34816)."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        kind = GGMLQuantizationType(entry.kind)
    except ValueError:
        raise ConfigError(
            f"{file.path} holds {shown(name)} as {entry.kind}, which is not supported: choose"
            " another."
        ) from None
    values_of_block, bytes_of_block = GGML_QUANT_SIZES[kind]
    size = math.prod(entry.shape) // values_of_block * bytes_of_block
    if entry.shape[-1] % values_of_block or not 0 < size <= file.size - entry.start:
        raise incomplete(
            file.path,
            f"{shown(name)} is {list(entry.shape)} of {kind.name}, {size:,} bytes from byte"
            f" {entry.start:,} of {file.size:,}",
        )
    return kind.name, size


def _tensor_bytes(file: GgufFile, entry: TensorEntry, size: int) -> bytes:
    with readable(file.path), opened(file.path) as opened_file:
        opened_file.seek(entry.start)
        content = opened_file.read(size)
    if len(content) < size:
        raise ConfigError(
            f"{file.path} was truncated while it was read: run the same command again."
        )
    return content


def _dequantised(file: GgufFile, entry: TensorEntry, size: int, heads: int | None) -> "Tensor":
    """Float32 of a tensor of `size` bytes.

    With `heads` its rows alternate between the two halves of a head, and are put back apart."""
    import torch
    from gguf import GGMLQuantizationType, dequantize

    content = np.frombuffer(_tensor_bytes(file, entry, size), np.uint8)
    kind = GGMLQuantizationType(entry.kind)
    try:
        # the last dimension counts packed bytes here, and values in entry.shape
        values = dequantize(content.reshape(*entry.shape[:-1], -1), kind)
    except NotImplementedError as error:
        raise ConfigError(
            f"{file.path} holds weights as {kind.name}, which is not supported: choose another."
        ) from error
    # A copy, since values that are float32 in the file are a view of bytes that cannot be written.
    values = values.astype(np.float32, copy=True)
    if heads is not None:
        alternating = values.reshape(heads, -1, 2, *entry.shape[1:])
        values = alternating.swapaxes(1, 2).reshape(entry.shape)
    return torch.from_numpy(values)
