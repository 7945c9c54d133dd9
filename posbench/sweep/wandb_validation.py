"""Losses by length of a training in wandb: values at each step, and one chart over steps."""

from typing import TYPE_CHECKING

from posbench.results.validations import read_step_losses
from posbench.runs.directory import Run
from posbench.sweep.wandb_content import line_chart

if TYPE_CHECKING:
    import wandb

CHART = "validation_by_step"
# A chart holds all points, so it is shown again only once it has a tenth more of them: a thousand
# validations make seventy charts, not a thousand.
GROWTH = 1.1


def training_values(metrics: dict) -> dict[str, float | None]:
    """{name in wandb: value} of a line of train.jsonl, a loss by length under its own name.

    >>> training_values({"loss": 2.5, "validation": {"nll": {"yarn": {"64": 2.0}}}})
    {'train/loss': 2.5, 'validation/yarn at 64': 2.0}
    """
    values = {f"train/{name}": value for name, value in metrics.items() if name != "validation"}
    for extension, by_length in metrics.get("validation", {}).get("nll", {}).items():
        for length, nll in by_length.items():
            values[f"validation/{extension} at {length}"] = nll
    return values


class ValidationChart:
    """Chart of a run: a line for each length and extension, over steps."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.validations = 0
        self.shown = 0  # validations in the chart that was shown last

    def add(self, metrics: dict) -> bool:
        """Count a line of train.jsonl. Returns whether the chart is to be shown again."""
        if "validation" not in metrics:
            return False
        self.validations += 1
        return self.validations >= GROWTH * self.shown

    @property
    def is_behind(self) -> bool:
        """True if the chart that was shown last lacks a validation."""
        return self.validations > self.shown

    def log(self, wandb_run: "wandb.Run") -> None:
        """Show all validations of the run's log."""
        self.shown = self.validations  # number of those in the chart, which this call draws
        lines: dict[str, dict[int, float]] = {}  # {name: {step: loss}}
        for loss in read_step_losses(self.run.path):
            # With the run, since wandb draws the lines of all runs that are shown: four of the ten
            # digits that end its id tell it apart, in less room.
            name = f"{loss.length} {loss.extension} {self.run.id[:-6]}"
            lines.setdefault(name, {})[loss.step] = loss.nll
        if lines:
            title = "validation loss by length, nats per token"
            wandb_run.log({CHART: line_chart(lines, title, "step")})
