"""Choice of the attention kernel. All kernels take projected queries and keys (float32, not scaled)
and a layer's plan.

`fused` runs torch's fused kernel or causal.py for the plain causal triangle, with a low-rank bias
folded into extra columns of q and k. It cannot run biases that are not columns, scales by distance,
or encodings that weigh whole rows. `chunked_sdpa` runs the same biases with windows and several
bands in evaluations on a CPU, and `flex` more than these on CUDA. `rows` (blocks.py) runs any plan
on any device.

Letters: B batch, T tokens, H heads, G key heads, D head width, R columns of a bias.
"""

import functools
import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from posbench.model.kernels import flex
from posbench.model.kernels.blocks import BLOCK, PreparedBand, Weighted, block_size, rows
from posbench.model.kernels.causal import LONGEST, causal
from posbench.model.kernels.chunked_sdpa import CALL, can_chunk, chunked_sdpa
from posbench.model.kernels.folding import foldable, operands
from posbench.model.precision import SHORT, of_fused, of_values
from posbench.position.geometry import Bias
from posbench.position.layer_plan import LayerPlan
from posbench.position.products import TOGETHER

# tokens up to which gates summed from the middle of the text keep 1e-3 in float32; `rows` restarts
# the sum in each block
GATED = 4096


def attend(
    layer: LayerPlan,
    x_BTC: Tensor,
    q_BHTD: Tensor,
    k_BGTD: Tensor,
    v_BGTD: Tensor,
    last: int | None = None,
) -> Tensor:
    """Attention of one layer over all its bands: [B, H, T, D] in v's dtype, or only its `last`
    queries.

    x_BTC is the input that q and k were projected from. Gates are computed from it.
    """
    length = q_BHTD.shape[2]
    last = min(last or length, length)
    with torch.autocast(q_BHTD.device.type, enabled=False):
        gates_BHT = summed_gates(layer, x_BTC)
        if fusible(layer) and 2 * last > length:
            return fused(layer, q_BHTD, k_BGTD, v_BGTD, gates_BHT)[:, :, -last:]
        first, learns = length - last, torch.is_grad_enabled()
        if (
            v_BGTD.device.type == "cpu"
            and not learns
            and length > SHORT
            and can_chunk(layer, first)
        ):
            return chunked_sdpa(layer, q_BHTD, k_BGTD, v_BGTD, first)
        if v_BGTD.is_cuda and not learns and 2 * last > length and flex.possible(layer):
            try:
                return flex.flex(layer, q_BHTD, k_BGTD, v_BGTD, gates_BHT)[:, :, -last:].to(
                    v_BGTD.dtype
                )
            # compilers fail in many ways and memory can run out; `rows` needs no compiler and
            # little memory
            except Exception as error:
                flex.give_up(layer, error)
        values = of_values(v_BGTD)
        # With gradients v is float32: those of its blocks are added up.
        v = v_BGTD.to(torch.float32 if learns else values).contiguous()
        return rows(layer, q_BHTD, k_BGTD, v, gates_BHT, first, values).to(v_BGTD.dtype)


def attention_weights(
    layer: LayerPlan, x_BTC: Tensor, q_BHTD: Tensor, k_BGTD: Tensor, last: int
) -> Iterator[tuple[int, list[tuple[slice, Tensor]]]]:
    """Attention weights of the `last` queries of any plan, in float32, by blocks: its first query,
    and of each band (keys, [B, H, S, K]).

    A key is seen in one band at most, and weighs 0 in the others. What is missing to a sum of 1 is
    the share of a sink, or of no key."""
    length, step = q_BHTD.shape[2], block_size(q_BHTD, BLOCK)
    with torch.autocast(q_BHTD.device.type, enabled=False):
        gates_BHT = summed_gates(layer, x_BTC)
        block = Weighted(
            layer,
            [PreparedBand(layer, band, q_BHTD, k_BGTD, gates_BHT, step) for band in layer.bands],
            k_BGTD,
            step,
        )
        for start in range(length - last, length, step):
            yield start, block.weights(start, min(start + step, length))


