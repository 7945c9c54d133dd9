"""Operations between the products of a model: norms, sums and the gate of the MLP.

Without gradients they overwrite what nobody reads again, and on a CPU they go through a long text
in pieces. Every number is the same as with gradients.

Letters: B batch, T tokens, C width, F width of the MLP.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posbench.position.rotation import small_slices


def normed(norm: nn.RMSNorm, x_BTC: Tensor) -> Tensor:
    """RMS norm of x, in the dtype of the matrix products that read it: [B, T, C].

    Under autocast every product would round its input to autocast's dtype anyway. Here it is
    rounded once, and without gradients piece by piece, so that no whole float32 tensor lives.
    """
    device = x_BTC.device.type
    is_cpu = device == "cpu"
    dtype = x_BTC.dtype
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    # On a CPU torch's norm takes longer than the same sums written out.
    if torch.is_grad_enabled():
        if is_cpu:
            return _Normed.apply(x_BTC, norm.weight, norm.eps, dtype)
        return norm(x_BTC).to(dtype)
    if dtype == x_BTC.dtype:  # nothing is rounded
        return norm(x_BTC)
    y_BTC = torch.empty_like(x_BTC, dtype=dtype)
    for piece in small_slices(x_BTC, dim=1):
        x_BSC = x_BTC[:, piece]
        y_BTC[:, piece] = _normed_without_gradient(norm, x_BSC) if is_cpu else norm(x_BSC)
    return y_BTC


def _normed_without_gradient(norm: nn.RMSNorm, x_BSC: Tensor) -> Tensor:
    """The norm as `_Normed` computes it, with one new tensor less: two thirds of its time."""
    inverse_BS1 = x_BSC.square().mean(dim=-1, keepdim=True).add_(norm.eps).rsqrt_()
    return x_BSC.mul(inverse_BS1).mul_(norm.weight)


class _Normed(torch.autograd.Function):
    """The norm with half as many operations, forward and backward, as torch makes of it on a
    CPU.
    """

    @staticmethod
    def forward(
        ctx: object, x_BTC: Tensor, weight_C: Tensor, eps: float, dtype: torch.dtype
    ) -> Tensor:
        inverse_BT1 = x_BTC.square().mean(dim=-1, keepdim=True).add_(eps).rsqrt_()
        unit_BTC = x_BTC * inverse_BT1
        ctx.save_for_backward(unit_BTC, inverse_BT1, weight_C)
        return torch.mul(unit_BTC, weight_C, out=torch.empty_like(x_BTC, dtype=dtype))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: object, gradient_BTC: Tensor) -> tuple:
        """Gradients of x and of the weight: dx = (g w - unit mean(g w unit)) / rms of x."""
        unit_BTC, inverse_BT1, weight_C = ctx.saved_tensors
        along_BTC = gradient_BTC * unit_BTC
        mean_BT1 = (along_BTC @ weight_C).unsqueeze(-1) / len(weight_C)
        dx_BTC = (gradient_BTC * weight_C).addcmul_(unit_BTC, mean_BT1, value=-1).mul_(inverse_BT1)
        return dx_BTC, along_BTC.flatten(0, -2).sum(dim=0), None, None


def added(x_BTC: Tensor, y_BTC: Tensor) -> Tensor:
    """x + y, which takes the place of x without gradients."""
    if torch.is_grad_enabled():
        return x_BTC + y_BTC
    for piece in small_slices(x_BTC, dim=1):
        x_BTC[:, piece].add_(y_BTC[:, piece])
    return x_BTC


def gated(gate_BTF: Tensor, up_BTF: Tensor) -> Tensor:
    """silu(gate) * up, which takes the place of the gate without gradients."""
    if torch.is_grad_enabled():
        return F.silu(gate_BTF) * up_BTF
    return F.silu(gate_BTF, inplace=True).mul_(up_BTF)
