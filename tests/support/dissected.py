"""The anatomy of a triple of a small shape, for the tests of its numbers and its pictures."""

from dataclasses import asdict
from pathlib import Path

import torch
from conftest import node

from posbench.config.schema import ModelConfig, TrainConfig
from posbench.model.gpt import GPT
from posbench.model.weights import save_weights
from posbench.position.geometry import Shape
from posbench.position.instantiate import make_method
from posbench.runs.directory import Run
from posbench.tools.anatomy.dissect import Anatomy, dissect

SHAPE = Shape(d_model=128, n_layer=4, n_head=2, n_kv_head=2, train_len=256)


def anatomy(
    encoding="rope", extension="none", scale="none", length=4096, shape=SHAPE, **arguments
) -> Anatomy:
    """A triple; arguments are the extension's."""
    torch.manual_seed(0)
    parts = (
        make_method(node("encoding", encoding), shape),
        make_method({**node("extension", extension), **arguments}),
    )
    return dissect(*parts, make_method(node("scale_attention", scale), shape), length)


def trained_t5(path: Path, factor: float = 1.0) -> Run:
    """A finished training of 16 tokens whose biases are the numbers from 0 to 63, times a
    factor.
    """
    config, train = (
        ModelConfig(d_model=16, n_layer=1, n_head=2, d_ff=32),
        {**asdict(TrainConfig()), "length": 16},
    )
    model, run = (
        GPT(config, make_method(node("encoding", "t5"), Shape(16, 1, 2, 2, 16)), 50),
        Run(path),
    )
    with torch.no_grad():
        model.encoding.weight.copy_(factor * torch.arange(64).view(1, 32, 2))
    with run.lock():
        run.write_config(
            {
                "encoding": node("encoding", "t5"),
                "model": asdict(config),
                "train": train,
                "data": {},
                "seed": 0,
            }
        )
        run.write_summary({"sha256": save_weights(run.weights, model)})
    return run
