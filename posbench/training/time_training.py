"""Seconds of a training step on this machine, measured on some steps on random tokens, for
estimates before anything was trained.
"""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from posbench.config.schema import JobConfig
from posbench.data.corpus import Corpus
from posbench.data.tokenfile import TokenFile
from posbench.model.build import make_model, pick_device
from posbench.position.plan import training_plans
from posbench.training.trainer import Trainer

BEFORE, MOST, LEAST = (
    3,
    40,
    1.0,
)  # steps that only prepare, most that are timed, and seconds after which no further one begins


def step_seconds(cfg: JobConfig, vocab_size: int, threads: int) -> float:
    """Seconds of a step of a training with so many threads. Neither the state of random numbers nor
    the number of threads changes.
    """
    device, used = pick_device(cfg.device), torch.get_num_threads()
    tokens = np.random.default_rng(0).integers(
        0, vocab_size, max(65536, 4 * cfg.train.tokens_per_step)
    )
    text = TokenFile(tokens, np.ones(len(tokens), np.int64), np.array([0, len(tokens)]), ["random"])
    corpus = Corpus(text, text, text, "", "random", "", vocab_size, None, Path())
    try:
        torch.set_num_threads(threads)
        with torch.random.fork_rng(devices=[]):
            model = make_model(cfg, vocab_size).to(device)
            plans = training_plans(model.encoding, model.scale, device, cfg.seed)
            trainer = Trainer(
                model,
                corpus,
                replace(cfg.train, compile=False),
                cfg.seed,
                torch.device(device),
                plans,
            )
            spent: list[float] = []
            while len(spent) < BEFORE + 1 or (
                len(spent) < BEFORE + MOST and sum(spent[BEFORE:]) < LEAST
            ):
                began = time.perf_counter()
                trainer.advance()
                trainer.figures()  # waits for its loss
                spent.append(time.perf_counter() - began)
    finally:
        torch.set_num_threads(used)
    return float(np.mean(spent[BEFORE:]))
