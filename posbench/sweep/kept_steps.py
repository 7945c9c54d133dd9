"""Weights of single steps of a training, each a finished training of its own beside it.

Such a training has the id, the weights and the log of one that ends at that step, whoever makes it:
a training on the way to its last step (train.keep_steps), or one that was asked for that step alone
(step=STEP)."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.common.files import append_lines, read_lines
from posbench.common.locks import Busy
from posbench.config import identity
from posbench.config.schema import JobConfig
from posbench.runs.directory import Run


def config_at(config: JobConfig, step: int) -> JobConfig:
    """Configuration of the same training, ended at a step before its last one."""
    return replace(config, step=None, train=replace(config.train, step=step, keep_steps=None))


def run_at(run: Run, config: JobConfig, fingerprint: str, step: int) -> Run:
    """Run of the weights of a step, beside the run of the whole training."""
    run_id = identity.run_id(config_at(config, step).as_dict(), fingerprint)
    return Run(run.path.parent / run_id)


def check_step(config: JobConfig, step: int) -> None:
    """Raise ConfigError for a step that a training does not have."""
    if not config.trains:
        raise ConfigError(
            f"step={step} is of a training, and model.path={config.model.path} is a checkpoint"
            " without steps: leave it out."
        )
    last_step = config.train.last_step
    if step > last_step:
        raise ConfigError(
            f"step={step} is beyond the training, whose last step is {last_step}: give an earlier"
            " one, or a longer training (train.steps)."
        )


def check_whole(run: Run, config: JobConfig, step: int | None) -> None:
    """Raise ConfigError for a typed step that is not the last of a training, where a run's folder
    is read as it is.
    """
    if step not in (None, config.train.last_step):
        raise ConfigError(
            f"step={step} does not choose from run={run.path}, which ended at step"
            f" {config.train.last_step}: give the folder that train.keep_steps made of that step as"
            " run= (scripts/runs.py list shows it)."
        )


def check_kept(run: Run, config: JobConfig, fingerprint: str, step: int) -> None:
    """Raise ConfigError unless the weights of a step of an existing training are there."""
    if run_at(run, config, fingerprint, step).finished:
        return
    kept = [
        str(kept_step)
        for kept_step in config.train.kept_steps
        if run_at(run, config, fingerprint, kept_step).finished
    ]
    kept_words = "no steps" if not kept else f"step {', '.join(kept)}"
    raise ConfigError(
        f"run={run.path} kept no weights of step={step} (it kept {kept_words} and"
        f" {config.train.last_step}, the last): give one of these, or describe the training in"
        f" place of run=, which makes its first {step} steps again."
    )


class KeptSteps:
    """Writer of the trainings that end at the kept steps of a training.

    `config` and `provenance` are what the training itself wrote."""

    def __init__(self, run: Run, config: JobConfig, fingerprint: str, provenance: dict) -> None:
        self.run = run
        self.config = config
        self.fingerprint = fingerprint
        self.provenance = provenance

    def keep(self, step: int, save: Callable[[Path], str], summary: dict) -> None:
        """Write the training of a step, unless it is there already or being made.

        `save(path)` writes the weights and returns their SHA-256. `summary` is the content of
        train.json without it.
        """
        kept = run_at(self.run, self.config, self.fingerprint, step)
        if kept.finished:
            return
        try:
            with kept.lock():
                if not kept.finished:
                    self._write(kept, step, save, summary)
        except Busy:
            message = f"step {step} is not kept: another process works on {kept.path}"
            print(message, file=sys.stderr, flush=True)

    def _write(self, kept: Run, step: int, save: Callable[[Path], str], summary: dict) -> None:
        from posbench.training.checkpoint import remove_state

        kept.write_config(config_at(self.config, step).as_dict())
        kept.write_provenance(self.provenance)
        lines = read_lines(self.run.train_log)
        kept.train_log.unlink(missing_ok=True)  # of a training or a writing that was interrupted
        append_lines(kept.train_log, [line for line in lines if line["step"] <= step])
        kept.write_summary({**summary, "sha256": save(kept.weights)})
        remove_state(kept.state)  # of a training to this step that was interrupted
