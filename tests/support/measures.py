"""What several test files measure of methods: a small model's outputs, one layer's attention,
distances and frequencies.
"""

from dataclasses import replace

import torch
from conftest import TRAIN_LEN, small_model, small_shape

from posbench.encodings.rope import Rope
from posbench.model.kernels.dispatch import with_key_head_per_query_head
from posbench.position.geometry import Bias, Shape, Span, Spectrum
from posbench.position.interfaces import Extension
from posbench.position.plan import make_plan

LONG = 4 * TRAIN_LEN
ROPE = Rope(small_shape(64, d_model=256)).spectrum()
SPAN = Span(64, 256, 256)


def tokens(length: int, batch: int = 2) -> torch.Tensor:
    return torch.randint(0, 50, (batch, length), generator=torch.Generator().manual_seed(3))


def outputs(encoding, extension=None, scale=None, length: int = LONG) -> torch.Tensor:
    with torch.no_grad():
        return small_model(encoding)(
            tokens(length), make_plan(encoding, extension, scale, length=length)
        )


def attention_inputs(encoding, length: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """q, k, v and x of one layer, float32."""
    random = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(1, heads, length, 8, generator=random) for heads in (4, 2, 2))
    return [q, k, v], torch.randn(1, length, encoding.shape.d_model, generator=random)


def attend_in(kernel, layer, q, k, v, x):
    """One kernel's output, as `attend` calls it; an encoding that reads the text gets `tokens`."""
    if layer.encoding.reads_tokens:
        layer = replace(layer, tokens_BT=tokens(x.shape[1], batch=1))
    gates = None
    if Bias.GATES in layer.encoding.biases:
        gates = layer.encoding.gates(*layer.content_arguments(x))
    if layer.reads_content:
        layer = layer.for_text(x)
        k, v = with_key_head_per_query_head(layer, q, k, v)
    return kernel(layer, q, k, v, None if gates is None else gates.double().cumsum(dim=-1))


def freq(extension: Extension, spectrum: Spectrum = ROPE, span: Span = SPAN) -> torch.Tensor:
    return extension.spectrum(spectrum, span).freq_F


def distances(extension: Extension, length: int, train_len: int = TRAIN_LEN) -> torch.Tensor:
    """Coordinate distance of each pair [L, L], NaN where it is not visible."""
    distance_TT = torch.full((length, length), torch.nan, dtype=torch.float64)
    for band in make_plan(Rope(small_shape(train_len)), extension, length=length).layers[0].bands:
        index_T = torch.arange(length)
        distance_TT = torch.where(
            band.seen(index_T, index_T), band.q_pos_T[:, None] - band.k_pos_T, distance_TT
        )
    return distance_TT


def plain(length: int) -> torch.Tensor:
    index = torch.arange(length, dtype=torch.float64)
    return torch.where(index <= index[:, None], index[:, None] - index, torch.nan)


def equal(a: torch.Tensor, b: torch.Tensor, atol: float = 1e-9) -> None:
    """Of float64 numbers, NaN where NaN is."""
    torch.testing.assert_close(a, b, rtol=0, atol=atol, equal_nan=True)


def same(a: torch.Tensor, b: torch.Tensor, atol: float = 2e-5) -> None:
    """Of what float32 computed."""
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


def wide(head_dim: int, train_len: int = 64, n_head: int = 2) -> Shape:
    return Shape(head_dim * n_head, 2, n_head, n_head, train_len)


def turned(encoding, x_BHTD: torch.Tensor) -> torch.Tensor:
    """q turned at 0, 1, 2, ..., not decayed."""
    pos_T = torch.arange(x_BHTD.shape[2], dtype=torch.float64)
    table = encoding.table(pos_T, encoding.spectrum())
    return encoding.rotate(x_BHTD, x_BHTD, table, table)[0]
