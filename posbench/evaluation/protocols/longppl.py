"""longppl: fixed_targets on key tokens only, whose loss falls much with the model's longer context.

Most tokens need no far context, so their mean says little about it. LongPPL (Fang et al. 2024,
arXiv 2410.23771, code PKU-ML/LongPPL) is the perplexity of those that do. With l(c) the loss after
c tokens of context, a target is a key token if

    l(short) - l(long) > evaluate.key_gain      (the paper's LPG, threshold alpha = 2 nats)
    l(long) < evaluate.key_loss                 (its LPC, log p > beta = -2: the model can predict it)

Both losses are of one reference arm: the model of the training as it was trained, without extension
and scale, which reads exactly `long` = train_len tokens before a target (the floor of
fixed_targets) or exactly `short` = evaluate.key_context of them. So the key tokens of a training
are the same for every extension, scale and length, and no method chooses its own. Of another
training they are others: to compare encodings, let one model choose for all, that of the training
evaluate.key_run (its train_len is `long` then). Column ppl of a row is LongPPL, and n_targets the
number of key tokens.

Deviations: in the paper one large model chooses for all, the long context is the whole text, and
the short one has 4,096 to 5,119 tokens (windows that advance by 1,024); here it has train_len // 8
unless evaluate.key_context says otherwise. In windows of evaluate.floor_block targets a context has
a few tokens less (fixed_targets). A BOS, if there is one, replaces the first token of every
context. Where a small model has few key tokens, lower key_gain.

References: none. The floor of the reference arm decides which tokens are scored, so on these it is
below evaluate.key_loss by choice and no fair reference; its losses are in the arrays. Arrays, of
the M key tokens alone: nll and correct of each length, and `key_long`, `key_short`, the losses that
made them key tokens. The evaluation's json has the share under `config.key_tokens`."""

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from posbench.common.errors import ConfigError, RunError
from posbench.evaluation.protocol import ReadVolume
from posbench.evaluation.protocols.fixed_targets import FixedTargets

if TYPE_CHECKING:
    from posbench.config.schema import EvaluateConfig
    from posbench.evaluation.scorer import Scorer
    from posbench.position.interfaces import Extension

GAIN = LOSS = 2.0  # nats


class Longppl(FixedTargets):
    """One row for each length."""

    floor = None
    keys = True

    @classmethod
    def settings(cls, asked: "EvaluateConfig", train_len: int) -> dict:
        usual = {
            "key_gain": GAIN,
            "key_loss": LOSS,
            "key_context": max(1, _long(asked.key_run, train_len) // 8),
            "key_run": None,
        }
        return {
            key: usual[key] if getattr(asked, key) is None else getattr(asked, key) for key in usual
        }

    @classmethod
    def check(cls, extension: "Extension", config: "EvaluateConfig", train_len: int) -> None:
        super().check(extension, config, train_len)
        train_len = _long(config.key_run, train_len)
        if config.key_context >= train_len:
            raise ConfigError(
                f"evaluate.key_context={config.key_context} must be below the training length"
                f" {train_len}, the long context of which evaluate.protocol=longppl looks for the"
                " gain: leave it null, for an eighth."
            )
        if config.max_length < train_len + config.targets - 1:
            raise ConfigError(
                f"evaluate.max_length={config.max_length} leaves the first of"
                f" evaluate.targets={config.targets} without the {train_len} tokens of context by"
                " which evaluate.protocol=longppl chooses: set it to"
                f" {train_len + config.targets - 1} or more."
            )

    @classmethod
    def reading_first(cls, config: "EvaluateConfig", train_len: int) -> list[ReadVolume]:
        beyond, long = (
            config.max_length + 1,
            _long(config.key_run, train_len),
        )  # so that each target has a text of its own, as in the floor
        return [
            cls.reading(config, long, beyond, context) for context in (long, config.key_context)
        ]

    def cost_first(self) -> int:
        if "judged" in vars(self):
            return 0
        shape = self.windows.targets_NS.shape
        return sum(
            context * len(self.blocks(np.full(shape, context))[0]) for context in self._contexts
        )

    @property
    def _contexts(self) -> tuple[int, int]:
        """Tokens before a target in the reference arm: the long and the short context."""
        return self._arm.train_len, self.evaluation.config.key_context

    @property
    def _arm(self) -> "Scorer":
        from posbench.extensions.none import NoExtension
        from posbench.scale_attention.none import NoScale

        model = self.evaluation.chooser or self.evaluation.model
        return replace(
            self.evaluation,
            model=model,
            extension=NoExtension(),
            scale=NoScale(model.encoding.shape),
        )

    @cached_property
    def judged(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Losses [N, S] of all targets after the long and the short context in the reference arm,
        and True for the key tokens.

        Raises RunError if there is none.
        """
        config, reference = self.evaluation.config, FixedTargets(self._arm)
        long_NS, short_NS = (
            reference.each(np.full(self.windows.targets_NS.shape, context))[0]
            for context in self._contexts
        )
        # A loss that is nan, because nothing was scored, makes a key token and so no row.
        key_NS = ~(short_NS - long_NS <= config.key_gain) & ~(long_NS >= config.key_loss)
        if not key_NS.any():
            raise RunError(
                f"None of the {key_NS.size} targets is a key token: no loss below"
                f" {config.key_loss:g} nats falls by more than {config.key_gain:g} from"
                f" {config.key_context} to {self._contexts[0]} tokens of context; lower"
                f" evaluate.key_gain (the largest fall is {float((short_NS - long_NS).max()):.2f}),"
                " or raise evaluate.key_loss or evaluate.windows."
            )
        return long_NS, short_NS, key_NS

    def run(self, length: int) -> tuple[list[dict], dict[str, np.ndarray]]:
        self.judged  # noqa: B018  (read before the clock of the first length starts)
        return super().run(length)

    def score(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """nll and correctness [M, 1] of the key tokens."""
        nll_NS, correct_NS = super().score(length)
        return nll_NS[self.judged[2]][:, None], correct_NS[self.judged[2]][:, None]

    def rows(self, length: int, nll_NS: np.ndarray, correct_NS: np.ndarray) -> list[dict]:
        shared = self.shared()
        return [
            self.mean(nll_NS.astype(np.float64), correct_NS, shared["document"], shared["bytes"])
        ]

    def shared(self) -> dict[str, np.ndarray]:
        """Arrays [M] that all lengths share."""
        long_NS, short_NS, key_NS = self.judged
        found = {name: array[key_NS.ravel()] for name, array in super().shared().items()}
        return {**found, "key_long": long_NS[key_NS], "key_short": short_NS[key_NS]}

    def stated(self) -> dict:
        key_NS = self.judged[2]
        return {
            "key_tokens": {
                "share": float(key_NS.mean()),
                "number": int(key_NS.sum()),
                "of": key_NS.size,
            }
        }


def _long(key_run: dict | None, train_len: int) -> int:
    """Tokens of the long context: the training length of the model that chooses."""
    return key_run["train_len"] if key_run else train_len
