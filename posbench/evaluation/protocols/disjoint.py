"""disjoint: text cut into chunks of L tokens; every token of a chunk is scored, with equal weight.

Most papers call this perplexity at length L (Press 2021's non-overlapping evaluation, lm-eval's
loglikelihood_rolling). A piece's first token is predicted from one token, its last from L, so
longer pieces have fewer tokens with little context. The curve then falls with L even if a model
uses no more context than at train_len ("the early-token curse"). Compare lengths by fixed_targets;
this protocol is for comparison with the literature.

Text: stretches of max_length targets inside documents (EveryTokenProtocol), the same at every
length. Pieces never cross a document. The piece that scores tokens t+1 .. t+L is fed t .. t+L-1. A
BOS, if there is one, replaces token t, so that a piece's first token follows the BOS alone;
otherwise token t itself is fed, as in lm-eval. A document's first token is never a target. If L
does not divide max_length, the tail of a stretch is a shorter piece read with the geometry of L, so
every length scores the same tokens. recompute_window gives each token its last w tokens within its
piece.

References: none, since the floor gives every token a full window and a piece does not. `sliding`
has the floor of the same tokens."""

from posbench.evaluation.every_token import EveryTokenProtocol, Spans


class Disjoint(EveryTokenProtocol):
    """One row for each length."""

    def window_spans(self, length: int) -> Spans:
        return self.spans_at_stride(length, length)
