"""Run: the directory of one training, its files, its lock and the reader of its configuration.
Nothing heavy is imported here.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

from posbench.common.errors import RunError
from posbench.common.files import json_text, read_bytes, read_json, write_atomic, write_json
from posbench.common.locks import hold
from posbench.runs.plain_yaml import read_yaml


def previous_generation(state: Path) -> Path:
    """Path of the generation before a training's state: state.previous.pt."""
    return state.with_suffix(f".previous{state.suffix}")


class Run:
    """Directory of one training. Its files are only written while `lock` is held."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.id = self.path.name
        self.config = self.path / "config.yaml"
        self.provenance = self.path / "provenance.json"
        self.train_log = self.path / "train.jsonl"
        self.weights = self.path / "model.safetensors"
        self.state = self.path / "state.pt"
        self.previous_state = previous_generation(self.state)
        self.summary = self.path / "train.json"
        self.evals = self.path / "evals"
        self.failure = self.path / "failure.txt"  # last output of a failed job
        self.lock_file = self.path / ".lock"
        self._lock = FileLock(self.lock_file)
        # (device, inode) of the lock file, while `lock` holds it
        self._locked_file: tuple[int, int] | None = None
        # Locks of directories that took the place of the locked one.
        self._later_locks = contextlib.ExitStack()
        # {config.yaml or provenance.json: its text, as this process wrote it}
        self._descriptions: dict[Path, str] = {}

    @property
    def files(self) -> tuple[Path, ...]:
        """Paths of all files directly in the directory, whether they are there or not."""
        return (
            self.config,
            self.provenance,
            self.failure,
            self.lock_file,
            self.train_log,
            self.summary,
            self.weights,
            self.path / "config.json",  # this and the next: of a model that transformers builds
            self.path / "generation_config.json",
            self.state,
            self.previous_state,
        )

    @property
    def finished(self) -> bool:
        """True when the training is complete, since train.json is written last; False also if it
        cannot be read.
        """
        return os.path.exists(self.summary)

    @property
    def has_config(self) -> bool:
        """True if the directory has a configuration; False also for an unreadable one."""
        return os.path.isfile(self.config)

    @property
    def has_state(self) -> bool:
        """True if there is a file of either generation of the training's state, damaged or not."""
        return self.state.exists() or self.previous_state.exists()

    def eval_path(
        self, protocol: str, extension: str, scale_attention: str, eval_hash: str
    ) -> Path:
        """Path of an evaluation's json, from names of methods. Its arrays lie beside it as .npz."""
        return self.evals / protocol / f"{extension}+{scale_attention}-{eval_hash[:8]}.json"

    def eval_files(self) -> list[Path]:
        """Paths of all evaluations on disk, sorted."""
        return sorted(path for path in self.evals.glob("*/*.json") if not path.name.startswith("."))

    @contextlib.contextmanager
    def lock(self, wait: bool = False) -> Iterator[None]:
        """Hold the lock of the run's directory, and make the directory if it is missing. See
        `hold`.
        """
        with hold(self._lock, f"working on {self.path}", wait), self._later_locks:
            self._locked_file = _file_number(self.lock_file)
            yield

    def hold_place(self) -> None:
        """Lock the directory again if the locked one was moved or deleted, since another process
        may then work in this path.

        Raises Busy if one does.
        """
        assert self._lock.is_locked
        if _file_number(self.lock_file) == self._locked_file:
            return
        self._later_locks.enter_context(
            hold(FileLock(self.lock_file), f"working on {self.path}", wait=False)
        )
        self._locked_file = _file_number(self.lock_file)
        print(
            f"{self.path} was moved or deleted while it was worked on: it is made again",
            file=sys.stderr,
            flush=True,
        )

    def discard(self) -> None:
        """Delete the directory of a training that was refused before its first step. A directory
        with other files stays.
        """
        assert self._lock.is_locked
        for path in (self.config, self.provenance, self.lock_file):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def write_config(self, raw: dict) -> None:
        from omegaconf import OmegaConf

        self._write_description(self.config, OmegaConf.to_yaml(OmegaConf.create(raw), resolve=True))

    def read_config(self) -> dict:
        """Resolved configuration of the training. Raises RunError when it is missing or damaged."""
        try:
            config = read_yaml(self.config)
        except OSError as error:
            raise RunError(
                f"{self.config} cannot be read ({error.strerror}): is {self.path} a run's"
                " directory?"
            ) from error
        if not isinstance(config, dict):
            raise RunError(f"{self.config} has no configuration: is {self.path} a run's directory?")
        return config

    def write_provenance(self, provenance: dict, resumed: bool = False) -> None:
        """Write what `collect_provenance` returned; after a resume, append it to the list
        `resumed`.

        Otherwise weights made by two commits or two machines would be attributed to the last one.
        """
        first = None
        if resumed and self.provenance.exists():
            with contextlib.suppress(RunError):  # a damaged file is replaced: it affects no result
                first = read_json(self.provenance)
        if isinstance(first, dict):
            provenance = {**first, "resumed": [*first.get("resumed", []), provenance]}
        self._write_description(self.provenance, json_text(provenance))

    def write_summary(self, summary: dict) -> None:
        """Write train.json. It marks a complete training, so it is written after everything else.

        config.yaml and provenance.json are written again if they were deleted or changed since this
        process wrote them: a training is of no use without them. Raises Busy as `hold_place`."""
        self.hold_place()
        for path, text in self._descriptions.items():
            if not _has_text(path, text):
                print(
                    f"{path} was deleted or changed meanwhile: it is written again",
                    file=sys.stderr,
                    flush=True,
                )
                write_atomic(path, text)
        write_json(self.summary, summary)

    def _write_description(self, path: Path, text: str) -> None:
        """Write a file on the training; `write_summary` writes it again if it is gone."""
        assert self._lock.is_locked
        self._descriptions[path] = text
        write_atomic(path, text)

    def read_summary(self) -> dict:
        """Content of train.json. Raises RunError when it is damaged."""
        summary = read_json(self.summary)
        is_summary = isinstance(summary, dict) and (
            isinstance(summary.get("sha256"), str) or "engine" in summary  # which has no weights
        )
        if not is_summary:
            raise RunError(
                f"{self.summary} is not a summary of a training (it lacks 'sha256'): restore it, or"
                f" delete {self.path} to retrain."
            )
        return summary


def _file_number(path: Path) -> tuple[int, int] | None:
    """(device, inode) of a file, which a file that takes its place does not share; None if there is
    none.
    """
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _has_text(path: Path, text: str) -> bool:
    """True for a file with this text."""
    try:
        return read_bytes(path) == text.encode()
    except (OSError, RunError):
        return False
