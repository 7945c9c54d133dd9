"""The training loop: a pure function of weights, data and configuration, so that an interrupted run ends in the same bytes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from posbench import checkpoint
from posbench.config import TrainConfig
from posbench.files import append_line
from posbench.memory import Peak
from posbench.progress import Progress
from posbench.signals import Signals
from posbench.trainer import Diverged, Trainer, due

if TYPE_CHECKING:
    from posbench.data import Corpus
    from posbench.runs import Run


def fit(
    model: nn.Module,
    corpus: Corpus,
    config: TrainConfig,
    *,
    seed: int,
    device: str | torch.device,
    run: Run,
    recorder: object,
    plan_for: Callable[[int, int | None], object],
    progress: Progress | None = None,
) -> dict:
    """Train `model` (on `device` already) and leave run.weights and run.summary; returns the summary.

    A state left by an earlier process is taken up where it ended. `recorder.train(step, **figures)` is called every `log_every`
    steps; `plan_for(length, step)` is the geometry of a step (None: of validation); losses are nats per token.

    Raises RunError when a file is damaged, Stopped on SIGINT and SIGTERM, and Diverged when training has: then the last line of
    run.train_log says why, and the last good state is kept.
    """
    trainer = Trainer(model, corpus, config, seed, torch.device(device), plan_for)
    if checkpoint.has_state(run.state):
        trainer.resume(run)
        print(f"going on from step {trainer.step} of {config.steps}", file=sys.stderr, flush=True)
    # The last step's line is written by the end of training alone, so a state saved just before it owns no such line yet.
    checkpoint.truncate_log(run.train_log, min(trainer.step, config.steps - 1))
    try:
        with Signals() as signals, Peak(device) as peak, progress or Progress(config.steps, "train", "steps") as bar:
            bar.skip(trainer.step)
            while trainer.step < config.steps:
                trainer.advance()
                bar.update(1, **trainer.shown())
                if trainer.step < config.steps and (figures := trainer.figures_due()):
                    recorder.train(trainer.step, **figures)
                if signals.received is not None or due(trainer.step, config.checkpoint_every):
                    trainer.save(run)
                signals.check(f"stopped after step {trainer.step} of {config.steps}: the same command goes on from there")
            summary = _finish(trainer, run, recorder, peak)
            signals.check("stopped when training was complete")
    except Diverged as error:
        append_line(run.train_log, {"step": trainer.step, "stopped": str(error)})
        raise
    return summary


def _finish(trainer: Trainer, run: Run, recorder: object, peak: Peak) -> dict:
    """Log the last step, write the weights, then the summary that marks the run complete; the state is no longer needed."""
    figures = trainer.figures() | {"validation_loss": trainer.validate()}
    recorder.train(trainer.step, **figures)
    trainer.check_weights()
    sha256 = checkpoint.save_weights(run.weights, trainer.model)
    summary = {
        "steps": trainer.step,
        "tokens": trainer.tokens,
        "loss": figures.get("loss"),
        "validation_loss": figures["validation_loss"],
        "seconds": round(trainer.seconds, 3),
        "tokens_per_second": trainer.tokens / trainer.seconds if trainer.seconds else None,
        "peak_mib": peak.mib(),
        "compiled": trainer.compiled,
        "n_params": sum(param.numel() for param in trainer.model.parameters()),
        "sha256": sha256,
    }
    run.write_summary(summary)
    checkpoint.remove_state(run.state)
    return summary
