"""Detection of a lost training, and the error message with a way out."""

import math

import torch
from torch import nn

from posbench.common.errors import RunError
from posbench.config.schema import TrainConfig
from posbench.training import optimizers as optim

PATIENCE = 100  # consecutive steps with a loss above HOPELESS times that of a uniform guess before a training counts as diverged
HOPELESS = 3.0


class Diverged(RunError):
    """Training has diverged beyond recovery. The last good state is kept."""


class Watch:
    """Checks of a training that raise Diverged when it is lost. `step` is the number of finished steps.

    `above` counts consecutive steps with a loss above `limit` nats per token. It is saved with the state of a training.
    """

    def __init__(self, config: TrainConfig, vocab_size: int) -> None:
        self.config, self.limit, self.above = config, HOPELESS * math.log(vocab_size), 0

    def loss(self, value: float, step: int) -> float:
        """Return the loss of a step. Raises Diverged if it is not finite, or above `limit` for PATIENCE steps."""
        self.finite(value, "loss", step)
        self.above = self.above + 1 if value > self.limit else 0
        if self.above >= PATIENCE:
            raise Diverged(
                f"The loss is {value:.3g} at step {step} and has been above {self.limit:.3g} nats/token ({HOPELESS:g} times that of "
                f"a model that knows nothing) for {PATIENCE} steps{self._remedy(step)}"
            )
        return value

    def finite(self, value: float, name: str, step: int) -> float:
        """Return `value`. Raises Diverged if it is not finite."""
        if math.isfinite(value):
            return value
        raise Diverged(f"The {name} is {value} at step {step}{self._remedy(step)}")

    def weights(self, model: nn.Module, step: int) -> None:
        """Check the weights. Raises Diverged if one is not finite: a gradient can overflow in a step whose loss is finite."""
        for name, parameter in model.named_parameters():
            if not bool(torch.isfinite(parameter).all()):
                raise Diverged(f"The weights {name} are not finite after step {step}{self._remedy(step)}")

    def _remedy(self, step: int) -> str:
        lr = self.config.lr * optim.rate(step - 1, self.config)
        rates = "train.lr and train.muon_lr" if self.config.optimizer == "muon" else "train.lr"
        clip = "" if self.config.clip > 0 else ", or train.clip=1"
        return f" with learning rate {lr:.2g}: try a lower {rates}, a longer train.warmup{clip}."
