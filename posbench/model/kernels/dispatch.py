"""Choice of the attention kernel.

All kernels take projected queries and keys (float32, not scaled) and a layer's plan. `attend_fused`
runs torch's fused kernel or causal.py for the plain causal triangle, with a low-rank bias folded
into extra columns of q and k. It cannot run biases that are not columns, scales by distance, or
methods that weigh whole rows. `chunked_sdpa` runs the same biases with windows and several bands in
evaluations on a CPU, and `attend_by_flex` more than these on CUDA. `attend_by_blocks` (blocks.py)
runs any plan on any device.

Letters: B batch, T tokens, H heads, G key heads, D head width, R columns of a bias.
"""

import functools
import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from posbench.model.kernels import flex
from posbench.model.kernels.blocks import (
    BLOCK_QUERIES,
    PreparedBand,
    WeightedBlock,
    attend_by_blocks,
    queries_per_block,
)
from posbench.model.kernels.causal import LONGEST_IN_BF16, causal_attention
from posbench.model.kernels.chunked_sdpa import PAIRS_PER_CALL, can_chunk, chunked_sdpa
from posbench.model.kernels.folding import (
    BIASES_BEYOND_COLUMNS,
    decay_fits_float32,
    fused_kernel_inputs,
)
from posbench.model.precision import LONGEST_UNCHUNKED, dtype_of_fused_kernel, dtype_of_values
from posbench.position.geometry import Bias
from posbench.position.layer_plan import LayerPlan
from posbench.position.products import ROW_GROUP

# Tokens up to which gates summed from the middle of the text keep 1e-3 in float32.
# `attend_by_blocks` restarts the sum in each block.
LONGEST_WITH_SUMMED_GATES = 4096


def attend(
    layer: LayerPlan,
    x_BTC: Tensor,
    q_BHTD: Tensor,
    k_BGTD: Tensor,
    v_BGTD: Tensor,
    n_last: int | None = None,
) -> Tensor:
    """Attention of one layer over all its bands: [B, H, T, D] in v's dtype, or only for
    its `n_last` last queries; None for all.

    x_BTC is the input that q and k were projected from. Gates are computed from it.
    """
    length = q_BHTD.shape[2]
    n_last = min(n_last or length, length)
    first_query = length - n_last
    # Fused kernels compute all queries, which pays if more than half of them are wanted.
    wants_most = 2 * n_last > length
    learns = torch.is_grad_enabled()
    with torch.autocast(q_BHTD.device.type, enabled=False):
        gates_BHT = summed_gates(layer, x_BTC)
        if layer.reads_content:
            layer = layer.for_text(x_BTC)
            k_BGTD, v_BGTD = with_key_head_per_query_head(layer, q_BHTD, k_BGTD, v_BGTD)
        if wants_most and can_fuse(layer):
            return attend_fused(layer, q_BHTD, k_BGTD, v_BGTD, gates_BHT)[:, :, -n_last:]
        long_on_cpu = v_BGTD.device.type == "cpu" and length > LONGEST_UNCHUNKED
        if long_on_cpu and not learns and can_chunk(layer, first_query):
            return chunked_sdpa(layer, q_BHTD, k_BGTD, v_BGTD, first_query)  # there are no gates
        if v_BGTD.is_cuda and not learns and wants_most and flex.can_flex(layer):
            try:
                y_BHTD = flex.attend_by_flex(layer, q_BHTD, k_BGTD, v_BGTD, gates_BHT)
                return y_BHTD[:, :, -n_last:].to(v_BGTD.dtype)
            # Compilers fail in many ways and memory can run out. `attend_by_blocks` needs no
            # compiler and little memory.
            except Exception as error:
                flex.leave_to_blocks(layer, error)
        values_dtype = dtype_of_values(v_BGTD)
        # With gradients v is float32: those of its blocks are added up.
        v = v_BGTD.to(torch.float32 if learns else values_dtype).contiguous()
        y_BHTD = attend_by_blocks(layer, q_BHTD, k_BGTD, v, gates_BHT, first_query, values_dtype)
        return y_BHTD.to(v_BGTD.dtype)


