"""Losses of a model in training: of the same targets at several lengths, with several extensions.

They are those that protocol fixed_targets gives of the finished training on the validation split.
"""

import math
from dataclasses import replace

import numpy as np

from posbench.common.errors import RunError
from posbench.config.identity import NO_SCALE
from posbench.config.schema import TrainConfig
from posbench.data.corpus import Corpus
from posbench.evaluation.protocols.fixed_targets import FixedTargets
from posbench.evaluation.scorer import Scorer
from posbench.model.gpt import GPT
from posbench.model.rounded import forget_rounded
from posbench.position.instantiate import make_method
from posbench.position.interfaces import Extension, ScaleAttention
from posbench.sweep.validation import validation_extensions, validation_settings
from posbench.training.distributed import World


class LossesByLength:
    """Measurement of a model as it is now, by all processes of a training together.

    The model is in evaluation mode."""

    def __init__(
        self, model: GPT, corpus: Corpus, train: TrainConfig, device: str, world: World
    ) -> None:
        self.model = model
        self.world = world
        self.settings = validation_settings(train)
        # None is added: a scale that the model is trained with is its own.
        scale = make_method(NO_SCALE, model.encoding.shape, kind=ScaleAttention)
        self.scorers = {
            label: Scorer(
                model, corpus, make_method(node, kind=Extension), scale, self.settings, device
            )
            for label, node in validation_extensions(train).items()
        }

    def __call__(self) -> dict:
        """{"max_length", "targets": number of targets, "nll": {extension: {length: nats/token}}}.

        Targets are the same for equal max_length and number. A loss that is not finite is None.
        """
        losses: dict[str, dict[str, float | None]] = {}
        n_targets = 0
        for label, scorer in self.scorers.items():
            evaluator = FixedTargets(scorer)
            n_targets = len(evaluator.windows.last_N) * evaluator.windows.n_targets
            self._take_share(evaluator)  # the other processes score the other windows
            losses[label] = {
                str(length): self._mean(evaluator, length, n_targets)
                for length in self.settings.lengths
            }
        forget_rounded(self.model)  # its copy in bf16 is out of date after the next step
        return {"max_length": self.settings.max_length, "targets": n_targets, "nll": losses}

    def _take_share(self, evaluator: FixedTargets) -> None:
        """Leave the evaluator the windows of this process."""
        windows = evaluator.windows
        share = self.world.share(len(windows.last_N))
        evaluator.windows = replace(
            windows, last_N=windows.last_N[share], document_N=windows.document_N[share]
        )

    def _mean(self, evaluator: FixedTargets, length: int, n_targets: int) -> float | None:
        """Mean loss of the targets of all processes at a length."""
        total = 0.0
        if len(evaluator.windows.last_N):  # this process may have no window of its own
            try:
                nll_NS, _ = evaluator.score(length)
                total = float(nll_NS.astype(np.float64).sum())
            except RunError:  # a loss is nan, which ends an evaluation, but no training
                total = math.nan
        mean = self.world.sum_over_processes(total) / n_targets
        return mean if math.isfinite(mean) else None
