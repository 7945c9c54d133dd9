"""Inventory of a results folder: method, progress, loss and size of each run.

Files are read as data: nothing is executed, and no lock is kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from posbench.common.errors import RunError
from posbench.common.files import locked, opened, read_bytes, read_json
from posbench.config.identity import method_name
from posbench.runs.directory import Run
from posbench.runs.origins import Origin, clean, differing, flatten, has_config, text
from posbench.runs.yaml_file import WIDEST, read_yaml

RUN_ID = re.compile(r"[A-Za-z0-9_]+-\d+(\+\d+)*-s\d+-[0-9a-f]{10}")
STATES = ("finished", "running", "interrupted", "failed", "unstarted", "damaged")


@dataclass(frozen=True)
class Entry:
    """Run of the inventory: `steps` of `total` are trained; `loss` is the validation loss in nats/token; `size` is in bytes.

    `age` is in seconds since the last change. `reason` explains a failure or a damaged file."""

    path: Path
    state: str
    reason: str
    encoding: str
    seed: int | None
    steps: int
    total: int | None
    loss: float | None
    evaluations: int
    size: int
    age: float
    checkpoint: bool

    @property
    def told(self) -> str:
        """State in words."""
        if self.state == "interrupted":
            there = "resumable" if self.checkpoint else "no checkpoint yet"
            return f"interrupted{f' at step {self.steps}' if self.steps else ''}, {there}"
        return f"{self.state}: {self.reason}" if self.reason else self.state


def entries(folder: Path) -> list[Entry]:
    """Runs directly inside a results folder, sorted by name. A run is recognized by its config.yaml, or by its name.

    An unreadable run is listed as such; one that is deleted meanwhile is left out. Raises RunError when the folder cannot be read.
    """
    now, found = time.time(), []
    for path in run_directories(folder):
        try:
            found.append(_described(path, now))
        except FileNotFoundError:
            continue
        except (OSError, RunError) as error:
            found.append((_unreadable(path, error), Origin(path, {}, {})))
    words = _apart([origin for _, origin in found])
    return [replace(entry, encoding=entry.encoding + words[entry.path]) for entry, _ in found]


def entry_of(path: Path, now: float, held: bool = False) -> Entry:
    """Entry of the run in `path`, without the words that tell it from other runs.

    `held` means that the caller has its lock. Raises OSError when it cannot be read.
    """
    return _described(path, now, held)[0]


def run_directories(folder: Path) -> list[Path]:
    """Run directories in a results folder, without links. Raises RunError when the folder cannot be read."""
    try:
        with os.scandir(folder) as inside:
            kept = [Path(item) for item in inside if not item.name.startswith(".") and item.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"{folder} cannot be read ({error.strerror}): mend that, or name another results folder.") from error
    return sorted(path for path in kept if RUN_ID.fullmatch(path.name) or has_config(path))


def files(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield (path, status) of every file below a directory. Links and files deleted meanwhile are skipped.

    Raises OSError for a directory that cannot be read.
    """
    try:
        with os.scandir(path) as inside:
            found = list(inside)
    except FileNotFoundError:
        return
    for item in found:
        if item.is_dir(follow_symlinks=False):
            yield from files(Path(item))
        elif item.is_file(follow_symlinks=False):
            try:
                status = item.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            yield Path(item), status


