"""Inventory of a results folder: method, progress, loss and size of each run.

Files are read as data: nothing is executed, and no lock is kept.
"""

import contextlib
import io
import json
import os
import pickle
import time
import zipfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from posbench.common.defuse import printable
from posbench.common.errors import ConfigError, RunError
from posbench.common.files import LARGEST, locked, opened, read_bytes
from posbench.config.identity import method_name
from posbench.config.names import named
from posbench.runs.directory import Run
from posbench.runs.run_metadata import RunMetadata, distinguish, or_nothing, read_metadata, text
from posbench.runs.search import files, run_directories
from posbench.runs.yaml_file import WIDEST

STATES = ("finished", "running", "interrupted", "failed", "unstarted", "damaged")


@dataclass(frozen=True)
class Entry:
    """Run of the inventory: `steps` of `total` are trained, in an unfinished run those of its checkpoint, `saved`.

    `loss` is the validation loss in nats/token, `size` in bytes, `age` in seconds since the last change. `reason` explains a failure or
    a damaged file.
    """

    path: Path
    state: str
    reason: str
    encoding: str = "-"
    seed: int | None = None
    steps: int = 0
    total: int | None = None
    loss: float | None = None
    evaluations: int = 0
    size: int = 0
    age: float = 0.0
    checkpoint: bool = False
    saved: int | None = None

    @property
    def told(self) -> str:
        """State in words."""
        if self.state == "interrupted":
            none = "its checkpoint cannot be read" if self.checkpoint else "no checkpoint yet"
            return f"interrupted, {none if self.saved is None else f'resumes from step {self.saved}'}"
        return f"{self.state}: {self.reason}" if self.reason else self.state


def list_runs(folder: Path) -> list[Entry]:
    """Runs directly inside a results folder, sorted by name. A run is recognized by its config.yaml, or by its name.

    An unreadable run is listed as such; one that is deleted meanwhile is left out. Raises RunError when the folder cannot be read.
    """
    now, found, origins = time.time(), [], []
    for path in run_directories(folder):
        try:
            entry, origin = describe_run(path, now)
        except FileNotFoundError:
            continue
        except (OSError, RunError) as error:
            entry = Entry(path, "damaged", f"cannot be read ({getattr(error, 'strerror', error)})")
            origin = RunMetadata(path, {}, {})
        found.append(entry)
        origins.append(origin)
    words = _distinguishing_words(origins)
    return [replace(entry, encoding=entry.encoding + words[entry.path]) for entry in found]


def describe_run(path: Path, now: float, held: bool = False) -> tuple[Entry, RunMetadata]:
    """Entry of the run in `path`, without the words that tell it from other runs, and its origin.

    `held` means that the caller has its lock. Raises OSError or RunError when it cannot be read.
    """
    run, origin = Run(path), read_metadata(path)
    there = [status for item, status in files(path) if item != run.lock_file]
    damage = "" if origin.whole or not run.config.exists() else "config.yaml cannot be read"
    if not origin.whole:
        origin = replace(origin, nested={})
    config = origin.config
    summary = or_nothing(run.read_summary) if run.finished else {}
    if run.finished and not summary:
        damage = damage or "train.json cannot be read"
    last = _last_logged(run.train_log)
    running = not held and locked(run.lock_file)
    saved = None if run.finished else _whole_number(_saved_step(run))
    steps = summary.get("steps") if run.finished else last.get("step") if running else saved
    loss = summary.get("validation_loss", last.get("validation_loss"))
    entry = Entry(
        path=path,
        state="running" if running else _run_state(run, damage, run.has_state or bool(last)),
        reason=damage or _failure(run),
        encoding=_encoding_name(origin.nested),
        seed=_whole_number(config.get("seed")),
        steps=_whole_number(steps) or 0,
        total=_whole_number(config.get("train.steps")),
        loss=loss if isinstance(loss, float) else None,
        evaluations=len(run.eval_files()),
        size=sum(status.st_size for status in there),
        age=max(0.0, now - max([status.st_mtime for status in there], default=path.stat().st_mtime)),
        checkpoint=run.has_state,
        saved=saved,
    )
    return entry, origin


def _run_state(run: Run, damage: str, begun: bool) -> str:
    if damage:
        return "damaged"
    if run.failure.exists():
        return "failed"
    return "finished" if run.finished else "interrupted" if begun else "unstarted"


def _failure(run: Run) -> str:
    """First line of failure.txt, or ""."""
    try:
        said = read_bytes(run.failure)
    except (OSError, RunError):
        return ""
    return str(printable(said.split(b"\n", 1)[0][:10_000].decode(errors="replace").strip()))


def _last_logged(path: Path) -> dict:
    """Last complete line of a log that has a step, or {}."""
    try:
        with opened(path) as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 8192))
            lines = log.read().splitlines()
    except (OSError, RunError):
        return {}
    for line in reversed(lines):
        with contextlib.suppress(ValueError, RecursionError):
            values = json.loads(line)
            if isinstance(values, dict) and "step" in values:
                return values
    return {}


def _saved_step(run: Run) -> object:
    """Number of steps in the state that a training resumes from, the older one if the newer cannot be read; None without a state.

    A state is a checksum and a zip of torch. Its small pickle, which holds the step beside places of tensors, is read without its classes.
    """
    for path in (run.state, run.previous_state):
        with contextlib.suppress(Exception):  # zipfile and pickle raise a dozen kinds of errors for damage
            with opened(path) as file, zipfile.ZipFile(file) as state:
                (name,) = (name for name in state.namelist() if name.endswith("/data.pkl"))
                if state.getinfo(name).file_size <= LARGEST:
                    return _Values(io.BytesIO(state.read(name))).load()["step"]
    return None


class _Values(pickle.Unpickler):
    """Reader of the plain values of a pickle: every class and every tensor is an _Unread, so nothing of the file is executed."""

    def find_class(self, module: str, name: str) -> type:
        return _Unread

    def persistent_load(self, place: object) -> None:
        return None


class _Unread(dict):
    """Object in place of one that is not made; it takes the items of an OrderedDict."""

    def __init__(self, *arguments: object):
        super().__init__()

    def __setstate__(self, state: object) -> None: ...


def _whole_number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < WIDEST else None


def _encoding_name(config: dict) -> str:
    """Display name of the encoding; hf for a checkpoint of transformers, served of an engine, - if it is unknown."""
    if config.get("model", {}).get("checkpoint") and not config["model"].get("engine"):
        return "hf"
    try:
        return named("encoding", config.get("encoding", {}))
    except ConfigError:
        return "-"


def _short_setting(key: str, value: object) -> tuple[str, object]:
    """Setting of an encoding; a method inside it by its name: encoding.scaling=yarn in place of the class behind _target_."""
    if key.endswith("._target_") and isinstance(value, str) and value:
        return key.removesuffix("._target_"), method_name({"_target_": value})
    return key, value


def _distinguishing_words(origins: Sequence[RunMetadata]) -> dict[Path, str]:
    """{path: words such as " steps=1000"} that tell trainings of one encoding apart, seeds aside. Long ones omit common values."""
    groups: dict[object, list[RunMetadata]] = defaultdict(list)
    for origin in origins:
        groups[text(origin.config.get("encoding._target_"))].append(origin)
    words: dict[Path, str] = {}
    for group in groups.values():
        own = [
            dict(_short_setting(key, value) for key, value in origin.config.items() if key.startswith("encoding.")) | origin.training
            for origin in group
        ]
        said, _ = distinguish(own, most=2)
        words |= {origin.path: "".join(own.values()) for origin, own in zip(group, said, strict=True)}
    return words
