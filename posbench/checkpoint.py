"""Weights and resumable state on disk: verified when read, never half-written."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import nn

from posbench.errors import RunError
from posbench.files import atomic_path, sha256_file, write_atomic

HEADER = 65  # the body's SHA-256 in hex and a newline


def save_state(path: Path, model: nn.Module, optimizers: list[torch.optim.Optimizer], step: int, extra: dict) -> None:
    """Write all that an exact resume needs: weights, optimizer states, the number of finished steps, and `extra` (plain values, tensors).

    The file is the SHA-256 of what follows as a line of hex, then torch.save's bytes.
    """
    body = io.BytesIO()
    state = {"model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers], "step": step, "extra": extra}
    torch.save(state, body)
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        file.write(hashlib.sha256(body.getbuffer()).hexdigest().encode() + b"\n")
        file.write(body.getbuffer())


def load_state(path: Path, model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> tuple[int, dict]:
    """Load `path` into `model` and `optimizers`; returns the number of finished steps and `extra`.

    Raises RunError when the file is damaged or belongs to another model.
    """
    content = memoryview(Path(path).read_bytes())
    if hashlib.sha256(content[HEADER:]).hexdigest().encode() + b"\n" != content[:HEADER]:
        raise RunError(
            f"{path} is damaged (its content does not match its checksum): delete it, and training starts again from the beginning."
        )
    # On the CPU first: load_state_dict moves each tensor to its parameter's device, and AdamW's step counters stay where they belong.
    state = torch.load(io.BytesIO(content[HEADER:]), map_location="cpu", weights_only=True)
    try:
        model.load_state_dict(state["model"])
        for optimizer, values in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(values)
    except (RuntimeError, ValueError, KeyError) as error:
        reason = _first_difference(error)
        raise RunError(f"{path} belongs to another model ({reason}): delete it, and training starts again from the beginning.") from error
    return state["step"], state["extra"]


def save_weights(path: Path, model: nn.Module) -> str:
    """Write the weights as safetensors (a tied matrix once); returns the file's SHA-256 in hex."""
    with atomic_path(path) as temporary:
        save_model(model, str(temporary))
        return sha256_file(temporary)


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
        raise RunError(f"{path} belongs to another model ({_first_difference(error)}): {remedy}.") from error


def truncate_log(path: Path, step: int) -> None:
    """Drop the lines of a JSON-lines log that are later than `step` or broken, so that a resumed run logs each step once."""
    if not path.is_file():
        return
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    kept = [line for line in lines if _step_of(line) <= step]
    if kept != lines:
        write_atomic(path, "".join(kept))


def _step_of(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (json.JSONDecodeError, KeyError, TypeError):
        return float("inf")


def _first_difference(error: Exception) -> str:
    """The first named difference of load_state_dict's long message, which heads its list with the class name."""
    lines = [line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()]
    return lines[1] if len(lines) > 1 else lines[0]
