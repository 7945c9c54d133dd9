"""Check of what the hooks of a user's own encoding give, before anything is trained: their shapes,
and that no position depends on later tokens.

Letters: T tokens, C channels, H heads, R columns of a bias, S queries and K keys."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from posbench.common.errors import ConfigError
from posbench.position.geometry import Bias
from posbench.position.interfaces import Encoding

TEXT_LENGTH = (
    3  # tokens of the text that the hooks are asked about; shorter than any training length
)
# Of the pairs that a bias is asked for: another number, so that the two cannot be mixed up.
N_KEYS = 2


class HookResult(NamedTuple):
    """Result of a hook, and the shape that it must have."""

    hook: str
    value: object
    shape: tuple[int, ...]
    letters: str  # of the shape, such as "[H, S, K]"


def check_hooks(encoding: Encoding) -> None:
    """Raise ConfigError, naming hook and shapes, if a hook of an encoding's layers gives a tensor
    of a shape that kernels would misread, or positions that later tokens change.
    """
    # {encoding: index of its first layer}, since the last one set stays
    layers = {layer.encoding: layer.index for layer in reversed(encoding.layers())}
    for layer_encoding, index in layers.items():
        for result in _hook_results(layer_encoding, index):
            _check_shape(layer_encoding, result)
        if layer_encoding.placed_by_content:
            positions = layer_encoding.content_positions
            _check_causal(layer_encoding, index, positions, "content_positions moves")
            _check_has_table(layer_encoding)
        if layer_encoding.mixes:
            mixed = _mixer_as_hook(layer_encoding.mixer(index))
            _check_causal(layer_encoding, index, mixed, "mixer changes")


@torch.no_grad()
def _hook_results(encoding: Encoding, index: int) -> Iterator[HookResult]:
    """Results of the hooks that an encoding defines, for a small text, at the layer `index`."""
    heads = encoding.shape.n_head
    pos_T = torch.arange(TEXT_LENGTH, dtype=torch.float64)
    pos_K = pos_T[:N_KEYS]
    if Bias.PROFILE in encoding.biases:
        delta_SK = (pos_T[:, None] - pos_K).clamp(min=0).float()
        profile = encoding.profile(delta_SK, index)
        yield HookResult("profile", profile, (heads, TEXT_LENGTH, N_KEYS), "[H, *delta.shape]")
    if encoding.biases & Bias.DENSE:  # either of its kinds defines `bias`
        bias = encoding.bias(pos_T, pos_K, index)
        yield HookResult("bias", bias, (heads, TEXT_LENGTH, N_KEYS), "[H, S, K]")
    content = _content_arguments(encoding, index)
    if encoding.mixes:
        mixed = encoding.mixer(index)(content[0])
        yield HookResult("mixer", mixed, (1, TEXT_LENGTH, encoding.shape.d_model), "[B, T, C]")
    if Bias.GATES in encoding.biases:
        yield HookResult("gates", encoding.gates(*content), (1, heads, TEXT_LENGTH), "[B, H, T]")
    if Bias.CONTENT in encoding.biases:
        bias = encoding.content_bias(*content)(slice(0, TEXT_LENGTH), slice(0, N_KEYS))
        yield HookResult("content_bias", bias, (1, heads, TEXT_LENGTH, N_KEYS), "[B, H, S, K]")
    if encoding.placed_by_content:
        pos = encoding.content_positions(*content)
        shape = (1, heads, TEXT_LENGTH)
        letters = "[B, H, T]"
        if isinstance(pos, Tensor) and pos.ndim == 4:  # a coordinate for each frequency
            shape = (*shape, len(encoding.spectrum().freq_F))
            letters = "[B, H, T, F]"
        if isinstance(pos, Tensor) and pos.ndim > 1 and pos.shape[1] == 1:
            pos = pos.expand(-1, heads, *pos.shape[2:])  # heads may share it
        yield HookResult("content_positions", pos, shape, letters)


def _content_arguments(encoding: Encoding, index: int) -> tuple:
    """Arguments of a hook of content, for a text of TEXT_LENGTH tokens."""
    content = (torch.zeros(1, TEXT_LENGTH, encoding.shape.d_model), index)
    if encoding.reads_tokens:
        return *content, torch.zeros(1, TEXT_LENGTH, dtype=torch.int64)
    return content


def _check_shape(encoding: Encoding, result: HookResult) -> None:
    """Raise ConfigError unless a hook gave a tensor of the shape that it must have."""
    value = result.value
    if isinstance(value, Tensor) and value.shape == result.shape:
        return
    actual = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
    raise ConfigError(
        f"{type(encoding).__name__}.{result.hook} gives {actual}, and {result.letters} ="
        f" {list(result.shape)} is needed for {encoding.shape.n_head} heads: change its shape."
    )


def _mixer_as_hook(mixer: nn.Module) -> Callable[..., Tensor]:
    """Function from the arguments of a hook of content to the output of a mixer, [B, C, T]."""
    return lambda x_BTC, *_: mixer(x_BTC).mT


@torch.no_grad()
def _check_causal(encoding: Encoding, index: int, hook: Callable[..., Tensor], fault: str) -> None:
    """Raise ConfigError, with `fault`, if the last token changes what a hook gives for an earlier
    one. The tokens are on the third axis of what it gives.
    """
    # input of a layer, and the layer's index
    zeros_BTC, *other_arguments = _content_arguments(encoding, index)
    # Another input of the last token, any but zeros.
    other_BTC = zeros_BTC.clone()
    other_BTC[:, -1] = torch.linspace(0.1, 1, other_BTC.shape[-1])
    earlier = hook(zeros_BTC, *other_arguments)[:, :, :-1]
    other_earlier = hook(other_BTC, *other_arguments)[:, :, :-1]
    if not torch.allclose(earlier, other_earlier):
        raise ConfigError(
            f"{type(encoding).__name__}.{fault} a token by what comes after it: a"
            " model would see what it predicts; let each token depend on earlier tokens alone."
        )


@torch.no_grad()
def _check_has_table(encoding: Encoding) -> None:
    """Raise ConfigError for positions from the text that no table reads."""
    pos_T = torch.arange(TEXT_LENGTH, dtype=torch.float64)
    if encoding.table(pos_T, encoding.spectrum()) is None:
        raise ConfigError(
            f"{type(encoding).__name__}.content_positions has no effect, since the encoding has no"
            " table that reads positions: define table and rotate, or inherit from Rope."
        )
