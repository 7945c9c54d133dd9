"""Inventory of a results folder: method, progress, loss and size of each run.

Files are read as data: nothing is executed, and no lock is kept.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from posbench.common.defuse import printable
from posbench.common.errors import ConfigError, RunError
from posbench.common.files import locked, read_bytes, read_lines
from posbench.config.identity import CHOICE, method_name
from posbench.config.names import display_name
from posbench.results.run_metadata import (
    ABSENT,
    RunMetadata,
    distinguishing_keys,
    or_nothing,
    read_metadata,
    setting_words,
    text,
)
from posbench.results.search import files, run_directories
from posbench.runs.directory import Run

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

    @property
    def told(self) -> str:
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
    found: dict[Path, tuple[Entry, RunMetadata]] = {}
    for path in run_directories(folder):
        try:
            found[path] = describe_run(path)
        except FileNotFoundError:
            continue
        except (OSError, RunError) as error:
            damaged = Entry(
                path, "damaged", f"cannot be read ({getattr(error, 'strerror', error)})"
            )
            found[path] = damaged, RunMetadata(path, {}, {})
    words = _distinguishing_words([origin for _, origin in found.values()])
    return [
        replace(entry, encoding=entry.encoding + words[path]) for path, (entry, _) in found.items()
    ]


def describe_run(path: Path, held: bool = False) -> tuple[Entry, RunMetadata]:
    """Entry of the run in `path`, without the words that tell it from other runs, and its origin.

    `held` means that the caller has its lock. Raises OSError or RunError when it cannot be read.
    """
    run, origin = Run(path), read_metadata(path)
    there = [status for item, status in files(path) if item != run.lock_file]
    damage = "" if origin.whole or not run.config.exists() else "config.yaml cannot be read"
    if not origin.whole:
        origin = replace(origin, nested={})
    summary = or_nothing(run.read_summary) if run.finished else {}
    if run.finished and not run.config.exists():
        damage = "config.yaml is missing"
    if run.finished and not summary:
        damage = damage or "train.json cannot be read"
    last = (
        {}
        if run.finished
        else next((line for line in reversed(read_lines(run.train_log)) if "step" in line), {})
    )
    begun = "finished" if run.finished else "interrupted" if run.has_state or last else "unstarted"
    state = "damaged" if damage else "failed" if run.failure.exists() else begun
    loss = summary.get("validation_loss", last.get("validation_loss"))
    entry = Entry(
        path=path,
        state="running" if not held and locked(run.lock_file) else state,
        reason=damage or _failure(run),
        encoding=_encoding_name(origin.nested),
        seed=_whole_number(origin.config.get("seed")),
        steps=_whole_number(summary.get("steps", last.get("step"))) or 0,
        total=_whole_number(origin.config.get("train.steps")),
        loss=loss if isinstance(loss, float) else None,
        evaluations=len(run.eval_files()),
        size=sum(status.st_size for status in there),
        age=max(
            0.0,
            time.time() - max([status.st_mtime for status in there], default=path.stat().st_mtime),
        ),
        checkpoint=run.has_state,
    )
    return entry, origin


def _failure(run: Run) -> str:
    """First line of failure.txt, or ""."""
    try:
        said = read_bytes(run.failure)
    except (OSError, RunError):
        return ""
    return str(printable(said.split(b"\n", 1)[0][:10_000].decode(errors="replace").strip()))


def _whole_number(value: object) -> int | None:
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


def _encoding_settings(config: Mapping[str, object]) -> dict[str, object]:
    """Settings of an encoding; a method inside it by its name: encoding.scaling=yarn in place of
    the class behind _target_.
    """
    settings = {}
    for key, value in config.items():
        place, _, last = key.rpartition(".")
        if not key.startswith("encoding.") or last == CHOICE:
            continue
        if last == "_target_" and isinstance(value, str) and value:
            settings[place] = method_name(
                {"_target_": value, CHOICE: config.get(f"{place}.{CHOICE}")}
            )
        else:
            settings[key] = value
    return settings


def _distinguishing_words(origins: Sequence[RunMetadata]) -> dict[Path, str]:
    """{path: words such as " steps=1000"} that tell trainings of one encoding apart, seeds aside.
    Long ones omit common values.
    """
    groups: dict[object, list[RunMetadata]] = defaultdict(list)
    for origin in origins:
        groups[text(origin.config.get("encoding._target_"))].append(origin)
    words: dict[Path, str] = {}
    for group in groups.values():
        own = [_encoding_settings(origin.config) | origin.training for origin in group]
        differ = distinguishing_keys(own)
        usual = {
            key: ABSENT if ABSENT in them else statistics.mode(them) if len(differ) > 2 else None
            for key, them in differ.items()
        }
        for i, (origin, config) in enumerate(zip(group, own, strict=True)):
            said = setting_words(config, list(differ))
            words[origin.path] = "".join(
                word for key, word in said.items() if differ[key][i] != usual[key]
            )
    return words
