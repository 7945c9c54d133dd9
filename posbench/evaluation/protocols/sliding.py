"""sliding: windows of L tokens advance by evaluate.stride = S; each scores its last S tokens, with
equal weight.

Every token is scored once, with L - S + 1 to L tokens before it (the first replaced by the BOS, if
there is one). Near the start of a document there are fewer, down to one, because no window crosses
a document. S = 1 gives every token exactly L tokens, which at L = train_len is the floor; S = L
gives disjoint. A length costs L / S times the tokens that are scored. The default, S = train_len /
4, gives every token at least three quarters of train_len.

The stretches of text are those of disjoint (EveryTokenProtocol) at every length. A window may begin
before its stretch, but not before its document. recompute_window gives each token its last w
tokens: the floor, at every L >= w + S - 1.

References: the floor and the half window, of the same tokens.
"""

from posbench.evaluation.every_token import EveryTokenProtocol, Spans


class Sliding(EveryTokenProtocol):
    """One row for each length."""

    uses = EveryTokenProtocol.uses | {"stride"}
    floor = "sliding"

    def window_spans(self, length: int) -> Spans:
        return self.spans_at_stride(length, self.evaluation.config.stride)
