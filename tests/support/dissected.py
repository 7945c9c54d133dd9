"""The anatomy of a triple of a small shape, for the tests of its numbers and its pictures."""

import torch
from conftest import node

from posbench.anatomy.dissect import Anatomy, dissect
from posbench.position.geometry import Shape
from posbench.position.instantiate import make

SHAPE = Shape(d_model=128, n_layer=4, n_head=2, n_kv_head=2, train_len=256)


def anatomy(encoding="rope", extension="none", scale="none", length=4096, shape=SHAPE, **arguments) -> Anatomy:
    """A triple; arguments are the extension's."""
    torch.manual_seed(0)
    parts = make(node("encoding", encoding), shape), make({**node("extension", extension), **arguments})
    return dissect(*parts, make(node("scale_attention", scale), shape), length)
