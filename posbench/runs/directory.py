"""A run is one training; this module finds its files and guards its directory. Nothing heavy is imported here."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from posbench.common.errors import RunError
from posbench.common.files import disk_errors, read_json, write_atomic, write_json
from posbench.common.locks import holder, take
from posbench.runs.yaml_file import read_yaml


class Busy(RunError):
    """Another process works on this run; a sweep takes it up again at the end."""


class Run:
    """The directory of one training. Whatever is written into it is written while `lock` is held."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.id = self.path.name
        self.config = self.path / "config.yaml"
        self.provenance = self.path / "provenance.json"
        self.train_log = self.path / "train.jsonl"
        self.weights = self.path / "model.safetensors"
        self.state = self.path / "state.pt"
        self.summary = self.path / "train.json"
        self.evals = self.path / "evals"
        self.failure = self.path / "failure.txt"  # the end of what a job that failed said
        self._lock = FileLock(self.path / ".lock")

    @property
    def finished(self) -> bool:
        """True when the training is complete: train.json is written last. Raises RunError when the directory may not be read."""
        try:
            return self.summary.exists()
        except OSError as error:
            raise RunError(f"{self.path} cannot be read ({error.strerror}): mend that, or choose another results_dir.") from error

    def eval_path(self, protocol: str, extension: str, scale_attention: str, eval_hash: str) -> Path:
        """Where an evaluation's json lies (names, not nodes); its arrays lie beside it as .npz."""
        return self.evals / protocol / f"{extension}+{scale_attention}-{eval_hash[:8]}.json"

    def eval_files(self) -> list[Path]:
        """Every evaluation on disk, sorted."""
        return sorted(path for path in self.evals.glob("*/*.json") if not path.name.startswith("."))

    @contextlib.contextmanager
    def lock(self, wait: bool = False) -> Iterator[None]:
        """Hold the run's directory, making it if need be.

        Raises Busy when another process holds it, unless `wait`: then one line on stderr says so and the call waits. A process that dies
        holds nothing any more: the system releases its lock, on a network file system once its machine is back. Raises RunError when the
        directory cannot be made or locked.
        """
        with disk_errors(self.path / ".lock"):
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                take(self._lock, wait=False)
            except Timeout:
                who, gone = holder(self.path / ".lock")
                if not wait:
                    raise Busy(f"Another process{who} is working on {self.path}: wait for it, or leave this run out{gone}.") from None
                print(f"another process{who} is working on {self.path}; waiting{gone}", file=sys.stderr, flush=True)
                take(self._lock, wait=True)
        try:
            yield
        finally:
            self._lock.release()

    def discard(self) -> None:
        """Take away the directory of a training that was refused before its first step; one that holds anything else stays."""
        assert self._lock.is_locked
        for path in (self.config, self.provenance, self.path / ".lock"):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def write_config(self, cfg: dict) -> None:
        """Write the resolved configuration."""
        from omegaconf import OmegaConf

        assert self._lock.is_locked
        write_atomic(self.config, OmegaConf.to_yaml(OmegaConf.create(cfg), resolve=True))

    def read_config(self) -> dict:
        """The resolved configuration of the training. Raises RunError when it is missing or damaged."""
        try:
            config = read_yaml(self.config)
        except OSError as error:
            raise RunError(f"{self.config} cannot be read ({error.strerror}): is {self.path} a run's directory?") from error
        if not isinstance(config, dict):
            raise RunError(f"{self.config} holds no configuration: is {self.path} a run's directory?")
        return config

    def write_provenance(self, provenance: dict, resumed: bool = False) -> None:
        """Write what posbench.runs.provenance.collect returned, under `resumed` for a training that goes on from a checkpoint.

        Weights that two commits or two machines have worked on must not pass for those of the last.
        """
        assert self._lock.is_locked
        first = None
        if resumed and self.provenance.exists():
            with contextlib.suppress(RunError):  # a damaged one is written anew: it decides no result
                first = read_json(self.provenance)
        if isinstance(first, dict):
            provenance = {**first, "resumed": [*first.get("resumed", []), provenance]}
        write_json(self.provenance, provenance)

    def write_summary(self, summary: dict) -> None:
        """Write train.json, the mark of a complete training, after everything else."""
        assert self._lock.is_locked
        write_json(self.summary, summary)

    def read_summary(self) -> dict:
        """train.json. Raises RunError when it is damaged."""
        summary = read_json(self.summary)
        if not isinstance(summary, dict) or not isinstance(summary.get("sha256"), str):
            raise RunError(
                f"{self.summary} is no summary of a training (it lacks 'sha256'): restore it, or delete {self.path} to train anew."
            )
        return summary