def attention_weights(
    layer: LayerPlan, x_BTC: Tensor, q_BHTD: Tensor, k_BGTD: Tensor, n_last: int
) -> Iterator[tuple[int, list[tuple[slice, Tensor]]]]:
    """Attention weights of the `n_last` last queries of any plan, in float32.

    Yields (first query, [(keys, weights [B, H, S, K]) of each band]) of each block of queries. A
    key is seen in one band at most, and weighs 0 in the others. What is missing to a sum of 1 is
    the share of a sink, or of no key."""
    length = q_BHTD.shape[2]
    block_rows = queries_per_block(q_BHTD, BLOCK_QUERIES)
    with torch.autocast(q_BHTD.device.type, enabled=False):
        gates_BHT = summed_gates(layer, x_BTC)
        if layer.reads_content:
            layer = layer.for_text(x_BTC)
            # Where the text places tokens, it may do so for each query head by itself.
            # Weights need no v: k stands in its place, here and below.
            k_BGTD, _ = with_key_head_per_query_head(layer, q_BHTD, k_BGTD, k_BGTD)
        bands = [
            PreparedBand(layer, band, q_BHTD, k_BGTD, gates_BHT, block_rows) for band in layer.bands
        ]
        block = WeightedBlock(layer, bands, k_BGTD, block_rows)
        for start in range(length - n_last, length, block_rows):
            yield start, block.weights(start, min(start + block_rows, length))


def with_key_head_per_query_head(
    layer: LayerPlan, q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor
) -> tuple[Tensor, Tensor]:
    """k and v with a head for each query head, if the text places the tokens of each query head by
    itself; else k and v as they are.
    """
    queries_per_key = q_BHTD.shape[1] // k_BGTD.shape[1]  # heads
    if queries_per_key == 1 or not layer.encoding.placed_by_content:
        return k_BGTD, v_BGTD
    k_table = layer.bands[0].k_table  # of the same positions as those of other bands
    if k_table.shape[-3] == 1:  # all heads have the same coordinates
        return k_BGTD, v_BGTD
    return (
        k_BGTD.repeat_interleave(queries_per_key, dim=1),
        v_BGTD.repeat_interleave(queries_per_key, dim=1),
    )


def summed_gates(layer: LayerPlan, x_BTC: Tensor) -> Tensor | None:
    """Sums of the gates from the first token to each: [B, H, T], float64; None for an encoding
    without gates.
    """
    if Bias.GATES not in layer.encoding.biases:
        return None
    return layer.encoding.gates(*layer.content_arguments(x_BTC)).double().cumsum(dim=-1)


def can_fuse(layer: LayerPlan) -> bool:
    """True if `attend_fused` can run this plan exactly."""
    encoding = layer.encoding
    if not layer.causal or layer.changes_single_scores or encoding.biases & BIASES_BEYOND_COLUMNS:
        return False
    # Sums of the gates of a longer text lose digits.
    if Bias.GATES in encoding.biases and len(layer.n_T) > LONGEST_WITH_SUMMED_GATES:
        return False
    return decay_fits_float32(layer, layer.bands[0])  # a causal plan has one band


