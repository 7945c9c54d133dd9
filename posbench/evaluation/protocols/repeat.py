"""repeat: a text of train_len tokens, repeated; a model that copies finds every target train_len
tokens earlier.

Targets and windows are those of fixed_targets. The text is the train_len tokens up to a window's
last target. For length L its copies fill the L tokens that are fed (the first copy is cut), and the
last copy's last S tokens are scored. The distance to copy from is train_len at every length; only
the number of copies grows. At L = train_len there is one copy and nothing to copy from. This is the
baseline, equal to fixed_targets at that length. (Su 2023, kexue.fm 9708, evaluates accuracy on
repeated text; there the window of 4096 holds eight copies of 512 tokens.)

The control, task `control`, is read at L = train_len: the text's last train_len // 2 tokens twice,
with the same targets scored, all within the training length. If the control is no better than the
baseline, the model does not copy, and the longer lengths mean nothing. Look at accuracy, which is
in each row.

A BOS, if there is one, replaces the first of the fed tokens. recompute_window gives each target its
last w tokens: up to w = train_len these are natural text, one copy. Arrays `control_nll` and
`control_correct` [N * S] are the control's.

References: fixed_targets of the same method, which is natural text before the same targets, and its
floor."""

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from posbench.common.errors import ConfigError
from posbench.evaluation.protocol import ReadVolume
from posbench.evaluation.protocols.fixed_targets import FixedTargets

if TYPE_CHECKING:
    from posbench.config.schema import EvaluateConfig
    from posbench.evaluation.scorer import Scorer
    from posbench.position.interfaces import Extension


class Repeat(FixedTargets):
    """Rows: task `copies` for each length, task `control` at train_len."""

    also_scores = ("fixed_targets",)

    def __init__(self, evaluation: "Scorer", period: int | None = None):
        super().__init__(evaluation)
        self.period = period or evaluation.train_len

    @classmethod
    def lengths(cls, evaluate: "EvaluateConfig", train_len: int) -> list[int]:
        return sorted({train_len, *evaluate.lengths})

    @classmethod
    def check(cls, extension: "Extension", config: "EvaluateConfig", train_len: int) -> None:
        """Raise ConfigError unless the targets are within the text that the control repeats, half
        of the training length, and windows hold the text that the other rows repeat, all of it.
        """
        if config.targets >= train_len // 2:
            raise ConfigError(
                f"evaluate.targets={config.targets} must be below half of the training length"
                f" {train_len}, the text of which evaluate.protocol=repeat makes its control: leave"
                " it null, for an eighth."
            )
        if config.max_length < train_len:
            raise ConfigError(
                f"evaluate.max_length={config.max_length} is below the training length {train_len},"
                " the length of the text that evaluate.protocol=repeat repeats: raise it."
            )

    @classmethod
    def read_volume(
        cls,
        config: "EvaluateConfig",
        train_len: int,
        length: int,
        fed: int,
        n_windows: int | None = None,
    ) -> ReadVolume:
        volume = super().read_volume(config, train_len, length, fed, n_windows)
        # At this length the control is read too: as many texts again.
        if length == train_len:
            return replace(volume, texts=2 * volume.texts, total_losses=2 * volume.total_losses)
        return volume

    def indices_up_to_targets(self, at_n: np.ndarray, length: int) -> np.ndarray:
        """Token indices as in `Protocol.indices_up_to_targets`. A text that is longer than the
        period repeats the last `period` tokens of the window.
        """
        if length <= self.period:  # nothing is repeated
            return super().indices_up_to_targets(at_n, length)
        n_targets = self.windows.n_targets
        last_n = self.windows.last_N[at_n // n_targets]
        back_n = n_targets - 1 - at_n % n_targets  # tokens from a target to its window's last
        back_nL = back_n[:, None] + np.arange(length, -1, -1)
        return self.evaluation.with_bos_first(last_n[:, None] - back_nL % self.period)

    def run(self, length: int) -> tuple[list[dict], dict[str, np.ndarray]]:
        rows, arrays = super().run(length)
        rows = [{**row, "task": "copies"} for row in rows]
        if length == self.evaluation.train_len:
            rows += self.control[0]
        return rows, arrays

    @cached_property
    def control(self) -> tuple[list[dict], dict[str, np.ndarray]]:
        """Row and arrays of the control: half of the text, twice, within the training length."""
        train_len = self.evaluation.train_len
        rows, arrays = FixedTargets.run(Repeat(self.evaluation, train_len // 2), train_len)
        return [{**row, "task": "control"} for row in rows], arrays

    def shared_arrays(self) -> dict[str, np.ndarray]:
        arrays = super().shared_arrays()
        for name, array in self.control[1].items():
            arrays[f"control_{name}"] = array
        return arrays
