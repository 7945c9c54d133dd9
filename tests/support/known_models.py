"""Models whose probabilities are known, in place of a GPT: what a protocol must find on texts made
for them.
"""

from types import SimpleNamespace

import numpy as np
import torch
from conftest import TRAIN_LEN, small_shape

from posbench.config.schema import EvaluateConfig
from posbench.data.tokenfile import TokenFile
from posbench.encodings.none import NoEncoding
from posbench.evaluation.scorer import Scorer
from posbench.extensions.none import NoExtension
from posbench.scale_attention.none import NoScale

VOCAB = 50  # tokens 0 .. VOCAB - 1, and VOCAB is the BOS


class Head(torch.nn.Identity):
    """Takes what `Known.hidden` gives for logits."""

    out_features = VOCAB + 1


class Known:
    """Gives the token that `predict` names the probability it says, and all others the rest in
    equal parts; `fed` keeps what it was fed.
    """

    scale = None

    def __init__(self, train_len: int = TRAIN_LEN):
        self.encoding, self.lm_head, self.fed = NoEncoding(small_shape(train_len)), Head(), []

    def predict(self, feed_NL: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The next token of each position, and its probability."""
        raise NotImplementedError

    def hidden(self, feed_NL, plan, n_rows):
        assert feed_NL.shape[1] == plan.length
        self.fed.append(feed_NL.numpy().copy())
        next_NR, p_NR = (
            torch.from_numpy(part)[:, -n_rows:, None] for part in self.predict(feed_NL.numpy())
        )
        rest_NRV = torch.log((1 - p_NR) / VOCAB).expand(-1, -1, VOCAB + 1)
        return rest_NRV.scatter(2, next_NR, torch.log(p_NR))


class Counter(Known):
    """Of texts that count up by `step` (modulo VOCAB): -log p = curve(c) after c tokens that
    counted up without a break, the last included.

    After a BOS it has seen 0 tokens, and expects token 0.
    """

    def __init__(self, curve, step: int = 1, train_len: int = TRAIN_LEN):
        super().__init__(train_len)
        self.curve, self.step = curve, step

    def predict(self, feed_NL):
        index_L, bos_NL = np.arange(feed_NL.shape[1]), feed_NL == VOCAB
        fresh_NL = np.ones(feed_NL.shape, bool)
        fresh_NL[:, 1:] = feed_NL[:, 1:] != (feed_NL[:, :-1] + self.step) % VOCAB
        fresh_NL[:, 1:] |= bos_NL[:, :-1]
        count_NL = index_L - np.maximum.accumulate(np.where(fresh_NL, index_L, 0), axis=1) + 1
        return np.where(bos_NL, 0, (feed_NL + self.step) % VOCAB), np.exp(
            -self.curve(np.where(bos_NL, 0, count_NL))
        )


class Copier(Known):
    """Knows nothing but the text: after a token it expects what followed that token's last
    occurrence, with p = 0.9, else token 0.
    """

    def predict(self, feed_NL):
        next_NL, p_NL = np.zeros(feed_NL.shape, np.int64), np.full(feed_NL.shape, 0.02)
        for feed_L, next_L, p_L in zip(feed_NL, next_NL, p_NL, strict=True):
            followed: dict[int, int] = {}
            for i, token in enumerate(feed_L):
                if int(token) in followed:
                    next_L[i], p_L[i] = followed[int(token)], 0.9
                if i + 1 < len(feed_L):
                    followed[int(token)] = int(feed_L[i + 1])
        return next_NL, p_NL


class Bag(Known):
    """Reads the current token and the set of all before it, in whatever order."""

    def predict(self, feed_NL):
        before_NL = np.cumsum(np.square(feed_NL), axis=1)
        return (feed_NL + 1) % VOCAB, 0.1 + 0.8 * ((before_NL % 97) / 97)


def counting(lengths: list[int]) -> TokenFile:
    """Documents that count up, each from a number that does not continue the one before."""
    tokens = [(7 * d + np.arange(length)) % VOCAB for d, length in enumerate(lengths)]
    return file(np.concatenate(tokens), lengths)


def file(tokens: np.ndarray, lengths: list[int]) -> TokenFile:
    n_bytes = (1 + np.arange(len(tokens)) % 5).astype(np.uint8)
    return TokenFile(
        tokens.astype(np.uint16),
        n_bytes,
        np.cumsum([0, *lengths]),
        [str(i) for i in range(len(lengths))],
    )


def evaluation(model, text: TokenFile, extension=None, bos: bool = False, **options) -> Scorer:
    """Nine windows of 64 tokens, two targets each, and a stride of 4, unless `options` of
    `evaluate` say otherwise.
    """
    settings = {
        "lengths": [16, 32, 64],
        "max_length": 64,
        "windows": 9,
        "targets": 2,
        "stride": 4,
        "dtype": "fp32",
        **options,
    }
    corpus = SimpleNamespace(test=text, bos=VOCAB if bos else None)
    return Scorer(
        model,
        corpus,
        extension or NoExtension(),
        NoScale(model.encoding.shape),
        EvaluateConfig(**settings),
        "cpu",
    )
