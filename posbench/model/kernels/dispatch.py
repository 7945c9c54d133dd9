"""Choice of the attention kernel. All kernels take projected queries and keys (float32, not scaled) and a layer's plan.

`fused` runs torch's fused kernel for the plain causal triangle, with a low-rank bias folded into extra columns of q and k. It cannot
run biases that are not columns, scales by distance, or encodings that weigh whole rows. `flex` (flex.py) runs most of these on CUDA.
`rows` (blocks.py) runs any plan on any device.

Letters: B batch, T tokens, H heads, G key heads, D head width, R columns of a bias.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from posbench.model.kernels import flex, number_format
from posbench.model.kernels.blocks import rows
from posbench.model.kernels.folding import damp, fold, fold_gates
from posbench.position.geometry import Bias
from posbench.position.plan import LayerPlan

GATED = 4096  # tokens up to which gates summed from the middle of the text keep 1e-3 in float32; `rows` restarts the sum in each block
LONG = 4096  # tokens from which a CPU needs seconds per layer: then key heads run one by one, so that Ctrl-C and progress need not wait
DECAY = 60.0  # largest exponent of a decay counted from the middle of the text: its products stay within float32


def attend(layer: LayerPlan, x_BTC: Tensor, q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor, last: int | None = None) -> Tensor:
    """Attention of one layer over all its bands: [B, H, T, D] in v's dtype, or only its `last` queries.

    x_BTC is the input that q and k were projected from. Gates are computed from it.
    """
    length = q_BHTD.shape[2]
    last = min(last or length, length)
    with torch.autocast(q_BHTD.device.type, enabled=False):
        gates_BHT = layer.encoding.gates(x_BTC.float(), layer.index) if Bias.GATES in layer.encoding.biases else None
        if gates_BHT is not None:
            gates_BHT = gates_BHT.double().cumsum(dim=-1)
        if fusible(layer) and 2 * last > length:
            return fused(layer, q_BHTD, k_BGTD, v_BGTD, gates_BHT)[:, :, -last:]
        if v_BGTD.is_cuda and not torch.is_grad_enabled() and 2 * last > length and flex.possible(layer):
            try:
                return flex.flex(layer, q_BHTD, k_BGTD, v_BGTD.float(), gates_BHT)[:, :, -last:].to(v_BGTD.dtype)
            except Exception as error:  # compilers fail in many ways and memory can run out; `rows` needs no compiler and little memory
                flex.give_up(layer, error)
        return rows(layer, q_BHTD, k_BGTD, v_BGTD.float(), gates_BHT, first=length - last).to(v_BGTD.dtype)


def fusible(layer: LayerPlan) -> bool:
    """True if `fused` can run this plan exactly."""
    encoding, decay_D = layer.encoding, layer.encoding.decay()
    if not layer.causal or layer.distance_rules or encoding.biases & (Bias.DENSE | Bias.ROWS):
        return False
    if Bias.GATES in encoding.biases and len(layer.n_T) > GATED:
        return False
    reach = float(layer.bands[0].q_pos_T.max() - layer.bands[0].q_pos_T.min()) / 2
    return decay_D is None or float(decay_D.max()) * reach < DECAY


def fused(layer: LayerPlan, q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor, gates_BHT: Tensor | None = None) -> Tensor:
    """Run the whole causal triangle in one kernel call (one call per key head for long texts on a CPU): [B, H, T, D]."""
    band, encoding = layer.bands[0], layer.encoding
    width, kept, device = v_BGTD.shape[-1], v_BGTD.dtype, v_BGTD.device
    q_BHTD, k_BGTD = layer.turned(band, q_BHTD, k_BGTD)
    q_pos_T, k_pos_T = band.q_pos_T.to(device), band.k_pos_T.to(device)
    decay_D = encoding.decay()
    if decay_D is not None:
        q_BHTD, k_BGTD = damp(q_BHTD, k_BGTD, decay_D, q_pos_T, k_pos_T, q_pos_T[len(q_pos_T) // 2])
    q_BHTD = layer.scaled(q_BHTD, width)
    dtype = number_format.of_fused(v_BGTD, gated=gates_BHT is not None)
    q_BHTD, k_BGTD, v_BGTD = q_BHTD.to(dtype), k_BGTD.to(dtype), v_BGTD.to(dtype)
    columns = encoding.columns(q_pos_T, k_pos_T, row_constant=False)
    if columns is not None:
        q_BHTD, k_BGTD = fold(q_BHTD, k_BGTD, *columns)
    if gates_BHT is not None:
        q_BHTD, k_BGTD = fold_gates(q_BHTD, k_BGTD, gates_BHT)
    # The fused kernels need q, k and v of equal width (CUDA's: a multiple of 8); otherwise torch silently builds the [T, T] matrix.
    wide = max(q_BHTD.shape[-1], width)
    wide += -wide % 8 if wide > width else 0
    q_BHTD, k_BGTD, v_BGTD = (F.pad(t, (0, wide - t.shape[-1])) if t.shape[-1] < wide else t for t in (q_BHTD, k_BGTD, v_BGTD))
    groups = q_BHTD.shape[1] // k_BGTD.shape[1]
    together = device.type != "cpu" or q_BHTD.shape[2] < LONG or torch.is_grad_enabled()
    parts = 1 if together else k_BGTD.shape[1]
    done = []
    for q, k, v in zip(*(t.chunk(parts, dim=1) for t in (q_BHTD, k_BGTD, v_BGTD)), strict=True):
        done.append(F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0, enable_gqa=groups > 1))
        layer.tell(len(done) / (parts + 1))
    y_BHTD = done[0] if together else torch.cat(done, dim=1)
    return y_BHTD[..., :width].to(kept)
