"""Weights on disk: written atomically, verified when read."""

import json
import os
import textwrap
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model
from torch import Tensor, nn

from posbench.common.errors import RunError
from posbench.common.files import atomic_path, sha256_file

# Names of dtypes in the format. The order is the library's, which writes the tensors of the last
# dtype here first.
SAFETENSORS_DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.int64: "I64",
}
SIZE_BYTES = 8  # of the number in front: the header's size
ALIGNMENT = 8  # bytes: the header's size is filled up to a multiple of it


def save_weights(path: Path, model: nn.Module) -> str:
    """Write the weights as safetensors, a tied matrix once. Returns the file's SHA-256 in hex."""
    names: dict[tuple, str] = {}  # {memory of a tensor: its first name}
    tensors = {}
    aliases = {}  # {name of a tied tensor: name that it is written under}
    for name, tensor in sorted(model.state_dict().items()):
        # Empty tensors all have the same memory, without being tied.
        first_name = names.setdefault(_memory_of_tensor(tensor), name) if tensor.numel() else name
        if first_name == name:
            tensors[name] = tensor
        else:
            aliases[name] = first_name
    return write_safetensors(path, tensors, metadata=aliases)


def _memory_of_tensor(tensor: Tensor) -> tuple:
    """Identity of a tensor's memory, equal for tied tensors."""
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape


def load_weights(path: Path, model: nn.Module, sha256: str) -> None:
    """Load `path` into `model` after checking it against the `sha256` noted when it was written.

    Raises RunError when the file is missing, damaged, or belongs to another model.
    """
    check_weights(path, sha256)
    try:
        load_model(model, str(path))
    except (RuntimeError, SafetensorError) as error:
        raise RunError(
            f"{path} belongs to another model ({first_difference(error)}):"
            f" {_advice_to_retrain(path)}."
        ) from error


def check_weights(path: Path, sha256: str) -> None:
    """Raise RunError when a run's weights are missing, or are not those that were written."""
    if not Path(path).is_file():
        raise RunError(f"{path} is missing: {_advice_to_retrain(path)}.")
    actual = sha256_file(path)
    if actual != sha256:
        raise RunError(
            f"{path} is damaged (SHA-256 {actual[:12]}..., {sha256[:12]}... when it was written):"
            f" {_advice_to_retrain(path)}."
        )


def _advice_to_retrain(path: Path) -> str:
    """Way out for weights that are lost."""
    return f"delete {Path(path).parent} and run the same command again to retrain"


def first_difference(error: Exception) -> str:
    """First difference in load_state_dict's long message, whose first line is only the class name;
    shortened to 160 characters.
    """
    lines = [line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()]
    return textwrap.shorten(lines[1] if len(lines) > 1 else lines[0], 160, placeholder=" ...")


def write_safetensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> str:
    """Write tensors by name, one at a time, atomically and with the same bytes as safetensors.
    Returns the file's SHA-256 in hex.

    The library's own file writer makes a second file beside its target, which stays there if the
    process is killed. Its bytes in memory would be a second copy of all weights. Raises RunError
    when the disk is full or `path` cannot be written."""
    order = list(SAFETENSORS_DTYPES)  # the library writes tensors of the last one first
    names = sorted(tensors, key=lambda name: (-order.index(tensors[name].dtype), name))
    header: dict[str, dict] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in names:
        tensor = tensors[name]
        begin = end
        end += tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": SAFETENSORS_DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    header_bytes = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    header_bytes += b" " * (-len(header_bytes) % ALIGNMENT)
    with atomic_path(path) as temporary:
        with open(temporary, "wb") as file:
            file.write(len(header_bytes).to_bytes(SIZE_BYTES, "little") + header_bytes)
            for name in names:
                values = tensors[name].detach().cpu().contiguous().flatten()
                file.write(values.view(torch.uint8).numpy())
        assert os.path.getsize(temporary) == SIZE_BYTES + len(header_bytes) + end
        return sha256_file(temporary)