def _described(path: Path, now: float, held: bool = False) -> tuple[Entry, Origin]:
    run = Run(path)
    there = [status for item, status in files(path) if item.name != ".lock"]
    config, damage = read_config(run)
    last = _last_line(run.train_log)
    summary, broken = _summary(run)
    checkpoint = run.state.exists() or run.state.with_suffix(f".previous{run.state.suffix}").exists()
    entry = Entry(
        path=path,
        state="running" if not held and locked(path / ".lock") else _state(run, damage or broken, checkpoint or bool(last)),
        reason=damage or broken or _failure(path),
        encoding=_encoding(config),
        seed=_number(config.get("seed")),
        steps=_number(summary.get("steps", last.get("step"))) or 0,
        total=_number((config.get("train") or {}).get("steps")),
        loss=_loss(summary.get("validation_loss", last.get("validation_loss"))),
        evaluations=len(run.eval_files()),
        size=sum(status.st_size for status in there),
        age=max(0.0, now - max([status.st_mtime for status in there], default=path.stat().st_mtime)),
        checkpoint=checkpoint,
    )
    try:
        provenance = clean(read_json(run.provenance))
    except (RunError, OSError):
        provenance = {}
    return entry, Origin(path, flatten(config), provenance if isinstance(provenance, dict) else {})


def _unreadable(path: Path, error: OSError | RunError) -> Entry:
    """Entry of a run that cannot be read."""
    nothing = {"encoding": "-", "seed": None, "steps": 0, "total": None, "loss": None, "evaluations": 0, "size": 0, "checkpoint": False}
    return Entry(path, "damaged", f"cannot be read ({getattr(error, 'strerror', error)})", **nothing, age=0.0)


def _state(run: Run, damage: str, begun: bool) -> str:
    if damage:
        return "damaged"
    if run.failure.exists():
        return "failed"
    return "finished" if run.finished else "interrupted" if begun else "unstarted"


def _failure(path: Path) -> str:
    """First line of failure.txt, or ""."""
    try:
        said = read_bytes(Run(path).failure)
    except (OSError, RunError):
        return ""
    return str(clean(said.split(b"\n", 1)[0][:10_000].decode(errors="replace").strip()))


def read_config(run: Run) -> tuple[dict, str]:
    """(config.yaml as plain values, reason why it is unusable or "")."""
    try:
        config = read_yaml(run.config)
    except FileNotFoundError:
        return {}, ""
    except (OSError, RunError):
        config = None
    if isinstance(config, dict) and all(isinstance(config.get(part), dict) for part in ("encoding", "model", "train", "data")):
        return clean(config), ""
    return {}, "config.yaml cannot be read"


def _summary(run: Run) -> tuple[dict, str]:
    if not run.finished:
        return {}, ""
    try:
        return clean(run.read_summary()), ""
    except (RunError, OSError):
        return {}, "train.json cannot be read"


def _last_line(path: Path) -> dict:
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


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < WIDEST else None


def _loss(value: object) -> float | None:
    return value if isinstance(value, float) else None


def _encoding(config: dict) -> str:
    checkpoint = (config.get("model") or {}).get("checkpoint")
    target = (config.get("encoding") or {}).get("_target_")
    return "hf" if checkpoint else method_name({"_target_": target}) if isinstance(target, str) and target else "-"


def _apart(origins: Sequence[Origin]) -> dict[Path, str]:
    """{path: words such as " steps=1000"} that tell trainings of one encoding apart, seeds aside, with as few keys as needed."""
    groups: dict[object, list[Origin]] = defaultdict(list)
    for origin in origins:
        groups[text(origin.config.get("encoding._target_"))].append(origin)
    words = {origin.path: "" for origin in origins}
    for group in groups.values():
        own = [{key: value for key, value in origin.config.items() if key.startswith("encoding.")} | origin.training for origin in group]
        found, telling = differing(own), []
        for key in found:
            if len(set(zip(*(found[name] for name in [*telling, key]), strict=True))) > len(
                set(zip(*map(found.get, telling), strict=True))
            ):
                telling.append(key)
        # Up to two keys are shown for every run. Of more, only values that differ from most runs are shown.
        usual = {key: statistics.mode(found[key]) for key in telling} if len(telling) > 2 else {}
        for i, origin in enumerate(group):
            said = ((key.split(".", 1)[-1], found[key][i]) for key in telling if found[key][i] != usual.get(key))
            words[origin.path] = "".join(f" {name}={value}" for name, value in said)
    return words
