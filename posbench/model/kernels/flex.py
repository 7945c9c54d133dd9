"""`attend_by_flex`: torch's FlexAttention on CUDA without gradients.

It runs windows, several bands, biases by distance, and gates. It cannot run methods that weigh
whole rows, decays, or biases that depend on more than the distance. `attend_by_blocks` runs these,
and trains.

Each band is one call. Merging disjoint bands by their log-sum-exp gives the softmax over all of
them.

Letters: B batch, T tokens, H heads, G key heads, D head width.
"""

import functools
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from posbench.common.errors import first_line
from posbench.model.kernels.folding import padded_to_width
from posbench.model.precision import dtype_of_fused_kernel
from posbench.position.geometry import Bias
from posbench.position.layer_plan import BandPlan, LayerPlan

BLOCK_SIZE = 128  # queries and keys of a block: the size that the kernel is made for
NARROWEST_HEAD = 16  # width of heads below which the kernel refuses
# Compiled forms allowed in one process: well above lengths x batches x biases.
MOST_COMPILED_SHAPES = 4096
FAILED_BEFORE = "FlexAttention failed"  # key in the cache of a plan's band


def can_flex(layer: LayerPlan) -> bool:
    """True if `attend_by_flex` can run this plan exactly and has not failed on it before."""
    encoding = layer.encoding
    if FAILED_BEFORE in layer.bands[0].cache:
        return False
    # `_score_mods` has none of these.
    if (
        layer.softcap is not None
        or layer.row_weighing_scale is not None
        or encoding.decay() is not None
    ):
        return False
    # These weigh whole rows, or have a number for each pair.
    if encoding.biases & (Bias.ROWS | Bias.PAIRWISE | Bias.CONTENT):
        return False
    # A profile becomes a table by index distance, which needs coordinates on a line.
    return Bias.PROFILE not in encoding.biases or all(band.line is not None for band in layer.bands)


def attend_by_flex(
    layer: LayerPlan,
    q_BHTD: Tensor,
    k_BGTD: Tensor,
    v_BGTD: Tensor,
    gates_BHT: Tensor | None = None,
) -> Tensor:
    """Run all bands of a layer and merge them: [B, H, T, D], float32. q and k are float32, v has
    the model's format, gates float64 sums.
    """
    outputs = []
    logsumexps = []  # log-sum-exp of each query's scores, of each band and the sink: [B, H, T]
    for band in layer.bands:
        # None for a band of which no query sees a key
        sees_T = band.made_once(
            ("sees", q_BHTD.device),
            lambda band=band: (
                (band.n_seen_T > 0).to(q_BHTD.device) if band.n_seen_T.any() else None
            ),
        )
        if sees_T is not None:
            y_BHTD, lse_BHT = _band_output(layer, band, q_BHTD, k_BGTD, v_BGTD, gates_BHT)
            outputs.append(y_BHTD)
            # A query that sees no key of a band gets no weight there; its row of the kernel's
            # output is undefined.
            logsumexps.append(torch.where(sees_T, lse_BHT, -torch.inf))
    if layer.has_sink:
        logsumexps.append(layer.sink(q_BHTD)[:, None].expand_as(logsumexps[0]))
    if len(logsumexps) == 1:
        return outputs[0].float()
    shares = torch.stack(logsumexps).softmax(dim=0).unsqueeze(-1)
    # A sink has the last share and no value.
    return sum(share * y_BHTD.float() for share, y_BHTD in zip(shares, outputs, strict=False))


