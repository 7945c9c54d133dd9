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
from posbench.evaluation.windows import BOS
from posbench.model import precision as bf16
from posbench.model.gpt import GPT
from posbench.model.memory import Peak
from posbench.model.rounded import rounded
from posbench.position.interfaces import Extension, ScaleAttention
from posbench.position.legality import fed_length, name_of
from posbench.position.plan import Plan, make_plan
from posbench.runs.unfinished import Unfinished

HEAD_ROWS = 4096  # rows that pass the output head at once
HEAD_LOGITS, LOSS_LOGITS = (
    2**25,
    2**22,
)  # with a large vocabulary fewer: so many logits of the head at once, and in float32 for the loss


@dataclass
class Scorer:
    """Model, text and settings of one evaluation.

    `chooser` chooses the targets where another model than `model` does. `progress(n)` is called
    after every n tokens that the model has read, with part=True while their batch is unfinished,
    and spared=True where an earlier process read them. `kept` holds such batches; a copy has none,
    since it reads with another model or method."""

    model: GPT
    corpus: Corpus
    extension: Extension
    scale: ScaleAttention
    config: EvaluateConfig
    device: str
    chooser: GPT | None = None
    progress: Callable[..., None] = lambda n, part=False: None
    kept: Unfinished | None = field(default=None, init=False)
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

    def fed(self, length: int) -> int:
        """Number of tokens fed at once in a text of `length`; fewer than that if the extension
        gives each target its own text.
        """
        return fed_length(self.extension, self.train_len, length)

    def plan(self, length: int) -> Plan:
        """Plan of `length` tokens. A dynamic method takes its factor from this length."""
        scales = {"scale": self.scale, "trained_scale": self.model.scale}
        return make_plan(
            self.model.encoding, self.extension, **scales, length=length, device=self.device
        )

    def opened(self, index_NL: np.ndarray) -> np.ndarray:
        """Replace, in place, the first token of each window by the BOS if the corpus has one, since
        windows begin so in training.
        """
        if self.corpus.bos is not None:
            index_NL[:, 0] = BOS
        return index_NL

    def score(
        self,
        plan: Plan,
        at_N: np.ndarray,
        n_rows: int,
        index: Callable[[np.ndarray, int], np.ndarray],
    ) -> tuple:
        """nll and correctness [N, n_rows] of the last n_rows tokens of windows, each predicted from
        everything before it in its window.

        `index(at_n, L)` returns the token indices [n, L + 1] of some of the windows: the L =
        plan.length tokens fed, and the last target. Raises RunError for a loss that is nan. An
        infinite loss is kept."""

        def text(at_n: np.ndarray) -> tuple[np.ndarray, np.ndarray, None]:
            index_NL = index(at_n, plan.length)
            ids_NL = self.file.tokens[index_NL].astype(np.int64)
            if self.corpus.bos is not None:
                ids_NL[index_NL == BOS] = self.corpus.bos
            return ids_NL[:, :-1], ids_NL[:, -n_rows:], None

        return self.read(plan, at_N, n_rows, text)[:2]

    @torch.inference_mode()
    def read(
        self, plan: Plan, at_N: np.ndarray, n_rows: int, text: Callable[[np.ndarray], tuple]
    ) -> tuple[np.ndarray, ...]:
        """nll and correctness [N, n_rows] of the targets of texts, and, with choices, the answer's
        rank and nll among them [N, n_rows].

        `text(at_n)` gives of some of the texts the tokens that are fed [n, L], the targets of the
        last n_rows [n, n_rows], IGNORED where nothing is asked, and the choices [n, K] or None. The
        rank of the likeliest choice is 1, and equals count against the answer. Raises as `score`.
        """
        batch = max(1, self.config.batch_tokens // plan.length)
        found = []
        size = told = 0  # tokens of the batch, and those already reported

        def tell(share: float) -> None:
            nonlocal told
            done = int(share * size)
            if done > told:
                self.progress(done - told, part=True)
                told = done

        plan = plan.telling(tell)
        model = rounded(self.model) if self.config.dtype == "bf16" else self.model
        for start in range(0, len(at_N), batch):
            began = time.perf_counter()
            asked = fed_NL, target_NR, choice_NK = text(at_N[start : start + batch])
            size, told = fed_NL.size, 0
            key = self.kept and self.kept.key(plan.length, asked)
            if self.kept and (before := self.kept.find(key)):
                found.append(before)
                self.progress(size, spared=True)
                continue
            fed_NL, target_NR = (
                torch.from_numpy(ids).to(self.device) for ids in (fed_NL, target_NR)
            )
            with bf16.autocast(self.device, self.config.dtype):
                hidden_NRC = model.hidden(fed_NL, plan, n_rows)
                nll_NR, correct_NR = read = _read_batch(model.lm_head, hidden_NRC, target_NR)
                if choice_NK is not None:
                    read += _among(
                        model.lm_head,
                        hidden_NRC,
                        target_NR,
                        torch.from_numpy(choice_NK).to(self.device),
                    )
            if nll_NR.isnan().any():
                wider = "" if self.config.dtype == "fp32" else "set evaluate.dtype=fp32, "
                raise RunError(
                    f"The model's loss is nan at {int(nll_NR.isnan().sum())} of {nll_NR.numel()}"
                    f" tokens read at length {plan.length} with extension={name_of(self.extension)}"
                    f" in {self.config.dtype}: {wider}leave this length out of evaluate.lengths, or"
                    " train again with a lower train.lr."
                )
            found.append([one.cpu().numpy() for one in read])
            if self.kept:
                self.kept.add(key, found[-1], time.perf_counter() - began, self.peak.mib())
            self.progress(size - told)
        return tuple(map(np.concatenate, zip(*found, strict=True)))

    @contextmanager
    def measured(self) -> Iterator[dict]:
        """Context that fills the dict it gives with the `seconds` and `peak_mib` of what was done
        in it, and of what was done before.
        """
        spent: dict[str, float] = {}
        self.peak, began = Peak(self.device), time.perf_counter()
        before = self.kept.seconds if self.kept else 0.0
        yield spent
        spent.update(seconds=time.perf_counter() - began, peak_mib=self.peak.mib())
        if self.kept and self.kept.seconds > before:
            spent["seconds"] += self.kept.seconds - before
            spent["peak_mib"] = max(spent["peak_mib"], self.kept.peak_mib)

    def max_distance(self, plan: Plan) -> float | None:
        """Largest coordinate distance between a query and a key it sees; None for an encoding
        without traits.
        """
        if not plan.layers[0].encoding.traits:
            return None
        farthest = [
            (band.q_pos_T - band.k_pos_T[band.farthest_T.clamp(max=plan.length - 1)])[
                band.seen_T > 0
            ]
            for layer in plan.layers
            for band in layer.bands
        ]
        return max(float(distance_T.max()) for distance_T in farthest if len(distance_T))


def _read_batch(head: nn.Linear, hidden_NRC: Tensor, target_NR: Tensor) -> tuple[Tensor, Tensor]:
    # Filled in place: small results kept between large logits would keep the allocator from using
    # their memory again.
    nll_NR, correct_NR = (
        torch.empty_like(target_NR, dtype=torch.float32),
        torch.empty_like(target_NR, dtype=torch.bool),
    )
    at_once, together = (
        max(1, logits // head.out_features) for logits in (HEAD_LOGITS, LOSS_LOGITS)
    )
    rows = (
        t.split(min(HEAD_ROWS, at_once))
        for t in (
            hidden_NRC.flatten(0, 1),
            target_NR.flatten(),
            nll_NR.view(-1),
            correct_NR.view(-1),
        )
    )
    for hidden_RC, *some in zip(*rows, strict=True):
        for logits_RV, target_R, nll_R, correct_R in zip(
            head(hidden_RC).split(together), *(t.split(together) for t in some), strict=True
        ):
            logits_RV = logits_RV.float()
            nll_R.copy_(torch.nn.functional.cross_entropy(logits_RV, target_R, reduction="none"))
            correct_R.copy_(logits_RV.argmax(-1) == target_R)
    return nll_NR, correct_NR


def _among(
    head: nn.Linear, hidden_NRC: Tensor, target_NR: Tensor, choice_NK: Tensor
) -> tuple[Tensor, Tensor]:
    """Rank of each target among the choices of its text, and its nll if there were no other tokens;
    0 where nothing is asked.
    """
    asked_NR = target_NR != IGNORED
    rank_NR, nll_NR = torch.zeros_like(target_NR), torch.zeros_like(target_NR, dtype=torch.float32)
    target_Q1, choice_QK = target_NR[asked_NR][:, None], choice_NK[asked_NR.nonzero()[:, 0]]
    step = max(1, LOSS_LOGITS // head.out_features)
    rows = zip(
        *(each.split(step) for each in (hidden_NRC[asked_NR], target_Q1, choice_QK)), strict=True
    )
    ranks, nlls = [], []
    for hidden_QC, own_Q1, others_QK in rows:
        logits_QV = head(hidden_QC).float()
        answer_Q1, among_QK = logits_QV.gather(1, own_Q1), logits_QV.gather(1, others_QK)
        ranks.append((among_QK >= answer_Q1).sum(1))
        nlls.append(among_QK.logsumexp(1) - answer_Q1[:, 0])
    rank_NR[asked_NR], nll_NR[asked_NR] = torch.cat(ranks), torch.cat(nlls)
    return rank_NR, nll_NR
