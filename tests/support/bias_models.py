"""Encodings that bias scores or weigh whole rows, with every parameter moved, and attention under
them.
"""

import torch
from conftest import TRAIN_LEN, small_shape

from posbench.encodings.cope import Cope
from posbench.encodings.dape import Dape
from posbench.encodings.fire import Fire
from posbench.encodings.kerple import Kerple
from posbench.encodings.sandwich import Sandwich
from posbench.encodings.stick_breaking import StickBreaking
from posbench.encodings.t5 import T5
from posbench.model.kernels.blocks import attend_by_blocks
from posbench.position.plan import make_plan

LONG = 3 * TRAIN_LEN + 1
SHAPE = small_shape()
VARIANTS = {
    "t5": lambda: T5(SHAPE, share_layers=False),
    "kerple": lambda: Kerple(SHAPE),
    "kerple-power": lambda: Kerple(SHAPE, form="power"),
    "sandwich": lambda: Sandwich(SHAPE),
    "fire": lambda: Fire(SHAPE),
    "cope": lambda: Cope(SHAPE, positions=6),
    "cope-divided": lambda: Cope(SHAPE, positions=None, divide=True),
    "dape": lambda: Dape(SHAPE),
    "stick_breaking": lambda: StickBreaking(SHAPE),
    "stick_breaking-whole": lambda: StickBreaking(SHAPE, attend_self=True, remainder="self"),
    "stick_breaking-rest": lambda: StickBreaking(SHAPE, remainder="self"),
}


def randomised(encoding):
    """Every parameter moved, so that nothing hides behind a start at zero."""
    random = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=random)
    return encoding


def inputs(length: int, batch: int = 1, spread: float = 1.0) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(length)
    return [spread * torch.randn(batch, heads, length, 8, generator=random) for heads in (4, 2, 2)]


def attend(
    encoding, *qkv: torch.Tensor, extension=None, scale=None, layer: int = 0
) -> torch.Tensor:
    with torch.no_grad():
        return attend_by_blocks(
            make_plan(encoding, extension, scale, length=qkv[0].shape[2]).layers[layer], *qkv
        )


def profile_of(encoding, length: int = LONG) -> torch.Tensor:
    with torch.no_grad():
        return encoding.profile(torch.arange(length, dtype=torch.float32), 0).double()
