"""Decays, low-rank biases and gates as a part of q and k, so that any kernel can run them.

Letters: B batch, T tokens, H heads, G key heads, D head width, R columns of a bias, W width with
columns."""

import torch
import torch.nn.functional as F
from torch import Tensor

from posbench.position.geometry import Bias
from posbench.position.layer_plan import BandPlan, LayerPlan

# Biases that no column of q and k can hold.
BIASES_BEYOND_COLUMNS = Bias.DENSE | Bias.ROWS | Bias.CONTENT
# Largest exponent of a decay counted from the middle of the text: its products stay within float32.
LARGEST_DECAY_EXPONENT = 60.0
# Indices of bf16 pieces (of q, of k) whose products reach down to 2^-24 of the largest.
PIECE_PAIRS = ((0, 0), (0, 1), (1, 0), (0, 2), (1, 1), (2, 0))


def decay_fits_float32(layer: LayerPlan, band: BandPlan) -> bool:
    """True if the decay, if any, stays within float32 over a whole band."""
    decay_D = layer.encoding.decay()

    def fits() -> bool:
        # `with_decay` counts from it, so that exponents stay small.
        middle = band.q_pos_T[len(band.q_pos_T) // 2]
        largest_distance = max(
            float((pos_T - middle).abs().max()) for pos_T in (band.q_pos_T, band.k_pos_T)
        )
        return float(decay_D.max()) * largest_distance < LARGEST_DECAY_EXPONENT

    return decay_D is None or band.made_once("decay_fits_float32", fits)


def fused_kernel_inputs(
    layer: LayerPlan,
    band: BandPlan,
    q_BHTD: Tensor,
    k_BGTD: Tensor,
    v_BGTD: Tensor,
    gates_BHT: Tensor | None = None,
    *,
    dtype: torch.dtype,
    scales_q: bool = True,
    sink_H: Tensor | None = None,
    v_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of a band as a fused kernel takes them: rotated, scaled, with all biases as
    columns, of one format and width W.

    `scales_q=False` leaves 1 / sqrt(D) to the kernel. `v_dtype` is a format of v alone, None for
    `dtype`. With `sink_H` they have a token more, in front: see `with_sink_in_front`."""
    encoding = layer.encoding
    scored_width = q_BHTD.shape[-1]
    q_BHTD, k_BGTD = layer.turned(band, q_BHTD, k_BGTD)
    q_pos_T, k_pos_T = band.positions(v_BGTD.device)
    decay_D = encoding.decay()
    if decay_D is not None:
        # From the middle exponents on either side are smallest: see `decay_fits_float32`.
        middle = q_pos_T[len(q_pos_T) // 2]
        q_BHTD, k_BGTD = with_decay(q_BHTD, k_BGTD, decay_D, q_pos_T, k_pos_T, origin=middle)
    if scales_q:
        q_BHTD = layer.scaled(q_BHTD, scored_width)
    q_BHTD = q_BHTD.to(dtype)
    k_BGTD = k_BGTD.to(dtype)
    v_BGTD = v_BGTD.to(v_dtype or dtype)
    # With one band and no sink a constant on all scores of a query changes nothing. A sink counts
    # also where the caller merges it with the outputs, and sink_H is None.
    row_constant = len(layer.bands) > 1 or layer.has_sink
    columns = encoding.columns(q_pos_T, k_pos_T, row_constant=row_constant)
    if columns is not None:
        q_BHTD, k_BGTD = with_bias_columns(q_BHTD, k_BGTD, *columns)
    if gates_BHT is not None:
        q_BHTD, k_BGTD = with_gate_columns(q_BHTD, k_BGTD, gates_BHT)
    if sink_H is not None:
        q_BHTD, k_BGTD, v_BGTD = with_sink_in_front(
            q_BHTD, k_BGTD, v_BGTD, sink_logit(sink_H, gates_BHT)
        )
    # The fused kernels need q, k and v of equal width (CUDA's: a multiple of 8); otherwise torch
    # silently builds the [T, T] matrix.
    width = max(q_BHTD.shape[-1], v_BGTD.shape[-1])
    if width > v_BGTD.shape[-1]:  # q and k have columns more; equal widths stay
        width += -width % 8
    return (
        padded_to_width(q_BHTD, width),
        padded_to_width(k_BGTD, width),
        padded_to_width(v_BGTD, width),
    )


def padded_to_width(x_BHTW: Tensor, width: int) -> Tensor:
    """x with zeros up to `width` channels; itself if it is as wide, where F.pad would copy it."""
    missing = width - x_BHTW.shape[-1]
    if missing <= 0:
        return x_BHTW
    return F.pad(x_BHTW, (0, missing))


def with_decay(
    q_BHTD: Tensor,
    k_BGTD: Tensor,
    decay_D: Tensor,
    q_pos_T: Tensor,
    k_pos_T: Tensor,
    origin: Tensor,
) -> tuple[Tensor, Tensor]:
    """q and k whose products contain exp(-rate (q_pos - k_pos)); both positions are counted from
    `origin` to stay within float32.
    """
    q_TD = torch.exp(-decay_D.double() * (q_pos_T - origin)[:, None]).float()
    k_TD = torch.exp(decay_D.double() * (k_pos_T - origin)[:, None]).float()
    return q_BHTD * q_TD, k_BGTD * k_TD


def with_bias_columns(
    q_BHTD: Tensor, k_BGTD: Tensor, q_HTR: Tensor, k_TR: Tensor
) -> tuple[Tensor, Tensor]:
    """Append a bias's columns to q and k.

    One bf16 number cannot hold a position (257 is already rounded). So in bf16 each factor becomes
    three bf16 pieces with an exact sum, and the products of pieces down to 2^-24 of the largest
    become columns. The bias is then as exact as in float32."""
    if q_BHTD.dtype == torch.bfloat16:
        q_pieces = bf16_pieces(q_HTR)
        k_pieces = bf16_pieces(k_TR)
        q_HTR = torch.cat([q_pieces[a] for a, _ in PIECE_PAIRS], dim=-1)
        k_TR = torch.cat([k_pieces[b] for _, b in PIECE_PAIRS], dim=-1)
    q_extra = q_HTR.to(q_BHTD.dtype).expand(q_BHTD.shape[0], -1, -1, -1)
    k_extra = k_TR.to(k_BGTD.dtype).expand(*k_BGTD.shape[:2], -1, -1)
    return torch.cat((q_BHTD, q_extra), dim=-1), torch.cat((k_BGTD, k_extra), dim=-1)


def with_gate_columns(q_BHTD: Tensor, k_BGTD: Tensor, gates_BHT: Tensor) -> tuple[Tensor, Tensor]:
    """Append columns to q and k (float32) that add the gates' sums to the scores: one for each
    query head of a key head.

    The score of key j gets c_middle - c_j of the query's head. This differs from c_i - c_j by a
    constant per row, which softmax ignores. From the middle on the sums are smallest."""
    groups = q_BHTD.shape[1] // k_BGTD.shape[1]
    middle = gates_BHT.shape[-1] // 2
    k_BGTR = (gates_BHT[..., middle, None] - gates_BHT).float().unflatten(1, (-1, groups)).mT
    q_HR = torch.eye(groups, device=q_BHTD.device).repeat(k_BGTD.shape[1], 1)
    q_extra = q_HR[:, None].expand(q_BHTD.shape[0], -1, q_BHTD.shape[2], -1)
    return torch.cat((q_BHTD, q_extra), dim=-1), torch.cat((k_BGTD, k_BGTR), dim=-1)


def sink_logit(
    sink_H: Tensor, gates_BHT: Tensor | None, rows: slice = slice(None), origin: int | None = None
) -> Tensor:
    """Logit of the sink beside scores whose gates are summed from `origin` (the middle) and not
    from the query: [1, H, 1] without gates, else [B, H, S].

    `gates_BHT`: sums of the gates up to each token, float64, of which the difference is small
    enough for float32."""
    if gates_BHT is None:
        return sink_H[None, :, None]
    if origin is None:
        origin = gates_BHT.shape[-1] // 2  # as `with_gate_columns` does
    return (sink_H[:, None] - (gates_BHT[..., rows] - gates_BHT[..., origin, None])).float()


def with_sink_in_front(
    q_BHTW: Tensor, k_BGTW: Tensor, v_BGTW: Tensor, sink_BHT: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v with a sink as the first token: a key that each query scores by `sink_BHT`, whose
    value is 0, and a query to leave out.
    """
    # One bf16 number is too coarse: a column for each piece, which only the sink's key multiplies.
    pieces = bf16_pieces(sink_BHT) if q_BHTW.dtype == torch.bfloat16 else [sink_BHT]
    q_extra = torch.stack(pieces, dim=-1).to(q_BHTW.dtype).expand(*q_BHTW.shape[:3], -1)
    q_BHTW = F.pad(torch.cat((q_BHTW, q_extra), dim=-1), (0, 0, 1, 0))
    k_BGTW = F.pad(k_BGTW, (0, 0, 1, 0))
    v_BGTW = F.pad(v_BGTW, (0, 0, 1, 0))
    is_sink_T = F.pad(k_BGTW.new_ones(1), (0, k_BGTW.shape[2] - 1))
    k_extra = is_sink_T[:, None].expand(*k_BGTW.shape[:3], len(pieces))
    return q_BHTW, torch.cat((k_BGTW, k_extra), dim=-1), v_BGTW


def bf16_pieces(x: Tensor) -> list[Tensor]:
    """Three bf16 tensors whose sum is float32 `x` exactly (3 x 8 bits of mantissa)."""
    pieces = []
    for _ in range(3):
        pieces.append(x.to(torch.bfloat16))
        x = x - pieces[-1].float()
    return pieces
