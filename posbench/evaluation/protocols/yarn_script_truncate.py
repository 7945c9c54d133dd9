"""yarn_script_truncate: for comparison only, what eval/perplexity.py of jquesnelle/yarn computes
with --truncate (commit b1d7076).

eval.sh makes the paper's Proof-pile curve this way: each document is cut to its first L tokens and
read as one window. Nothing slides, whatever the stride, and every length scores other targets. The
result is the mean over documents of the mean over L - 1 tokens. It has the early-token curse of
`disjoint`, on text that changes with L. Do not use it for conclusions: take fixed_targets.

Documents, BOS, columns and references as in yarn_script; arrays are [N, L - 1].
"""

from dataclasses import replace

import numpy as np

from posbench.config.schema import EvaluateConfig
from posbench.evaluation.protocol import ReadVolume
from posbench.evaluation.protocols.yarn_script import YarnScript


class YarnScriptTruncate(YarnScript):
    """One row for each length."""

    same_targets = False
    uses = YarnScript.uses - {"stride"}
    replacement = "disjoint"

    @classmethod
    def read_volume(
        cls,
        config: EvaluateConfig,
        train_len: int,
        length: int,
        fed: int,
        n_windows: int | None = None,
    ) -> ReadVolume:
        """Volume of reading. `fed` is `length`: an extension that crops is refused
        (`replacement`).
        """
        if n_windows is None:
            n_windows = cls.planned_windows(config, train_len)
        # The last row of a window is computed, but predicts a token beyond it.
        return ReadVolume(
            n_windows,
            tokens_per_text=length,
            rows_per_text=length,
            total_losses=n_windows * (length - 1),
        )

    def run(self, length: int) -> tuple[list[dict], dict[str, np.ndarray]]:
        script = YarnScript(self.evaluation)
        last_N = self.windows.last_N - self.windows.n_targets + length - 1
        script.windows = replace(self.windows, last_N=last_N, n_targets=length - 1)
        return script.run(length)
