"""Texts asked of an engine, as a protocol chooses them.

Letters: N texts, L tokens fed, R scored rows.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager

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
from posbench.runs import provenance
from posbench.runs.directory import Run

# seconds until an interrupt is noticed, at most: a signal that another thread takes does not end a
# wait
NOTICED_EVERY = 0.5
KEPT_EVERY = 2.0  # seconds between two writes of the texts that were answered, at least


class EngineModel(nn.Module):
    """Running engine in the place of a model."""

    scale = None

    def __init__(self, engine: Engine, encoding: Encoding):
        super().__init__()
        self.engine, self.encoding = engine, encoding


@contextmanager
def running(run: Run, cfg: JobConfig, device: str, fingerprint: str) -> Iterator[EngineModel]:
    """Context with the engine of a job, ready to answer. The first time it makes the run, with what
    the engine says of itself.

    Raises ConfigError and RunError as Engine.start.
    """
    began, engine = time.perf_counter(), make_engine(cfg.model.engine)
    said = engine.start(cfg.as_dict())
    try:
        if not run.finished:
            listed = ", ".join(f"{key} {value}" for key, value in said.items() if value is not None)
            print(f"asking {run.id} of {engine.kind}: {listed}", file=sys.stderr, flush=True)
            run.write_config(cfg.as_dict())
            run.write_provenance(
                {
                    **provenance.collect_provenance(cfg.seed, device, fingerprint, None),
                    "engine": said,
                }
            )
            none = dict.fromkeys(
                ("loss", "validation_loss", "tokens_per_second", "peak_mib", "n_params", "sha256")
            )
            spent = {
                "steps": 0,
                "tokens": 0,
                "seconds": round(time.perf_counter() - began, 3),
                "compiled": False,
            }
            run.write_summary({**none, **spent, "checkpoint": cfg.model.checkpoint, "engine": said})
        yield EngineModel(engine, make_encoding(cfg))
    finally:
        engine.stop()


class AskingScorer(Scorer):
    """Scorer whose model is an engine. A text that was answered is kept, so that the same command
    does not ask for it again.
    """

    dtype = "engine"

    def read(
        self, plan: Plan, at_N: np.ndarray, n_rows: int, text: Callable[[np.ndarray], tuple]
    ) -> tuple[np.ndarray, ...]:
        engine = self.model.engine
        nll_NR, correct_NR = (
            np.zeros((len(at_N), n_rows), np.float32),
            np.zeros((len(at_N), n_rows), bool),
        )
        flying: dict[Future, tuple] = {}
        if self.kept:
            self.kept.every = KEPT_EVERY

        def land() -> None:
            while not (done := wait(flying, NOTICED_EVERY, FIRST_COMPLETED).done):
                pass
            for future in sorted(
                done, key=lambda future: future.exception() is not None
            ):  # so that every answer is kept
                row, key, asked_R, began = flying.pop(future)
                nll_R, correct_R = future.result()
                nll_NR[row, asked_R], correct_NR[row, asked_R] = nll_R[asked_R], correct_R[asked_R]
                if np.isnan(nll_NR[row]).any():
                    raise RunError(
                        f"The engine's loss is nan in a text of {plan.length} tokens: leave it out"
                        " of evaluate.lengths."
                    )
                if self.kept:
                    arrays = [nll_NR[row : row + 1], correct_NR[row : row + 1]]
                    self.kept.add(key, arrays, time.perf_counter() - began, self.peak.mib())
                self.progress(plan.length)

        try:
            for row in range(len(at_N)):
                asked = fed_1L, target_1R, choice_1K = text(at_N[row : row + 1])
                key = self.kept and self.kept.key(plan.length, asked)
                if self.kept and (before := self.kept.find(key)):
                    nll_NR[row], correct_NR[row] = before[0][0], before[1][0]
                    self.progress(plan.length, spared=True)
                    continue
                if choice_1K is not None:
                    raise ConfigError(
                        "An engine does not give the losses of choices, which this task needs:"
                        " choose one in words."
                    )
                future = asked_of(engine, whole_text(fed_1L[0], target_1R[0]), n_rows)
                flying[future] = row, key, target_1R[0] != IGNORED, time.perf_counter()
                if len(flying) >= engine.at_once:
                    land()
            while flying:
                land()
        except BaseException:
            if self.kept and self.kept.batches:
                self.kept.write()
            raise
        return nll_NR, correct_NR


def asked_of(engine: Engine, ids_L1: np.ndarray, n_rows: int) -> Future:
    """Future of Engine.losses. A thread that waits for an answer, unlike one of a pool, does not
    outlive an interrupted process.
    """
    future: Future = Future()

    def work() -> None:
        try:
            future.set_result(engine.losses(ids_L1, n_rows))
        except Exception as error:
            future.set_exception(error)

    if engine.remote:
        threading.Thread(target=work, daemon=True, name="asking").start()
    else:
        work()
    return future


def whole_text(fed_L: np.ndarray, target_R: np.ndarray) -> np.ndarray:
    """Text [L + 1] whose last rows have these targets. Raises ConfigError for targets that are not
    the next tokens.
    """
    ids_L1 = np.append(fed_L, fed_L[-1] if target_R[-1] == IGNORED else target_R[-1])
    asked_R = target_R != IGNORED
    if not np.array_equal(ids_L1[-len(target_R) :][asked_R], target_R[asked_R]):
        raise ConfigError(
            "This task asks for other tokens than the next ones of its text, which no engine"
            " answers: choose another."
        )
    return ids_L1