def attend_fused(
    layer: LayerPlan,
    q_BHTD: Tensor,
    k_BGTD: Tensor,
    v_BGTD: Tensor,
    gates_BHT: Tensor | None = None,
) -> Tensor:
    """Run the whole causal triangle in one kernel call, or two heads a call where that would take a
    CPU many seconds: [B, H, T, D].
    """
    width = v_BGTD.shape[-1]
    length = v_BGTD.shape[2]
    scored_width = q_BHTD.shape[-1]
    out_dtype = v_BGTD.dtype
    gated = gates_BHT is not None
    uses_causal_attention = _prefers_causal_attention(v_BGTD, gated)
    # For a width of 4^n 1 / sqrt(D) is a power of two, which changes no digit, whoever multiplies.
    # A bare layer has no other factor, and no columns or sink that the kernel must not scale.
    is_power_of_two = math.log2(scored_width) % 2 == 0
    kernel_scales = layer.is_bare and is_power_of_two and not uses_causal_attention
    dtype = dtype_of_fused_kernel(v_BGTD, gated)
    (band,) = layer.bands  # the triangle is a single one
    q_BHTW, k_BGTW, v_BGTW = fused_kernel_inputs(
        layer,
        band,
        q_BHTD,
        k_BGTD,
        v_BGTD,
        gates_BHT,
        dtype=dtype,
        scales_q=not kernel_scales,
        sink_H=layer.sink(q_BHTD),
        v_dtype=dtype_of_values(v_BGTD, gated) if uses_causal_attention else dtype,
    )
    if uses_causal_attention:
        kernel = causal_attention
    else:
        scale = scored_width**-0.5 if kernel_scales else 1.0
        kernel = functools.partial(F.scaled_dot_product_attention, is_causal=True, scale=scale)
    # A sink is the first token, and its query is no query of the text.
    without_sink_and_padding = (slice(int(layer.has_sink), None), slice(width))
    batch, heads = q_BHTW.shape[:2]
    triangle_pairs = batch * heads * length**2 // 2
    fits_one_call = triangle_pairs <= PAIRS_PER_CALL
    # Only long evaluations on a CPU are cut into calls.
    if fits_one_call or v_BGTD.device.type != "cpu" or torch.is_grad_enabled():
        y_BHTW = _output_of_all_heads(kernel, q_BHTW, k_BGTW, v_BGTW, uses_causal_attention)
        return y_BHTW[:, :, *without_sink_and_padding].to(out_dtype)
    # The output projection reads it in this order.
    y_BTHD = v_BGTW.new_empty(batch, length, heads, width, dtype=out_dtype)
    # Calls stay short, so that Ctrl-C and progress need not wait. Threads share out the rows of all
    # heads, and a row costs what precedes it: of one head or three, one thread gets most of the
    # work.
    for head in range(0, heads, 2):
        stop = min(head + 2, heads)
        y_BHTW = _output_of_heads(kernel, q_BHTW, k_BGTW, v_BGTW, head, stop)
        y_BTHD[:, :, head:stop] = y_BHTW[:, :, *without_sink_and_padding].transpose(1, 2)
        del y_BHTW  # so that the next call reuses its memory
        layer.report_progress(stop / (heads + 1))  # below 1: the MLP follows
    return y_BTHD.transpose(1, 2)


def _prefers_causal_attention(v_BGTD: Tensor, gated: bool) -> bool:
    """True where causal.py runs the triangle, and not torch's kernel: it is faster there, or its
    digits do not depend on the number of threads.
    """
    if v_BGTD.device.type != "cpu":
        return False
    length = v_BGTD.shape[2]
    if torch.is_grad_enabled():  # it is faster, with the backward pass
        return True
    if length < ROW_GROUP:  # the digits of torch's kernel depend on the number of threads
        return True
    if length > LONGEST_IN_BF16:  # torch's kernel is as fast
        return False
    # It is faster where it multiplies values in bf16, and torch's kernel would in float32.
    return dtype_of_values(v_BGTD, gated) != dtype_of_fused_kernel(v_BGTD, gated)


def _output_of_all_heads(
    kernel: Callable, q_BHTW: Tensor, k_BGTW: Tensor, v_BGTW: Tensor, uses_causal_attention: bool
) -> Tensor:
    """Output of one call of a kernel: [B, H, T, W]."""
    groups = q_BHTW.shape[1] // k_BGTW.shape[1]
    if groups == 1:
        return kernel(q_BHTW, k_BGTW, v_BGTW)
    # `causal_attention` shares no key heads; nor does CUDA's fused kernel for float32, for which
    # torch would build [T, T] without a word.
    if uses_causal_attention or (v_BGTW.is_cuda and v_BGTW.dtype == torch.float32):
        k_BHTW = k_BGTW.repeat_interleave(groups, dim=1)
        v_BHTW = v_BGTW.repeat_interleave(groups, dim=1)
        return kernel(q_BHTW, k_BHTW, v_BHTW)
    return kernel(q_BHTW, k_BGTW, v_BGTW, enable_gqa=True)


def _output_of_heads(
    kernel: Callable, q_BHTW: Tensor, k_BGTW: Tensor, v_BGTW: Tensor, head: int, stop: int
) -> Tensor:
    """Output of heads head..stop-1, one or two: [B, 1 or 2, T, W]."""
    queries_per_key = q_BHTW.shape[1] // k_BGTW.shape[1]  # heads
    # one that both share, or two
    key_heads = slice(head // queries_per_key, (stop - 1) // queries_per_key + 1)
    k = k_BGTW[:, key_heads].expand(-1, stop - head, -1, -1)
    v = v_BGTW[:, key_heads].expand(-1, stop - head, -1, -1)
    return kernel(q_BHTW[:, head:stop], k, v)
