"""When a training counts as lost, and what its user is told then."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from posbench.common.errors import RunError
from posbench.training import optimizers as optim

if TYPE_CHECKING:
    from torch import nn

    from posbench.config.schema import TrainConfig

PATIENCE = 100  # steps in a row worse than knowing nothing, by HOPELESS times, before a training counts as diverged
HOPELESS = 3.0


class Diverged(RunError):
    """Training has left what it could come back from; the last good state is kept."""


class Watch:
    """Raises Diverged when a training is lost; `step`, here, is the number of steps that are finished.

    `above` counts the steps in a row that lost more than `limit` nats per token; it belongs to the state of a training.
    """

    def __init__(self, config: TrainConfig, vocab_size: int) -> None:
        self.config, self.limit, self.above = config, HOPELESS * math.log(vocab_size), 0

    def loss(self, value: float, step: int) -> float:
        """The loss of a step, given back. Raises Diverged when it is not finite, or hopeless for long."""
        self.finite(value, "loss", step)
        self.above = self.above + 1 if value > self.limit else 0
        if self.above >= PATIENCE:
            raise Diverged(
                f"The loss is {value:.3g} at step {step} and has been above {self.limit:.3g} nats/token ({HOPELESS:g} times that of "
                f"a model that knows nothing) for {PATIENCE} steps{self._remedy(step)}"
            )
        return value

    def finite(self, value: float, name: str, step: int) -> float:
        """`value`, given back. Raises Diverged when it is not finite."""
        if math.isfinite(value):
            return value
        raise Diverged(f"The {name} is {value} at step {step}{self._remedy(step)}")

    def weights(self, model: nn.Module, step: int) -> None:
        """Raise Diverged for weights that are not finite: a gradient can overflow in a step whose loss was still a number."""
        for name, parameter in model.named_parameters():
            if not bool(torch.isfinite(parameter).all()):
                raise Diverged(f"The weights {name} are not finite after step {step}{self._remedy(step)}")

    def _remedy(self, step: int) -> str:
        lr = self.config.lr * optim.rate(step - 1, self.config)
        rates = "train.lr and train.muon_lr" if self.config.optimizer == "muon" else "train.lr"
        clip = "" if self.config.clip > 0 else ", or train.clip=1"
        return f" with learning rate {lr:.2g}: try a lower {rates}, a longer train.warmup{clip}."
