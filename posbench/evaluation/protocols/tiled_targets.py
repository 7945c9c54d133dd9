"""tiled_targets: fixed_targets for every token of the stretches that disjoint and sliding score.

fixed_targets scores the last S tokens of single windows, disjoint and sliding every token of long
stretches. A difference between them is then also one between texts. Here the stretches of disjoint
(EveryTokenProtocol) are tiled with blocks of S = evaluate.targets tokens. At length L a block is
read at the end of a window of L tokens, so every token has L - S + 1 to L tokens before it, as in
fixed_targets, and the three protocols are compared on the same tokens. It is sliding with the
stride S; sliding's own default is a quarter of the training length, and that of S an eighth. A
length costs L / S times the tokens that are scored, as in fixed_targets.

Near the start of a document a token has fewer tokens before it, down to one, as in sliding: no
window crosses a document.

References: the floor and the half window, of the same tokens.
"""

from posbench.config.schema import EvaluateConfig
from posbench.evaluation.every_token import EveryTokenProtocol, Spans


class TiledTargets(EveryTokenProtocol):
    """One row for each length."""

    uses = EveryTokenProtocol.uses | {"targets"}
    floor = "tiled_targets"

    @classmethod
    def window_stride(cls, config: EvaluateConfig, length: int) -> int:
        return config.targets

    def window_spans(self, length: int) -> Spans:
        return self.spans_at_stride(length, self.evaluation.config.targets)
