"""Seconds of a training step on this machine, for estimates before anything was trained.

They are measured on some steps on random tokens.
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
from posbench.position.plan import training_plan_maker
from posbench.training.trainer import Trainer

WARMUP_STEPS = 3  # steps that only prepare
MOST_STEPS = 40  # that are timed
ENOUGH_SECONDS = 1.0  # after which no further step begins
FEWEST_TOKENS = 65536  # at least, of the random text


def step_seconds(config: JobConfig, vocab_size: int, threads: int) -> float:
    """Seconds of a step of a training with so many threads. Neither the state of random numbers nor
    the number of threads changes.
    """
    device = pick_device(config.device)
    threads_before = torch.get_num_threads()
    # Long enough for some different steps; the text itself makes no difference to their time.
    corpus = _random_text(vocab_size, max(FEWEST_TOKENS, 4 * config.train.tokens_per_step))
    try:
        torch.set_num_threads(threads)
        with torch.random.fork_rng(devices=[]):  # weights are drawn on the CPU
            model = make_model(config, vocab_size).to(device)
            plans = training_plan_maker(model.encoding, model.scale, device, config.seed)
            # Compiling would take longer than all that is measured.
            train_config = replace(config.train, compile=False)
            trainer = Trainer(model, corpus, train_config, config.seed, torch.device(device), plans)
            for _ in range(WARMUP_STEPS):
                _timed_step(trainer)
            seconds = [_timed_step(trainer)]
            while len(seconds) < MOST_STEPS and sum(seconds) < ENOUGH_SECONDS:
                seconds.append(_timed_step(trainer))
    finally:
        torch.set_num_threads(threads_before)
    return float(np.mean(seconds))


def _random_text(vocab_size: int, length: int) -> Corpus:
    """A corpus whose only document is `length` random tokens."""
    tokens = np.random.default_rng(0).integers(0, vocab_size, length)
    text = TokenFile(
        tokens,
        n_bytes=np.ones(len(tokens), np.int64),
        starts=np.array([0, len(tokens)]),
        names=["random"],
    )
    return Corpus(
        train=text,
        validation=text,
        test=text,
        fingerprint="",
        name="random",
        tokenizer="",
        vocab_size=vocab_size,
        bos=None,
        folder=Path(),
    )


def _timed_step(trainer: Trainer) -> float:
    """Seconds of one step, its loss awaited."""
    start = time.perf_counter()
    trainer.advance()
    trainer.figures()  # waits for the loss
    return time.perf_counter() - start
