"""The training loop: a pure function of weights, data and configuration.

So an interrupted run ends with the same bytes.
"""

import functools
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from posbench.common.files import append_lines
from posbench.common.progress import Progress
from posbench.common.signals import Signals, Stopped
from posbench.config.schema import TrainConfig
from posbench.data import Corpus
from posbench.model.memory import Peak
from posbench.runs.directory import Run
from posbench.training import checkpoint
from posbench.training.distributed import World
from posbench.training.trainer import Diverged, Trainer, is_due

# Keeps the weights of a step: (step, function that writes them to a path and returns their SHA-256,
# content of train.json without that).
Keep = Callable[[int, Callable[[Path], str], dict], None]


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
    world: World | None = None,
    losses_by_length: Callable[[], dict] | None = None,
    keep: Keep | None = None,
    too_late_at: Callable[[int], list[str]] | None = None,
) -> dict:
    """Train `model` (already on `device`), write run.weights and run.summary, and return the
    summary.

    Training resumes from a saved state if there is one. `recorder.train(step, **figures)` is called
    every `log_every` steps. `plan_for(length, step)` returns the plan of a step (None: of
    validation). Losses are nats per token. `losses_by_length()` gives those of a validation at
    several lengths, and `keep` keeps the weights of config.kept_steps. `too_late_at(step)` gives
    sentences, to be printed, on what the steps before a resumed one lack. All processes of `world`
    call this; only the main one writes and records, and the others return {}.

    Raises RunError if a file is damaged, Stopped on SIGINT and SIGTERM (in all processes after the
    same step), and Diverged if training diverges: then the last line of run.train_log has the
    reason, and the last good state is kept."""
    world = world or World()
    try:
        with Signals() as signals:
            _announce(run, model, device, world)
            trainer = Trainer(
                model,
                corpus,
                config,
                seed,
                torch.device(device),
                plan_for,
                world,
                losses_by_length,
            )
            _take_up(trainer, run, too_late_at)
            peak = Peak(device)
            with Progress(config.last_step, "train", "steps") as bar:
                bar.update(trainer.step, spared=True)  # steps of an earlier command took no time
                keep_step = functools.partial(_keep, trainer, peak, keep)
                _train(trainer, run, recorder, keep_step, signals, bar)
                summary = _finish(trainer, run, recorder, peak)
            # All is written. A signal that came meanwhile still stops what would follow.
            signals.check("stopped when training was complete")
    except Diverged as error:
        if world.is_main:
            append_lines(run.train_log, [{"step": trainer.step, "stopped": str(error)}])
        raise
    return summary


def _announce(run: Run, model: nn.Module, device: str | torch.device, world: World) -> None:
    """Print what is trained, and where."""
    where = device
    if world.size > 1:
        where = f"{torch.device(device).type} in {world.size} processes"
    parameters = sum(parameter.numel() for parameter in model.parameters())
    message = f"training {run.id}: {parameters:,} parameters on {where}"
    print(message, file=sys.stderr, flush=True)


def _train(
    trainer: Trainer,
    run: Run,
    recorder: object,
    keep_step: Callable[[dict], None],
    signals: Signals,
    progress: Progress,
) -> None:
    """Make all steps that are left. Raises Stopped after the state is saved."""
    world = trainer.world
    config = trainer.config
    last_step = config.last_step
    # Number of a signal, 0 for none: all processes stop after the same step, whoever received it.
    stop = world.largest_over_processes(signals.received or 0)
    while trainer.step < last_step and not stop:
        trainer.advance()
        progress.update(1, **trainer.progress_figures())
        if trainer.step < last_step:  # the last step is logged when the training is complete
            figures = trainer.figures_due()
            if figures and world.is_main:
                recorder.train(trainer.step, **figures)
            if trainer.step in trainer.kept_steps:
                keep_step(figures)
        stop = world.largest_over_processes(signals.received or 0)
        if stop or is_due(trainer.step, config.checkpoint_every):
            trainer.save(run)
    if stop:
        raise Stopped(
            stop,
            f"stopped after step {trainer.step} of {last_step}: the same command goes on from"
            " there",
        )


def _take_up(trainer: Trainer, run: Run, too_late_at: Callable[[int], list[str]] | None) -> None:
    """Resume from the state on disk, if there is one, in every process. The main one is first,
    since it repairs a damaged state. It prints what `too_late_at` says of the step.
    """
    world = trainer.world
    steps = trainer.config.last_step
    if world.is_main and run.has_state:
        trainer.resume(run)
        print(f"going on from step {trainer.step} of {steps}", file=sys.stderr, flush=True)
        for sentence in too_late_at(trainer.step) if too_late_at else []:
            print(sentence, file=sys.stderr, flush=True)
    # The main process has resumed if any step is above 0; the others then read what it left.
    if world.largest_over_processes(trainer.step) and not world.is_main:
        trainer.resume(run)
    world.copy_weights(trainer.model)
    # Only the end of training writes the last step's line, so a state saved after the last step has
    # no such line yet.
    if world.is_main:
        checkpoint.truncate_log(run.train_log, min(trainer.step, steps - 1))


def _finish(trainer: Trainer, run: Run, recorder: object, peak: Peak) -> dict:
    """Log the last step, write the weights, then the summary that marks the run complete, and
    delete the state. Returns the summary, {} in all processes but the main one.
    """
    figures = trainer.figures() | trainer.validations()
    if trainer.world.is_main:
        recorder.train(trainer.step, **figures)
    trainer.check_weights()
    if not trainer.world.is_main:
        return {}
    sha256 = trainer.model.save(run.weights)
    summary = {**_summary(trainer, figures, peak), "sha256": sha256}
    run.write_summary(summary)
    checkpoint.remove_state(run.state)
    return summary


def _keep(trainer: Trainer, peak: Peak, keep: Keep | None, figures: dict) -> None:
    """Keep the weights of this step, whose figures were logged. Raises Diverged for weights that
    are not finite.
    """
    trainer.check_weights()
    if keep and trainer.world.is_main:
        keep(trainer.step, trainer.model.save, _summary(trainer, figures, peak))


def _summary(trainer: Trainer, figures: dict, peak: Peak) -> dict:
    """Content of train.json after a step with these figures, without the digest of the weights."""
    return {
        "steps": trainer.step,
        "tokens": trainer.tokens,
        "loss": figures.get("loss"),  # None if no recent step was on text, or none was made
        "validation_loss": figures["validation_loss"],
        "seconds": round(trainer.seconds, 3),
        "tokens_per_second": trainer.tokens / trainer.seconds if trainer.seconds else None,
        "peak_mib": peak.mib(),
        "compiled": trainer.compiled,
        "n_params": sum(param.numel() for param in trainer.model.parameters()),
    }
