"""Loss of the output head, which computes its gradient in the forward pass, block by block.

The idea is that of Cut Cross-Entropy (Wijmans et al. 2024, arXiv 2411.09009) and Liger (Hsu et al.
2024, arXiv 2410.10989): the scores of all tokens for a whole vocabulary are the largest tensor of a
training, so none in float32 is kept or moved twice. Here probabilities minus targets are kept in
the dtype of the products, so that the weight's gradient is one product.

Letters: N tokens, C width, V vocabulary, R rows of a block.
"""

import torch
from torch import Tensor

from posbench.data.task import IGNORED

KEPT = 2**27  # probabilities kept for one product with the rows


def head_loss(x_BTC: Tensor, weight_VC: Tensor, targets_BT: Tensor) -> Tensor:
    """Mean cross entropy of the scores x W^T over the targets that are not IGNORED, in nats: a
    scalar, 0 without targets.

    Products are in autocast's dtype, the rest in float32, or float64 if x is.
    """
    kind = x_BTC.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x_BTC.dtype
    x_NC, target_N = x_BTC.flatten(0, -2), targets_BT.flatten()
    if (
        kind == "cpu" and (target_N == IGNORED).any()
    ):  # on a GPU the number of targets would have to be waited for
        asked_N = target_N != IGNORED
        x_NC, target_N = x_NC[asked_N], target_N[asked_N]
    with torch.autocast(kind, enabled=False):
        return _HeadLoss.apply(x_NC, weight_VC, target_N, dtype)


class _HeadLoss(torch.autograd.Function):
    """Loss of the head; its gradients are computed with it, and scaled by the gradient that comes
    back.
    """

    @staticmethod
    def forward(
        ctx: object, x_NC: Tensor, weight_VC: Tensor, target_N: Tensor, dtype: torch.dtype
    ) -> Tensor:
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        exact = torch.promote_types(dtype, torch.float32)
        asked_N = target_N != IGNORED
        n_targets = asked_N.sum().clamp(min=1)
        # A row without a target has no part in either gradient: its x is 0 in the weight's, and its
        # own is set to 0.
        x, weight, column_N1 = x_NC.to(dtype), weight_VC.to(dtype), target_N.clamp(min=0)[:, None]
        if x.is_cuda:
            x = x * asked_N[:, None]
        loss, dx_NC, dweight_VC = (
            x.new_zeros((), dtype=exact),
            torch.empty_like(x) if needs_x else None,
            None,
        )
        rows = _rows(len(weight), x.device.type)
        for some in _slices(len(x), max(rows, KEPT // len(weight) // rows * rows)):
            p_NV = (
                x.new_empty(some.stop - some.start, len(weight))
                if needs_x or needs_weight
                else None
            )
            for block in _slices(some.stop - some.start, rows, some.start):
                log_p_RV = (x[block] @ weight.T).to(exact).log_softmax(dim=-1)
                loss -= (log_p_RV.gather(1, column_N1[block]).squeeze(1) * asked_N[block]).sum()
                if p_NV is not None:
                    p_RV = p_NV[block.start - some.start : block.stop - some.start]
                    p_RV.copy_(
                        log_p_RV.exp_().scatter_add_(
                            1, column_N1[block], -torch.ones_like(log_p_RV[:, :1])
                        )
                    )
                if needs_x:
                    dx_NC[block] = p_RV @ weight
            if needs_weight:
                part_VC = p_NV.T @ x[some]
                dweight_VC = part_VC.to(exact) if dweight_VC is None else dweight_VC.add_(part_VC)
        if needs_x:
            dx_NC = dx_NC.to(exact).mul_(asked_N[:, None]).div_(n_targets)
        if needs_weight:
            dweight_VC = (
                weight.new_zeros(weight.shape, dtype=exact)
                if dweight_VC is None
                else dweight_VC.div_(n_targets)
            )
        ctx.gradients = dx_NC, dweight_VC
        return loss / n_targets

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: object, gradient: Tensor) -> tuple:
        found = [one if one is None else one.mul_(gradient) for one in ctx.gradients]
        ctx.gradients = None, None
        return *found, None, None


def _rows(vocab: int, kind: str) -> int:
    """Rows of a block. On a CPU their scores stay in a core's cache if that holds 256 rows, else in
    the cache that cores share.
    """
    if kind != "cpu":
        return max(64, 2**26 // vocab)
    return max(64, min(max(256, 2**18 // vocab), 2**20 // vocab))


def _slices(length: int, step: int, start: int = 0) -> list[slice]:
    return [slice(at, min(at + step, start + length)) for at in range(start, start + length, step)]
