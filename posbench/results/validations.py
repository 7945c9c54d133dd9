"""Losses by length that trainings logged at their validations, read as data from their logs."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from posbench.common.defuse import printable
from posbench.common.files import read_lines
from posbench.runs.directory import Run


class StepLoss(NamedTuple):
    """Loss in nats/token after a step, of `targets` tokens read at a length with an extension.

    Two losses of one text with equal `max_length` and `targets` are of the same targets."""

    step: int
    extension: str  # such as "yarn" or "yarn alpha=2"
    length: int
    nll: float
    targets: int
    max_length: int


def read_step_losses(run_path: Path) -> list[StepLoss]:
    """Losses by length in the log of a run, in its order; [] without any.

    All are of the targets of the last validation: a training that went on with other settings
    scored others before.
    """
    losses = []
    for line in read_lines(Run(run_path).train_log):
        losses += _losses_of_line(printable(line))
    if not losses:
        return []
    last = losses[-1]
    return [
        loss
        for loss in losses
        if (loss.targets, loss.max_length) == (last.targets, last.max_length)
    ]


def _losses_of_line(line: dict) -> Iterator[StepLoss]:
    """Losses of a line of a log; none of a line without a validation, or of a damaged one."""
    step = line.get("step")
    validation = line.get("validation")
    if not isinstance(step, int) or not isinstance(validation, dict):
        return
    targets = validation.get("targets")
    max_length = validation.get("max_length")
    by_extension = validation.get("nll")
    is_whole = isinstance(targets, int) and isinstance(max_length, int)
    if not is_whole or not isinstance(by_extension, dict):
        return
    for extension, by_length in by_extension.items():
        if not isinstance(by_length, dict):
            continue
        for length, nll in by_length.items():
            if length.isascii() and length.isdigit() and isinstance(nll, int | float):
                yield StepLoss(step, extension, int(length), float(nll), targets, max_length)
