"""Check of the shapes that the hooks of a user's own encoding give, before anything is trained.

Letters: T tokens, C channels, H heads, R columns of a bias, S queries and K keys."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from posbench.common.errors import ConfigError
from posbench.position.geometry import Bias
from posbench.position.interfaces import Encoding

LENGTH = 3  # tokens of the text that the hooks are asked about; shorter than any training length
KEYS = (
    2  # of the pairs that a bias is asked for: another number, so that the two cannot be mixed up
)


class HookResult(NamedTuple):
    """Result of a hook, and the shape that it must have."""

    hook: str
    value: object
    shape: tuple[int, ...]
    letters: str  # of the shape, such as "[H, S, K]"


def check_hooks(encoding: Encoding) -> None:
    """Raise ConfigError, naming hook and shapes, if a hook of an encoding's layers gives a tensor
    of a shape that kernels would misread.
    """
    for layer_encoding in dict.fromkeys(layer.encoding for layer in encoding.layers()):
        for result in _results(layer_encoding):
            _check(layer_encoding, result)


@torch.no_grad()
def _results(encoding: Encoding) -> Iterator[HookResult]:
    heads = encoding.shape.n_head
    pos_T = torch.arange(LENGTH, dtype=torch.float64)
    pos_K = pos_T[:KEYS]
    if Bias.PROFILE in encoding.biases:
        delta_SK = (pos_T[:, None] - pos_K).clamp(min=0).float()
        profile = encoding.profile(delta_SK, 0)
        yield HookResult("profile", profile, (heads, LENGTH, KEYS), "[H, *delta.shape]")
    if encoding.biases & Bias.DENSE:
        bias = encoding.bias(pos_T, pos_K, 0)
        yield HookResult("bias", bias, (heads, LENGTH, KEYS), "[H, S, K]")
    if Bias.GATES in encoding.biases:
        x_BTC = torch.zeros(1, LENGTH, encoding.shape.d_model)
        yield HookResult("gates", encoding.gates(x_BTC, 0), (1, heads, LENGTH), "[B, H, T]")


def _check(encoding: Encoding, result: HookResult) -> None:
    value = result.value
    if isinstance(value, Tensor) and value.shape == result.shape:
        return
    what = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
    raise ConfigError(
        f"{type(encoding).__name__}.{result.hook} gives {what}, and {result.letters} ="
        f" {list(result.shape)} is needed for {encoding.shape.n_head} heads: change its shape."
    )
