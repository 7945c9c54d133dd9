"""Scoring of the windows that a protocol chooses, with one extension and one scale.

Letters: N windows, L tokens fed, R scored rows, V vocabulary, K choices, Q questions.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from posbench.common.errors import RunError
from posbench.config.schema import EvaluateConfig
from posbench.data.corpus import Corpus
from posbench.data.task import IGNORED, TaskSplit
from posbench.data.tokenfile import TokenFile
from posbench.evaluation.windows import BOS_INDEX
from posbench.model import precision as bf16
from posbench.model.gpt import GPT
from posbench.model.memory import Peak
from posbench.model.rounded import rounded
from posbench.position.interfaces import Extension, ScaleAttention
from posbench.position.legality import fed_length, name_of
from posbench.position.plan import Plan, make_plan
from posbench.runs.partial_evaluation import PartialEvaluation

HEAD_ROWS = 4096  # rows that pass the output head at once
# With a large vocabulary fewer rows: so many logits of the head at once.
HEAD_LOGITS = 2**25
LOSS_LOGITS = 2**22  # and so many in float32 for the loss


@dataclass
class Scorer:
    """Model, text and settings of one evaluation.

    `key_token_model` chooses the targets where another model than `model` does. `progress(n)` is
    called after every n tokens that the model has read, with part=True while their batch is
    unfinished, and spared=True where an earlier process read them. `partial` holds such batches; a
    copy has none, since it reads with another model or method."""

    model: GPT
    corpus: Corpus
    extension: Extension
    scale: ScaleAttention
    config: EvaluateConfig
    device: str
    key_token_model: GPT | None = None
    progress: Callable[..., None] = lambda n, part=False: None
    partial: PartialEvaluation | None = field(default=None, init=False)
    peak: Peak | None = field(default=None, init=False)

    @property
    def dtype(self) -> str:
        return self.config.dtype

    @property
    def train_len(self) -> int:
        return self.model.encoding.shape.train_len

    @property
    def file(self) -> TokenFile | TaskSplit:
        return getattr(self.corpus, self.config.split)

    def fed_length(self, length: int) -> int:
        """Number of tokens fed at once in a text of `length`; fewer than that if the extension
        gives each target its own text.
        """
        return fed_length(self.extension, self.train_len, length)

    def plan(self, length: int) -> Plan:
        """Plan of `length` tokens. A dynamic method takes its factor from this length."""
        return make_plan(
            self.model.encoding,
            self.extension,
            scale=self.scale,
            trained_scale=self.model.scale,
            length=length,
            device=self.device,
        )

    def with_bos_first(self, index_NL: np.ndarray) -> np.ndarray:
        """Replace, in place, the first token of each window by the BOS if the corpus has one, since
        windows begin so in training.
        """
        if self.corpus.bos is not None:
            index_NL[:, 0] = BOS_INDEX
        return index_NL

    def score_windows(
        self,
        plan: Plan,
        at_N: np.ndarray,
        n_rows: int,
        token_indices: Callable[[np.ndarray, int], np.ndarray],
    ) -> tuple:
        """nll and correctness [N, n_rows] of the last n_rows tokens of windows, each predicted from
        everything before it in its window.

        `at_N` is what `token_indices` finds each window by. `token_indices(at_n, L)` returns the
        indices [n, L + 1] of the tokens of some of the windows: the L = plan.length tokens fed, and
        the last target. Raises RunError for a loss that is nan. An infinite loss is kept."""

        def text(at_n: np.ndarray) -> tuple[np.ndarray, np.ndarray, None]:
            index_NL = token_indices(at_n, plan.length)
            ids_NL = self.file.tokens[index_NL].astype(np.int64)
            if self.corpus.bos is not None:  # else with_bos_first has written no BOS_INDEX
                ids_NL[index_NL == BOS_INDEX] = self.corpus.bos
            no_choices = None
            return ids_NL[:, :-1], ids_NL[:, -n_rows:], no_choices

        # without choices there are no other arrays
        nll_NR, correct_NR = self.score_texts(plan, at_N, n_rows, text)
        return nll_NR, correct_NR

    @torch.inference_mode()
    def score_texts(
        self, plan: Plan, at_N: np.ndarray, n_rows: int, text: Callable[[np.ndarray], tuple]
    ) -> tuple[np.ndarray, ...]:
        """nll and correctness [N, n_rows] of the targets of texts, and, with choices, the answer's
        rank and nll among them [N, n_rows].

        `text(at_n)` gives of some of the texts the tokens that are fed [n, L], the targets of the
        last n_rows [n, n_rows], IGNORED where nothing is asked, and the choices [n, K] or None. The
        rank of the likeliest choice is 1, and equals count against the answer. Raises as
        `score_windows`.
        """
        model = rounded(self.model) if self.config.dtype == "bf16" else self.model
        batch_size = max(1, self.config.batch_tokens // plan.length)
        batch_progress = _BatchProgress(self.progress)
        plan = plan.with_progress(batch_progress.report)  # calls it after each layer
        batches = []  # arrays of each
        for start in range(0, len(at_N), batch_size):
            batch = text(at_N[start : start + batch_size])
            n_tokens = batch[0].size
            # Batches that an interrupted process read are taken from its file.
            key = self.partial and self.partial.key(plan.length, batch)
            earlier = self.partial and self.partial.find(key)
            if earlier:
                batches.append(earlier)
                self.progress(n_tokens, spared=True)
                continue
            began = time.perf_counter()
            batch_progress.begin(n_tokens)
            scores = self._read_batch(model, plan, batch, n_rows)
            batches.append([array.cpu().numpy() for array in scores])  # waits for the GPU
            if self.partial:
                seconds = time.perf_counter() - began
                self.partial.add(key, batches[-1], seconds, self.peak.mib())
            self.progress(n_tokens - batch_progress.reported)
        return tuple(map(np.concatenate, zip(*batches, strict=True)))

    def _read_batch(
        self, model: GPT, plan: Plan, batch: tuple[np.ndarray | None, ...], n_rows: int
    ) -> tuple[Tensor, ...]:
        """Arrays of `score_texts` for the texts of one batch."""
        fed_NL, target_NR, choice_NK = (
            None if ids is None else torch.from_numpy(ids).to(self.device) for ids in batch
        )
        with bf16.autocast(self.device, self.config.dtype):
            hidden_NRC = model.hidden(fed_NL, plan, n_rows)
            scores = _target_scores(model.lm_head, hidden_NRC, target_NR)
            if choice_NK is not None:
                scores += _choice_scores(model.lm_head, hidden_NRC, target_NR, choice_NK)
        self._check_numbers(scores[0], plan.length)
        return scores

    def _check_numbers(self, nll_NR: Tensor, length: int) -> None:
        """Raise RunError for a loss that is nan."""
        is_nan_NR = nll_NR.isnan()
        if not is_nan_NR.any():
            return
        wider = "" if self.config.dtype == "fp32" else "set evaluate.dtype=fp32, "
        raise RunError(
            f"The model's loss is nan at {int(is_nan_NR.sum())} of {nll_NR.numel()}"
            f" tokens read at length {length} with extension={name_of(self.extension)}"
            f" in {self.config.dtype}: {wider}leave this length out of evaluate.lengths, or"
            " train again with a lower train.lr."
        )

    @contextmanager
    def seconds_and_memory(self) -> Iterator[dict]:
        """Context that fills the dict it gives with the `seconds` and `peak_mib` of what was done
        in it, and of the batches that were taken in it from the file of an earlier process.
        """
        spent: dict[str, float] = {}
        self.peak = Peak(self.device)
        began = time.perf_counter()
        seconds_before = self.partial.seconds if self.partial else 0.0
        yield spent
        spent["seconds"] = time.perf_counter() - began
        spent["peak_mib"] = self.peak.mib()
        # A batch that `partial.find` gave adds the seconds of the process that read it.
        if self.partial and self.partial.seconds > seconds_before:
            spent["seconds"] += self.partial.seconds - seconds_before
            spent["peak_mib"] = max(spent["peak_mib"], self.partial.peak_mib)

    def max_distance(self, plan: Plan) -> float | None:
        """Largest coordinate distance between a query and a key it sees; None if no layer that
        attends has an encoding with traits.
        """
        attending = [layer for layer in plan.layers if not layer.encoding.mixes]
        # Where all encodings are such as none, positions mean nothing.
        if not any(layer.encoding.traits for layer in attending):
            return None
        distances = []
        for layer in attending:
            for band in layer.bands:
                # `first_seen_T` may be beyond the text for a query that sees no key; left out.
                k_pos_T = band.k_pos_T[band.first_seen_T.clamp(max=plan.length - 1)]
                distance_t = (band.q_pos_T - k_pos_T)[band.n_seen_T > 0]
                if len(distance_t):
                    distances.append(float(distance_t.max()))
        return max(distances)


class _BatchProgress:
    """Progress in the tokens of a batch, from the share of it that a model has read."""

    def __init__(self, progress: Callable[..., None]):
        self.progress = progress
        self.begin(0)

    def begin(self, n_tokens: int) -> None:
        self.n_tokens = n_tokens
        self.reported = 0

    def report(self, share: float) -> None:
        done = int(share * self.n_tokens)
        if done > self.reported:
            self.progress(done - self.reported, part=True)
            self.reported = done


def _target_scores(head: nn.Linear, hidden_NRC: Tensor, target_NR: Tensor) -> tuple[Tensor, Tensor]:
    """nll and correctness [N, R] of the targets.

    Filled in place: small results kept between large logits would keep the allocator from using
    their memory again."""
    nll_NR = torch.empty_like(target_NR, dtype=torch.float32)
    correct_NR = torch.empty_like(target_NR, dtype=torch.bool)
    # The head takes many rows at once, and the loss fewer of these: its logits are in float32.
    head_rows = min(HEAD_ROWS, max(1, HEAD_LOGITS // head.out_features))
    loss_rows = max(1, LOSS_LOGITS // head.out_features)
    by_row = (hidden_NRC.flatten(0, 1), target_NR.flatten(), nll_NR.view(-1), correct_NR.view(-1))
    for hidden_RC, *results in zip(*(rows.split(head_rows) for rows in by_row), strict=True):
        parts = (head(hidden_RC), *results)
        for logits_RV, target_R, nll_R, correct_R in zip(
            *(rows.split(loss_rows) for rows in parts), strict=True
        ):
            logits_RV = logits_RV.float()
            nll_R.copy_(torch.nn.functional.cross_entropy(logits_RV, target_R, reduction="none"))
            correct_R.copy_(logits_RV.argmax(-1) == target_R)
    return nll_NR, correct_NR


def _choice_scores(
    head: nn.Linear, hidden_NRC: Tensor, target_NR: Tensor, choice_NK: Tensor
) -> tuple[Tensor, Tensor]:
    """Rank of each target among the choices of its text, and its nll if there were no other tokens;
    0 where nothing is asked.
    """
    is_answer_NR = target_NR != IGNORED
    answer_Q1 = target_NR[is_answer_NR][:, None]
    choice_QK = choice_NK[is_answer_NR.nonzero()[:, 0]]
    step = max(1, LOSS_LOGITS // head.out_features)
    by_question = (hidden_NRC[is_answer_NR], answer_Q1, choice_QK)
    ranks = []
    nlls = []
    for hidden_QC, answers_Q1, choices_QK in zip(
        *(rows.split(step) for rows in by_question), strict=True
    ):
        logits_QV = head(hidden_QC).float()
        answer_logit_Q1 = logits_QV.gather(1, answers_Q1)
        choice_logits_QK = logits_QV.gather(1, choices_QK)
        # The answer is among the choices, so the best rank is 1; equals count against it.
        ranks.append((choice_logits_QK >= answer_logit_Q1).sum(1))
        nlls.append(choice_logits_QK.logsumexp(1) - answer_logit_Q1[:, 0])
    rank_NR = torch.zeros_like(target_NR)
    nll_NR = torch.zeros_like(target_NR, dtype=torch.float32)
    rank_NR[is_answer_NR] = torch.cat(ranks)
    nll_NR[is_answer_NR] = torch.cat(nlls)
    return rank_NR, nll_NR
