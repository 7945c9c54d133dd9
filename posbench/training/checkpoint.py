"""Weights and resumable state on disk: verified when read, never half-written.

Of the state there are two generations, state.pt and state.previous.pt: the older one is given up only for a newer one that was read back.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import sys
import textwrap
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model
from torch import nn

from posbench.common.errors import RunError
from posbench.common.files import atomic_path, opened, sha256_file, write_atomic
from posbench.training.safetensors_file import write_safetensors

HEADER = 65  # the body's SHA-256 in hex and a newline


def save_state(path: Path, model: nn.Module, optimizers: list[torch.optim.Optimizer], step: int, extra: dict) -> None:
    """Write all that an exact resume needs: weights, optimizer states, the number of finished steps, and `extra` (plain values, tensors).

    The file is the SHA-256 of what follows as a line of hex, then torch.save's bytes. It is read back before it takes the place of the
    state that was there, which becomes the previous one. Raises RunError when the disk is full or gives back other bytes; both
    states are then as they were.
    """
    body = io.BytesIO()
    state = {"model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers], "step": step, "extra": extra}
    torch.save(state, body)
    with atomic_path(path) as temporary:
        with open(temporary, "wb") as file:
            file.write(hashlib.sha256(body.getbuffer()).hexdigest().encode() + b"\n")
            file.write(body.getbuffer())
            file.flush()
            os.fsync(file.fileno())
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # so that reading it back asks the disk
        if damage := _damage(temporary):
            raise RunError(f"What was written for {path} {damage}: the state before it is kept; look after the disk, then run again.")
        if path.exists():
            os.replace(path, previous(path))


def load_state(path: Path, model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> tuple[int, dict]:
    """Load `path` into `model` and `optimizers`; returns the number of finished steps and `extra`.

    A damaged or missing state gives way to the previous one, and one line on stderr says so. Raises RunError when neither is whole, or
    it belongs to another model; the files stay as they are.
    """
    older = previous(path)
    if damage := _damage(path):
        if not older.exists():
            raise RunError(f"{path} {damage}: delete it, and training starts again from the beginning.")
        if older_damage := _damage(older):
            raise RunError(
                f"{path} {damage}, and {older.name} {older_damage}: restore one of them, or delete both, and training starts again from "
                "the beginning."
            )
        print(f"{path} {damage}: going on from the state before it", file=sys.stderr, flush=True)
        os.replace(older, path)
    content = memoryview(path.read_bytes())[HEADER:]
    remedy = f"delete it and {older.name}, and training starts again from the beginning"
    # On the CPU first: load_state_dict moves each tensor to its parameter's device, and AdamW's step counters stay where they belong.
    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise RunError(
            f"{path} holds more than tensors and plain values, which weights_only refuses, or is no state at all: {remedy}."
        ) from error
    try:
        model.load_state_dict(state["model"])
        for optimizer, values in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(values)
        return state["step"], state["extra"]
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        reason = _first_difference(error)
        raise RunError(f"{path} belongs to another model ({reason}): {remedy}.") from error


def has_state(path: Path) -> bool:
    """Whether there is a state to go on from, or what is left of one."""
    return path.exists() or previous(path).exists()


def remove_state(path: Path) -> None:
    """Delete both generations, and what a process that was killed while writing left of another."""
    for file in (path, previous(path), *path.parent.glob(f".{path.stem}-*{path.suffix}")):
        file.unlink(missing_ok=True)


def previous(path: Path) -> Path:
    """Where the state before the one at `path` is kept: state.previous.pt."""
    return path.with_suffix(f".previous{path.suffix}")


def _damage(path: Path) -> str:
    """What is wrong with the file of a state; "" when it is what was written."""
    try:
        with opened(path) as file:
            noted, found = file.read(HEADER), hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return "is missing"
    except RunError:
        return "is no regular file"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return "" if noted == found.encode() + b"\n" else "is damaged (its content does not match its checksum)"


def save_weights(path: Path, model: nn.Module) -> str:
    """Write the weights as safetensors (a tied matrix once); returns the file's SHA-256 in hex."""
    state = model.state_dict()
    first: dict[object, str] = {}
    held = {name: first.setdefault(_memory(state[name]) or name, name) for name in sorted(state)}
    kept = {name: state[name] for name in held if held[name] == name}
    return write_safetensors(path, kept, {name: other for name, other in held.items() if other != name})


def _memory(tensor: torch.Tensor) -> tuple:
    """Where a tensor lies, the same for two that are tied; empty for one without elements."""
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
    return textwrap.shorten(lines[1] if len(lines) > 1 else lines[0], 160, placeholder=" ...")
