"""Writer of the safetensors format that holds one tensor at a time.

The library's own file writer makes a second file beside its target, which stays there if the process is killed. Its bytes in memory
would be a second copy of all weights.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from posbench.common.files import atomic_path, sha256_file

# Names of dtypes in the format. The order is the library's, which writes the tensors of the last dtype here first.
TYPES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int32: "I32", torch.float32: "F32", torch.float64: "F64", torch.int64: "I64",
}  # fmt: skip
ALIGNMENT = 8  # bytes: the header's size is filled up to a multiple of it


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Write tensors by name, atomically and with the same bytes as safetensors. Returns the file's SHA-256 in hex.

    Raises RunError when the disk is full or `path` cannot be written.
    """
    order = list(TYPES)
    names = sorted(tensors, key=lambda name: (-order.index(tensors[name].dtype), name))
    header, end = {"__metadata__": dict(metadata)} if metadata else {}, 0
    for name in names:
        tensor = tensors[name]
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    said = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    said += b" " * (-len(said) % ALIGNMENT)
    with atomic_path(path) as temporary:
        with open(temporary, "wb") as file:
            file.write(len(said).to_bytes(8, "little") + said)
            for name in names:
                file.write(tensors[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        assert os.path.getsize(temporary) == 8 + len(said) + end
        return sha256_file(temporary)
