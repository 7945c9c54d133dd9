"""Resumable state of a training on disk: verified when read, never half-written.

There are two generations, state.pt and state.previous.pt. The older one is replaced only after the
newer one was read back."""

import hashlib
import io
import json
import os
import pickle
import sys
from pathlib import Path

import torch
from torch import nn

from posbench.common.errors import RunError
from posbench.common.files import atomic_path, opened, write_atomic
from posbench.model.weights import first_difference
from posbench.runs.directory import previous_generation

HEADER_BYTES = 65  # the body's SHA-256 in hex and a newline


def save_state(
    path: Path, model: nn.Module, optimizers: list[torch.optim.Optimizer], step: int, extra: dict
) -> None:
    """Write everything for an exact resume: weights, optimizer states, the number of finished
    steps, `extra` (plain values, tensors).

    The file holds the SHA-256 of the body as a line of hex, then the body: torch.save's bytes. It
    is read back before it replaces the existing state, which becomes the previous one. Raises
    RunError if the disk is full or returns other bytes; both existing states are then unchanged.
    """
    body = io.BytesIO()
    state = {
        "model": model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "step": step,
        "extra": extra,
    }
    torch.save(state, body)
    with atomic_path(path) as temporary:
        with open(temporary, "wb") as file:
            file.write(hashlib.sha256(body.getbuffer()).hexdigest().encode() + b"\n")
            file.write(body.getbuffer())
            file.flush()
            os.fsync(file.fileno())
            if hasattr(os, "posix_fadvise"):
                # Empty the page cache, so that reading back reads the disk.
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        damage = _damage(temporary)
        if damage:
            raise RunError(
                f"The state written to {path} {damage}: the previous state is kept; check the disk,"
                " then run again."
            )
        if path.exists():
            os.replace(path, previous_generation(path))


def load_state(
    path: Path, model: nn.Module, optimizers: list[torch.optim.Optimizer]
) -> tuple[int, dict]:
    """Load `path` into `model` and `optimizers`. Returns the number of finished steps and `extra`.

    If it is damaged or missing, the previous state replaces it, with one line on stderr. Raises
    RunError, and leaves the files as they are, if neither is whole. Raises RunError too if the
    content is no state of this model."""
    _repair(path)
    content = memoryview(path.read_bytes())[HEADER_BYTES:]  # behind the checksum, which is verified
    older_name = previous_generation(path).name
    remedy = f"delete it and {older_name}, and training starts again from the beginning"
    # Load on the CPU: load_state_dict moves each tensor to its parameter's device, and AdamW's step
    # counters to where they belong.
    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise RunError(
            f"{path} holds more than tensors and plain values, which weights_only refuses, or is"
            f" not a state: {remedy}."
        ) from error
    try:
        model.load_state_dict(state["model"])
        for optimizer, values in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(values)
        return state["step"], state["extra"]
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        reason = first_difference(error)
        raise RunError(f"{path} belongs to another model ({reason}): {remedy}.") from error


def _repair(path: Path) -> None:
    """Replace a damaged or missing state by the previous one. Raises RunError if both are bad."""
    damage = _damage(path)
    if not damage:
        return
    older = previous_generation(path)
    if not older.exists():
        raise RunError(f"{path} {damage}: delete it, and training restarts from the beginning.")
    older_damage = _damage(older)
    if older_damage:
        raise RunError(
            f"{path} {damage}, and {older.name} {older_damage}: restore one of them, or delete"
            " both, and training starts again from the beginning."
        )
    print(f"{path} {damage}: going on from the state before it", file=sys.stderr, flush=True)
    os.replace(older, path)


def remove_state(path: Path) -> None:
    """Delete both generations, and temporary files of a process that was killed while writing
    one.
    """
    temporary = path.parent.glob(f".{path.stem}-*{path.suffix}")
    for file in (path, previous_generation(path), *temporary):
        file.unlink(missing_ok=True)


def _damage(path: Path) -> str:
    """Damage of a state's file, as the end of a sentence; "" if its checksum matches."""
    try:
        with opened(path) as file:
            header = file.read(HEADER_BYTES)
            checksum = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return "is missing"
    except RunError:
        return "is not a regular file"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if header != checksum.encode() + b"\n":
        return "is damaged (its content does not match its checksum)"
    return ""


def truncate_log(path: Path, step: int) -> None:
    """Delete the lines of a JSON-lines log that are later than `step` or broken, so that a resumed
    run logs each step once.
    """
    if not path.is_file():
        return
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    earlier = [line for line in lines if _step_of(line) <= step]
    if earlier != lines:
        write_atomic(path, "".join(earlier))


def _step_of(line: str) -> float:
    """Step of a line of a log; infinity for a broken line."""
    try:
        return json.loads(line)["step"]
    except (json.JSONDecodeError, KeyError, TypeError):
        return float("inf")