def summed_gates(layer: LayerPlan, x_BTC: Tensor) -> Tensor | None:
    """Sums of the gates from the first token to each: [B, H, T], float64; None for an encoding
    without gates.
    """
    if Bias.GATES not in layer.encoding.biases:
        return None
    return layer.encoding.gates(x_BTC.float(), layer.index).double().cumsum(dim=-1)


def fusible(layer: LayerPlan) -> bool:
    """True if `fused` can run this plan exactly."""
    encoding = layer.encoding
    if not layer.causal or layer.per_score or encoding.biases & (Bias.DENSE | Bias.ROWS):
        return False
    if Bias.GATES in encoding.biases and len(layer.n_T) > GATED:
        return False
    return foldable(layer, layer.bands[0])


def fused(
    layer: LayerPlan,
    q_BHTD: Tensor,
    k_BGTD: Tensor,
    v_BGTD: Tensor,
    gates_BHT: Tensor | None = None,
) -> Tensor:
    """Run the whole causal triangle in one kernel call, or two heads a call where that would take a
    CPU many seconds: [B, H, T, D].
    """
    width, kept, length, scored = v_BGTD.shape[-1], v_BGTD.dtype, v_BGTD.shape[2], q_BHTD.shape[-1]
    sink_H, own = (
        layer.sink(q_BHTD),
        slice(int(layer.has_sink), None),
    )  # a sink is the first token, and no result
    given = layer, layer.bands[0], q_BHTD, k_BGTD, v_BGTD, gates_BHT
    gated, on_cpu, learns = (
        gates_BHT is not None,
        v_BGTD.device.type == "cpu",
        torch.is_grad_enabled(),
    )
    values, dtype = of_values(v_BGTD, gated), of_fused(v_BGTD, gated)
    blocked = on_cpu and (learns or length < TOGETHER or (length <= LONGEST and values != dtype))
    inside = (
        layer.bare and math.log2(scored) % 2 == 0 and not blocked
    )  # a power of two changes no digit, whoever multiplies by it
    own_format = values if blocked else dtype
    q_BHTD, k_BGTD, v_BGTD = operands(
        *given, dtype=dtype, scaled=not inside, sink_H=sink_H, values=own_format
    )
    heads, groups = q_BHTD.shape[1], q_BHTD.shape[1] // k_BGTD.shape[1]
    torchs = functools.partial(
        F.scaled_dot_product_attention, is_causal=True, scale=scored**-0.5 if inside else 1.0
    )
    at_once = causal if blocked else torchs
    if not on_cpu or learns or len(q_BHTD) * heads * length**2 // 2 <= CALL:
        if groups > 1 and (blocked or (v_BGTD.is_cuda and v_BGTD.dtype == torch.float32)):
            # `causal` shares no key heads; nor does CUDA's fused kernel for float32, for which
            # torch would build [T, T] without a word.
            k_BGTD, v_BGTD, groups = (
                *(t.repeat_interleave(groups, dim=1) for t in (k_BGTD, v_BGTD)),
                1,
            )
        at_once = functools.partial(at_once, enable_gqa=True) if groups > 1 else at_once
        return at_once(q_BHTD, k_BGTD, v_BGTD)[:, :, own, :width].to(kept)
    y_BTHD = v_BGTD.new_empty(
        len(q_BHTD), length, heads, width, dtype=kept
    )  # the output projection reads it in this order
    # Calls stay short, so that Ctrl-C and progress need not wait. Threads share out the rows of all
    # heads, and a row costs what precedes it: of one head or three, one thread gets most of the
    # work.
    for start in range(0, heads, 2):
        q = q_BHTD[:, start : start + 2]
        two = slice(start // groups, (start + q.shape[1] - 1) // groups + 1)
        k, v = (t[:, two].expand(-1, q.shape[1], -1, -1) for t in (k_BGTD, v_BGTD))
        y_BTHD[:, :, start : start + 2] = at_once(q, k, v)[:, :, own, :width].transpose(1, 2)
        layer.tell((start + q.shape[1]) / (heads + 1))
    return y_BTHD.transpose(1, 2)
