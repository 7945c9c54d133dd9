"""Inventory of a results folder: method, progress, loss and size of each run.

Files are read as data: nothing is executed, and no lock is kept.
"""

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from posbench.common.defuse import printable
from posbench.common.errors import ConfigError, RunError
from posbench.common.files import is_locked, read_bytes, read_lines
from posbench.config.names import display_name
from posbench.results.distinguish import inventory_words
from posbench.results.run_metadata import (
    RunMetadata,
    read_metadata,
    read_or_empty,
)
from posbench.results.search import files_below, run_directories
from posbench.results.sweep_names import names_in_ledger, names_of_run
from posbench.runs.directory import Run

MOST_SHOWN = 10_000  # bytes of a failure's first line
# A file of the attempt that failed is older than failure.txt, but for clocks of other machines.
SAME_ATTEMPT_SECONDS = 1.0
STATES = ("finished", "running", "interrupted", "failed", "unstarted", "damaged")


@dataclass(frozen=True)
class Entry:
    """Run of the inventory: `steps` of `total` are trained, as far as its log says.

    `loss` is the validation loss in nats/token, `size` in bytes, `age` in seconds since the last
    change. `reason` explains a failure or a damaged file."""

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
    names: tuple[str, ...] = ()  # of the sweeps that it belongs to

    @property
    def state_in_words(self) -> str:
        """State in words."""
        if self.state == "interrupted" and not self.checkpoint:
            return "interrupted, no checkpoint yet"
        return f"{self.state}: {self.reason}" if self.reason else self.state

    @property
    def values(self) -> dict:
        """Values for a script: sizes in bytes, ages in seconds."""
        return {
            "run": self.path.name,
            **asdict(self),
            "path": str(self.path),
            "age": round(self.age),
        }


def list_runs(folder: Path) -> list[Entry]:
    """Runs directly inside a results folder, sorted by name. A run is recognized by its
    config.yaml, or by its name.

    An unreadable run is listed as such; one that is deleted meanwhile is left out. Raises RunError
    when the folder cannot be read."""
    entries: dict[Path, Entry] = {}
    runs: list[RunMetadata] = []
    for path in run_directories(folder):
        try:
            entry, metadata = describe_run(path)
        except FileNotFoundError:
            continue
        except (OSError, RunError) as error:
            reason = f"cannot be read ({getattr(error, 'strerror', error)})"
            entry = Entry(path, "damaged", reason)
            metadata = RunMetadata(path, {}, {})
        entries[path] = entry
        runs.append(metadata)
    words = inventory_words(runs)
    in_ledger = names_in_ledger(folder)
    listed = []
    for metadata in runs:
        entry = entries[metadata.path]
        names = printable(names_of_run(metadata, in_ledger))
        encoding = entry.encoding + words[metadata.path]
        listed.append(replace(entry, encoding=encoding, names=tuple(names)))
    return listed


def describe_run(path: Path, held: bool = False) -> tuple[Entry, RunMetadata]:
    """Entry of the run in `path`, without the words that tell it from other runs, and its metadata.

    `held` means that the caller has its lock. Raises OSError or RunError when it cannot be read.
    """
    run = Run(path)
    metadata = read_metadata(path)
    if not metadata.has_whole_config:  # half of a configuration would name another encoding
        metadata = replace(metadata, nested_config={})
    statuses = [status for item, status in files_below(path) if item != run.lock_file]
    changed = max([status.st_mtime for status in statuses], default=path.stat().st_mtime)
    summary = read_or_empty(run.read_summary) if run.finished else {}
    last = {} if run.finished else _last_logged(run)
    loss = summary.get("validation_loss", last.get("validation_loss"))
    damage = _damage_words(run, metadata, summary)
    if not held and is_locked(run.lock_file):
        state = "running"
    elif damage:
        state = "damaged"
    elif run.failure.exists() and not _went_on_after_failure(run):
        state = "failed"
    else:
        state = _progress_state(run, last)
    entry = Entry(
        path=path,
        state=state,
        reason=damage or (_failure_line(run) if state == "failed" else ""),
        encoding=_encoding_name(metadata.nested_config),
        seed=_int_or_none(metadata.config.get("seed")),
        steps=_int_or_none(summary.get("steps", last.get("step"))) or 0,
        total=_int_or_none(_last_step(metadata.config)),
        loss=loss if isinstance(loss, float) else None,
        evaluations=len(run.eval_files()),
        size=sum(status.st_size for status in statuses),
        age=max(0.0, time.time() - changed),
        checkpoint=run.has_state,
    )
    return entry, metadata


def _last_step(config: dict) -> object:
    """Step at which a training ends."""
    return config.get("train.step") or config.get("train.steps")


def _damage_words(run: Run, metadata: RunMetadata, summary: dict) -> str:
    """Sentence about a damaged or missing file, or ""."""
    if run.finished and not run.config.exists():
        return "config.yaml is missing"
    if run.config.exists() and not metadata.has_whole_config:
        return "config.yaml cannot be read"
    if run.finished and not summary:
        return "train.json cannot be read"
    return ""


def _last_logged(run: Run) -> dict:
    """Last line of a step in the log of a training, {} without any."""
    for line in reversed(read_lines(run.train_log)):
        if "step" in line:
            return line
    return {}


def _went_on_after_failure(run: Run) -> bool:
    """True for a training that a later attempt than that of failure.txt took further: that one was
    interrupted, since a failed one writes the file anew and a successful one deletes it.
    """
    if run.finished:
        return False
    failed_at = run.failure.stat().st_mtime
    progress = [path for path in (run.train_log, run.state, run.previous_state) if path.exists()]
    return any(path.stat().st_mtime > failed_at + SAME_ATTEMPT_SECONDS for path in progress)


def _progress_state(run: Run, last_line: dict) -> str:
    if run.finished:
        return "finished"
    return "interrupted" if run.has_state or last_line else "unstarted"


def _failure_line(run: Run) -> str:
    """First line of failure.txt, or ""."""
    try:
        output = read_bytes(run.failure)
    except (OSError, RunError):
        return ""
    first_line = output.split(b"\n", 1)[0][:MOST_SHOWN]
    return str(printable(first_line.decode(errors="replace").strip()))


def _int_or_none(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _encoding_name(config: dict) -> str:
    """Display name of the encoding; hf for a checkpoint of transformers, served of an engine, - if
    it is unknown.
    """
    if config.get("model", {}).get("checkpoint") and not config["model"].get("engine"):
        return "hf"
    try:
        return display_name("encoding", config.get("encoding", {}))
    except ConfigError:
        return "-"
