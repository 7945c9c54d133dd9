"""longppl: fixed_targets on key tokens only, whose loss falls much with the model's longer context.

Most tokens need no far context, so their mean says little about it. LongPPL (Fang et al. 2024,
arXiv 2410.23771, code PKU-ML/LongPPL) is the perplexity of those that do. With l(c) the loss after
c tokens of context, a target is a key token if

    l(short) - l(long) > evaluate.key_gain      (the paper's LPG, threshold alpha = 2 nats)
    l(long) < evaluate.key_loss                 (its LPC, log p > beta = -2: it can be predicted)

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
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from posbench.common.errors import ConfigError, RunError
from posbench.evaluation.protocol import KEY_TOKEN_KEYS, ReadVolume
from posbench.evaluation.protocols.fixed_targets import FixedTargets

if TYPE_CHECKING:
    from posbench.config.schema import EvaluateConfig
    from posbench.evaluation.scorer import Scorer
    from posbench.position.interfaces import Extension

USUAL_KEY_GAIN = USUAL_KEY_LOSS = 2.0  # nats


class KeyTokens(NamedTuple):
    """Losses [N, S] of all targets after the long and the short context in the reference arm, and
    True for the key tokens.
    """

    long_NS: np.ndarray
    short_NS: np.ndarray
    is_key_NS: np.ndarray


class Longppl(FixedTargets):
    """One row for each length."""

    uses = FixedTargets.uses | KEY_TOKEN_KEYS
    floor = None

    def __init__(self, evaluation: "Scorer"):
        super().__init__(evaluation)
        self._key_tokens: KeyTokens | None = None  # chosen before the first length

    @classmethod
    def defaults(cls, evaluate: "EvaluateConfig", train_len: int) -> dict:
        """The keys that choose key tokens, where the user gave none: the short context is an eighth
        of the long one.
        """
        defaults = {
            "key_gain": USUAL_KEY_GAIN,
            "key_loss": USUAL_KEY_LOSS,
            "key_context": max(1, _long_context(evaluate.key_run, train_len) // 8),
        }
        return {key: value for key, value in defaults.items() if getattr(evaluate, key) is None}

    @classmethod
    def check(cls, extension: "Extension", config: "EvaluateConfig", train_len: int) -> None:
        """Check as every protocol does, and that both contexts fit. Raises ConfigError."""
        super().check(extension, config, train_len)
        train_len = _long_context(config.key_run, train_len)  # of the model that chooses
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
    def read_volumes_first(
        cls, config: "EvaluateConfig", train_len: int, n_windows: int | None = None
    ) -> list[ReadVolume]:
        """Readings that choose the key tokens: with the long context, and with the short one."""
        long = _long_context(config.key_run, train_len)
        # Each target is read in a text of its own, as in the floor. read_volume counts so for any
        # length above what is fed.
        longer_than_fed = config.max_length + 1
        contexts = (long, config.key_context)
        return [
            cls.read_volume(config, long, length=longer_than_fed, fed=context, n_windows=n_windows)
            for context in contexts
        ]

    def tokens_to_read_first(self) -> int:
        if self._key_tokens is not None:
            return 0
        config = self.evaluation.config
        n_windows = len(self.windows.last_N)
        volumes = self.read_volumes_first(config, self.evaluation.train_len, n_windows)
        return sum(volume.total_tokens for volume in volumes)

    def key_tokens(self) -> KeyTokens:
        """Key tokens among the targets, chosen at the first call. Raises RunError if there is
        none.
        """
        if self._key_tokens is None:
            self._key_tokens = self._choose_key_tokens()
        return self._key_tokens

    def _choose_key_tokens(self) -> KeyTokens:
        """Losses of the reference after a long and a short context, and the targets that the long
        one tells much of.
        """
        config = self.evaluation.config
        arm = _reference_arm(self.evaluation)
        reference = FixedTargets(arm)
        shape = self.windows.targets_NS.shape
        long_NS, _ = reference.score_separately(np.full(shape, arm.train_len))
        short_NS, _ = reference.score_separately(np.full(shape, config.key_context))
        # Not-less-than, so that a nan loss (a target that nothing scored) counts as a key token:
        # its nan then reaches the row, which is left out, where "no key" would hide it.
        is_key_NS = ~(short_NS - long_NS <= config.key_gain) & ~(long_NS >= config.key_loss)
        if not is_key_NS.any():
            raise RunError(
                f"None of the {is_key_NS.size} targets is a key token: no loss below"
                f" {config.key_loss:g} nats falls by more than {config.key_gain:g} from"
                f" {config.key_context} to {arm.train_len} tokens of context; lower"
                f" evaluate.key_gain (the largest fall is {float((short_NS - long_NS).max()):.2f}),"
                " or raise evaluate.key_loss or evaluate.windows."
            )
        return KeyTokens(long_NS, short_NS, is_key_NS)

    def run(self, length: int) -> tuple[list[dict], dict[str, np.ndarray]]:
        self.key_tokens()  # before the clock of the first length starts
        return super().run(length)

    def score(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """nll and correctness [M, 1] of the key tokens."""
        nll_NS, correct_NS = super().score(length)
        is_key_NS = self.key_tokens().is_key_NS
        return nll_NS[is_key_NS][:, None], correct_NS[is_key_NS][:, None]

    def rows(self, length: int, nll_NS: np.ndarray, correct_NS: np.ndarray) -> list[dict]:
        shared = self.shared_arrays()
        nll_M1 = nll_NS.astype(np.float64)
        return [self.mean_columns(nll_M1, correct_NS, shared["document"], shared["bytes"])]

    def shared_arrays(self) -> dict[str, np.ndarray]:
        """Arrays [M] that all lengths share."""
        long_NS, short_NS, is_key_NS = self.key_tokens()
        of_targets = super().shared_arrays()
        arrays = {name: array[is_key_NS.ravel()] for name, array in of_targets.items()}
        return {**arrays, "key_long": long_NS[is_key_NS], "key_short": short_NS[is_key_NS]}

    def target_facts(self) -> dict:
        """Share and number of key tokens among the targets, for the evaluation's json."""
        is_key_NS = self.key_tokens().is_key_NS
        return {
            "key_tokens": {
                "share": float(is_key_NS.mean()),
                "number": int(is_key_NS.sum()),
                "of": is_key_NS.size,
            }
        }


def _reference_arm(evaluation: "Scorer") -> "Scorer":
    """The evaluation with the model that chooses key tokens, without extension and scale."""
    from posbench.extensions.none import NoExtension
    from posbench.scale_attention.none import NoScale

    model = evaluation.key_token_model or evaluation.model
    scale = NoScale(model.encoding.shape)
    return replace(evaluation, model=model, extension=NoExtension(), scale=scale)


def _long_context(key_run: dict | None, train_len: int) -> int:
    """Tokens of the long context: the training length of the model that chooses."""
    return key_run["train_len"] if key_run else train_len