def _band_output(
    layer: LayerPlan,
    band: BandPlan,
    q_BHTD: Tensor,
    k_BGTD: Tensor,
    v_BGTD: Tensor,
    gates_BHT: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Output [B, H, T, D] of one band, and the log-sum-exp of its scores [B, H, T]."""
    from torch.nn.attention.flex_attention import AuxRequest

    device = q_BHTD.device
    width = v_BGTD.shape[-1]
    scored_width = q_BHTD.shape[-1]
    q_BHTD, k_BGTD = layer.turned(band, q_BHTD, k_BGTD)
    q_BHTD = layer.scaled(q_BHTD, scored_width)
    dtype = dtype_of_fused_kernel(v_BGTD, gated=gates_BHT is not None)
    q_BHTD, k_BGTD, v_BGTD = (
        padded_to_width(x.to(dtype), NARROWEST_HEAD) for x in (q_BHTD, k_BGTD, v_BGTD)
    )
    score_mods = _score_mods(layer, band, gates_BHT, device)

    def modified_score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        for score_mod in score_mods:
            s = score_mod(s, b, h, i, j)
        return s

    attention = _flex_attention(device.type)
    y_BHTD, aux = attention(
        q_BHTD,
        k_BGTD,
        v_BGTD,
        score_mod=modified_score if score_mods else None,
        block_mask=band.made_once(("blocks", device), lambda: block_mask(band, device)),
        scale=1.0,
        enable_gqa=q_BHTD.shape[1] != k_BGTD.shape[1],
        return_aux=AuxRequest(lse=True),
    )
    return y_BHTD[..., :width], aux.lse


def _score_mods(
    layer: LayerPlan, band: BandPlan, gates_BHT: Tensor | None, device: torch.device
) -> list[Callable]:
    """Changes of a score s of query i and key j: rules by distance, columns of a bias, its profile,
    and gates.
    """
    # Later keys, of a distance below 0, are hidden: any value is right there. Defaults such as r=r
    # bind what a loop goes on to change.
    length = len(layer.n_T)  # n_T has a number for each query
    delta_T = torch.arange(length, dtype=torch.float64)
    mods = []
    for rule in layer.distance_rules:
        factor_T, addend_T = (part.float().to(device) for part in rule.distance(delta_T))
        mods.append(
            lambda s, b, h, i, j, f=factor_T, a=addend_T: (
                s * f[(i - j).clamp(min=0)] + a[(i - j).clamp(min=0)]
            )
        )
    # Bands and a sink are merged by their log-sum-exps, to which a constant of a query counts.
    columns = layer.encoding.columns(*band.positions(device), row_constant=True)
    if columns is not None:
        q_HTR, k_TR = columns
        # One column at a time: the kernel compiles a function of a single pair.
        mods += [
            lambda s, b, h, i, j, r=r: s + q_HTR[h, i, r] * k_TR[j, r]
            for r in range(k_TR.shape[-1])
        ]
    if Bias.PROFILE in layer.encoding.biases:
        table_HT = layer.profile(band, delta_T.to(device))
        mods.append(lambda s, b, h, i, j: s + table_HT[h, (i - j).clamp(min=0)])
    if gates_BHT is not None:
        # Two float32 numbers hold a float64 sum, so that the small difference of two large sums
        # stays accurate.
        high_BHT = gates_BHT.float()
        low_BHT = (gates_BHT - high_BHT.double()).float()
        mods.append(
            lambda s, b, h, i, j: (
                s + (high_BHT[b, h, i] - high_BHT[b, h, j]) + (low_BHT[b, h, i] - low_BHT[b, h, j])
            )
        )
    return mods


def block_mask(band: BandPlan, device: torch.device):
    """BlockMask of a band: the blocks that the kernel skips, runs whole or masks. Made from
    intervals, never from [T, T].
    """
    from torch.nn.attention.flex_attention import BlockMask

    first_T = band.first_T
    last_T = band.last_T
    length = len(first_T)
    n_blocks = -(-length // BLOCK_SIZE)  # rounded up
    row_T = torch.arange(length) // BLOCK_SIZE

    def n_queries_with_block(low_T: Tensor, high_T: Tensor) -> Tensor:
        """Number of queries, for each row of blocks, that have each block of keys between their
        `low` and `high`: [Q, K].
        """
        # No interval: first > last for a query that sees no key, low > high where no whole block
        # lies between them.
        counted_T = (first_T <= last_T) & (low_T <= high_T)
        # 1 where an interval begins and -1 behind its end: their running sum counts intervals.
        edges_QK = torch.zeros(n_blocks, n_blocks + 1, dtype=torch.int32)
        for at_T, step in ((low_T, 1), (high_T + 1, -1)):
            edge = (row_T[counted_T], at_T[counted_T])
            edges_QK.index_put_(edge, torch.tensor(step, dtype=torch.int32), accumulate=True)
        return edges_QK.cumsum(dim=-1)[:, :-1]

    def counts_and_order(blocks_QK: Tensor) -> tuple[Tensor, Tensor]:
        """Number of blocks in each row, and all block numbers with the row's own first: [1, 1, Q]
        and [1, 1, Q, K].
        """
        blocks_11QK = blocks_QK.int()[None, None]
        order_11QK = blocks_11QK.argsort(dim=-1, descending=True, stable=True)
        return blocks_11QK.sum(dim=-1).int(), order_11QK.int()

    # A block is touched if any of its queries sees one of its keys, and needs no mask if each of
    # its queries sees all of them.
    touched_QK = n_queries_with_block(first_T // BLOCK_SIZE, last_T // BLOCK_SIZE) > 0
    # A last block that the text does not fill has fewer queries or keys, so it is masked and not
    # run whole.
    first_whole_T = -(-first_T // BLOCK_SIZE)  # blocks that lie within the interval
    last_whole_T = (last_T + 1) // BLOCK_SIZE - 1
    unmasked_QK = n_queries_with_block(first_whole_T, last_whole_T) == BLOCK_SIZE
    if band.lot_T is not None:  # keys drawn at random hide some everywhere
        unmasked_QK = torch.zeros_like(unmasked_QK)
    mask = BlockMask.from_kv_blocks(
        *counts_and_order(touched_QK & ~unmasked_QK),
        *counts_and_order(unmasked_QK),
        BLOCK_SIZE=BLOCK_SIZE,
        seq_lengths=(length, length),
        mask_mod=_sees_pair(band, device),
    )
    return mask.to(device)


def _sees_pair(band: BandPlan, device: torch.device) -> Callable:
    """Rule of single pairs: whether query i sees key j, in batch b and head h."""
    first_T = band.first_T.to(device)
    last_T = band.last_T.to(device)

    def inside(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j >= first_T[i]) & (j <= last_T[i])

    if band.lot_T is None:
        return inside
    # Of its interval a query sees the keys whose lot is below its share.
    lot_T = band.lot_T.to(device)
    share_T = band.share_T.to(device)
    return lambda b, h, i, j: inside(b, h, i, j) & (lot_T[j] < share_T[i])


@functools.cache
def _flex_attention(device: str) -> Callable:
    """FlexAttention, compiled on CUDA. On a CPU the compiled form returns no log-sum-exp, so the
    plain form runs, which builds [T, T].
    """
    from torch.nn.attention.flex_attention import flex_attention

    if device == "cuda":
        return compiled_for_each_shape(flex_attention, fullgraph=True)
    return flex_attention


def compiled_for_each_shape(function: Callable, **options: object) -> Callable:
    """Compile `function` for each new shape. Raises at MOST_COMPILED_SHAPES shapes; torch's default
    limit is low and then runs it uncompiled.
    """
    run = torch.compile(function, dynamic=False, **options)

    def call(*args: object, **kwargs: object) -> object:
        limits = {
            "recompile_limit": MOST_COMPILED_SHAPES,
            "accumulated_recompile_limit": MOST_COMPILED_SHAPES,
            "fail_on_recompile_limit_hit": True,  # else torch runs the function uncompiled
        }
        with torch._dynamo.config.patch(limits):
            return run(*args, **kwargs)

    return call


def leave_to_blocks(layer: LayerPlan, error: Exception) -> None:
    """Leave this plan to `attend_by_blocks` from now on, and print each reason once."""
    layer.bands[0].cache[FAILED_BEFORE] = True
    _print_failure_once(first_line(error))


@functools.cache
def _print_failure_once(reason: str) -> None:
    print(f"FlexAttention failed ({reason}): the slower kernel runs instead", file=sys.stderr)
