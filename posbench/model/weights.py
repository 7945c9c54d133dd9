"""Weights on disk: written atomically, verified when read."""

from __future__ import annotations

import textwrap
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model
from torch import nn

from posbench.common.errors import RunError
from posbench.common.files import sha256_file
from posbench.model.safetensors_file import write_safetensors


def save_weights(path: Path, model: nn.Module) -> str:
    """Write the weights as safetensors, a tied matrix once. Returns the file's SHA-256 in hex."""
    state = model.state_dict()
    first: dict[object, str] = {}
    held = {name: first.setdefault(_memory(state[name]) or name, name) for name in sorted(state)}
    kept = {name: state[name] for name in held if held[name] == name}
    return write_safetensors(path, kept, {name: other for name, other in held.items() if other != name})


def _memory(tensor: torch.Tensor) -> tuple:
    """Identity of a tensor's memory, equal for tied tensors; empty for a tensor without elements."""
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape) if tensor.numel() else ()


def load_weights(path: Path, model: nn.Module, sha256: str) -> None:
    """Load `path` into `model` after checking it against the `sha256` noted when it was written.

    Raises RunError when the file is missing, damaged, or belongs to another model.
    """
    remedy = f"delete {Path(path).parent} and run the same command again to train anew"
    if not Path(path).is_file():
        raise RunError(f"{path} is missing: {remedy}.")
    found = sha256_file(path)
    if found != sha256:
        raise RunError(f"{path} is damaged (SHA-256 {found[:12]}..., {sha256[:12]}... when it was written): {remedy}.")
    try:
        load_model(model, str(path))
    except (RuntimeError, SafetensorError) as error:
        raise RunError(f"{path} belongs to another model ({first_difference(error)}): {remedy}.") from error


def first_difference(error: Exception) -> str:
    """First difference in load_state_dict's long message, whose first line is only the class name; shortened to 160 characters."""
    lines = [line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()]
    return textwrap.shorten(lines[1] if len(lines) > 1 else lines[0], 160, placeholder=" ...")
