"""Texts asked of an engine, as a protocol chooses them.

Letters: N texts, L tokens fed, R scored rows.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from torch import nn

from posbench.common.errors import ConfigError, RunError
from posbench.config.schema import JobConfig
from posbench.data.task import IGNORED
from posbench.engines.engine import Engine, make_engine
from posbench.evaluation.scorer import Scorer
from posbench.model.build import make_encoding
from posbench.position.interfaces import Encoding
from posbench.position.plan import Plan
from posbench.runs.directory import Run
from posbench.runs.provenance import collect_provenance

# seconds until an interrupt is noticed, at most: a signal that another thread takes does not end a
# wait
SECONDS_UNTIL_NOTICED = 0.5
SECONDS_BETWEEN_WRITES = 2.0  # seconds between two writes of the texts that were answered, at least


class EngineModel(nn.Module):
    """Running engine in the place of a model."""

    scale = None

    def __init__(self, engine: Engine, encoding: Encoding):
        super().__init__()
        self.engine, self.encoding = engine, encoding


@contextmanager
def running_engine(
    run: Run, config: JobConfig, device: str, fingerprint: str
) -> Iterator[EngineModel]:
    """Context with the engine of a job, ready to answer. The first time it makes the run.

    Raises ConfigError and RunError as Engine.start."""
    began = time.perf_counter()
    engine = make_engine(config.model.engine)
    facts = engine.start(config.as_dict())
    try:
        if not run.finished:
            listed = ", ".join(
                f"{key} {value}" for key, value in facts.items() if value is not None
            )
            print(f"asking {run.id} of {engine.kind}: {listed}", file=sys.stderr, flush=True)
            run.write_config(config.as_dict())
            provenance = collect_provenance(config.seed, device, fingerprint, n_parameters=None)
            run.write_provenance({**provenance, "engine": facts})
            run.write_summary(_training_summary(config, facts, time.perf_counter() - began))
        yield EngineModel(engine, make_encoding(config))
    finally:
        engine.stop()


def _training_summary(config: JobConfig, facts: dict, seconds: float) -> dict:
    """Content of train.json for a model that was not trained here."""
    return {
        "loss": None,
        "validation_loss": None,
        "tokens_per_second": None,
        "peak_mib": None,
        "n_params": None,
        "sha256": None,
        "steps": 0,
        "tokens": 0,
        "seconds": round(seconds, 3),
        "compiled": False,
        "checkpoint": config.model.checkpoint,
        "engine": facts,
    }


class _Request(NamedTuple):
    """A text that an engine was asked for: its row, key among kept answers, rows and time."""

    row: int
    key: str | None
    scored_R: np.ndarray
    began: float


class EngineScorer(Scorer):
    """Scorer whose model is an engine.

    A text that was answered is kept, so that the same command does not ask for it again."""

    dtype = "engine"

    def score_texts(
        self, plan: Plan, at_N: np.ndarray, n_rows: int, text: Callable[[np.ndarray], tuple]
    ) -> tuple[np.ndarray, ...]:
        """nll and correctness [N, n_rows], as Scorer.score_texts, of a text for each request.

        With `partial`, the answers to the same command that are kept in a file, an answer is taken
        from there or added to it. The file is deleted once the rows of all texts are written."""
        engine = self.model.engine
        nll_NR = np.zeros((len(at_N), n_rows), np.float32)
        correct_NR = np.zeros((len(at_N), n_rows), bool)
        requests: dict[Future, _Request] = {}
        if self.partial:
            self.partial.seconds_between_writes = SECONDS_BETWEEN_WRITES
        try:
            for row in range(len(at_N)):
                batch = text(at_N[row : row + 1])
                fed_1L, target_1R, choice_1K = batch
                key = self.partial and self.partial.key(plan.length, batch)
                answer = self.partial and self.partial.find(key)
                if answer:
                    nll_1R, correct_1R = answer
                    nll_NR[row] = nll_1R[0]
                    correct_NR[row] = correct_1R[0]
                    self.progress(plan.length, spared=True)
                    continue
                if choice_1K is not None:
                    raise ConfigError(
                        "An engine does not give the losses of choices, which this task needs:"
                        " choose one in words."
                    )
                future = request_losses(engine, text_with_targets(fed_1L[0], target_1R[0]), n_rows)
                scored_R = target_1R[0] != IGNORED
                requests[future] = _Request(row, key, scored_R, time.perf_counter())
                if len(requests) >= engine.at_once:
                    self._take_answers(requests, plan.length, nll_NR, correct_NR)
            while requests:
                self._take_answers(requests, plan.length, nll_NR, correct_NR)
        except BaseException:
            # Answers since the last write would be asked for again.
            if self.partial and self.partial.batches:
                self.partial.write()
            raise
        return nll_NR, correct_NR

    def _take_answers(
        self,
        requests: dict[Future, _Request],
        length: int,
        nll_NR: np.ndarray,
        correct_NR: np.ndarray,
    ) -> None:
        """Wait for answers, write them into the arrays and drop their requests."""
        done: set[Future] = set()
        while not done:  # a wait without a limit would not notice an interrupt
            done = wait(requests, SECONDS_UNTIL_NOTICED, FIRST_COMPLETED).done
        # Failures come last, so that every answer is kept.
        for future in sorted(done, key=lambda future: future.exception() is not None):
            row, key, scored_R, began = requests.pop(future)
            nll_R, correct_R = future.result()
            nll_NR[row, scored_R] = nll_R[scored_R]
            correct_NR[row, scored_R] = correct_R[scored_R]
            if np.isnan(nll_NR[row]).any():
                raise RunError(
                    f"The engine's loss is nan in a text of {length} tokens: leave it out of"
                    " evaluate.lengths."
                )
            if self.partial:
                arrays = [nll_NR[row : row + 1], correct_NR[row : row + 1]]
                self.partial.add(key, arrays, time.perf_counter() - began, self.peak.mib())
            self.progress(length)


def request_losses(engine: Engine, ids_L1: np.ndarray, n_rows: int) -> Future:
    """Future of Engine.losses.

    A thread that waits for an answer, unlike one of a pool, does not outlive an interrupted
    process."""
    future: Future = Future()

    def set_losses() -> None:
        try:
            future.set_result(engine.losses(ids_L1, n_rows))
        except Exception as error:
            future.set_exception(error)

    if engine.remote:
        threading.Thread(target=set_losses, daemon=True, name="asking").start()
    else:
        set_losses()
    return future


def text_with_targets(fed_L: np.ndarray, target_R: np.ndarray) -> np.ndarray:
    """Text [L + 1] whose last rows have these targets.

    Raises ConfigError for targets that are not the next tokens."""
    any_token = fed_L[-1]  # behind a text whose last target is not scored
    last = any_token if target_R[-1] == IGNORED else target_R[-1]
    ids_L1 = np.append(fed_L, last)
    scored_R = target_R != IGNORED
    if not np.array_equal(ids_L1[-len(target_R) :][scored_R], target_R[scored_R]):
        raise ConfigError(
            "This task asks for other tokens than the next ones of its text, which no engine"
            " answers: choose another."
        )
    return ids_L1
