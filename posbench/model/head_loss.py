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

MOST_KEPT_PROBABILITIES = 2**27  # probabilities kept for one product with the rows


def head_loss(x_BTC: Tensor, weight_VC: Tensor, targets_BT: Tensor) -> Tensor:
    """Mean cross entropy of the scores x W^T over the targets that are not IGNORED, in nats: a
    scalar, 0 without targets.

    Products are in autocast's dtype, the rest in float32, or float64 if x is.
    """
    kind = x_BTC.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x_BTC.dtype
    x_NC = x_BTC.flatten(0, -2)
    target_N = targets_BT.flatten()
    # On a GPU the number of targets would have to be waited for.
    if kind == "cpu" and (target_N == IGNORED).any():
        has_target_N = target_N != IGNORED
        x_NC = x_NC[has_target_N]
        target_N = target_N[has_target_N]
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
        """Mean loss of the rows with a target. The gradients are computed along with it, so that no
        scores need to be kept for the backward pass.
        """
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        exact = torch.promote_types(dtype, torch.float32)
        has_target_N = target_N != IGNORED
        n_targets = has_target_N.sum().clamp(min=1)
        # On a CPU the caller has left out rows without a target. On a GPU they stay, and have no
        # part in either gradient: x is 0 in the weight's, and their own is set to 0.
        x = x_NC.to(dtype)
        weight = weight_VC.to(dtype)
        column_N1 = target_N.clamp(min=0)[:, None]  # IGNORED is no column
        if x.is_cuda:
            x = x * has_target_N[:, None]
        loss = x.new_zeros((), dtype=exact)
        dx_NC = torch.empty_like(x) if needs_x else None
        dweight_VC = None
        rows = _rows_per_block(len(weight), x.device.type)
        kept_rows = MOST_KEPT_PROBABILITIES // len(weight) // rows * rows  # whole blocks
        # Scores exist for a block of rows. A part, of several blocks, is one product with the rows
        # for the weight's gradient.
        for part in _slices(len(x), max(rows, kept_rows)):
            p_NV = None  # probabilities minus targets of a part
            if needs_x or needs_weight:
                p_NV = x.new_empty(part.stop - part.start, len(weight))
            for block in _slices(part.stop - part.start, rows, part.start):
                column_R1 = column_N1[block]
                log_p_RV = (x[block] @ weight.T).to(exact).log_softmax(dim=-1)
                loss -= (log_p_RV.gather(1, column_R1).squeeze(1) * has_target_N[block]).sum()
                if p_NV is not None:
                    p_RV = p_NV[block.start - part.start : block.stop - part.start]
                    minus_1_R1 = -torch.ones_like(log_p_RV[:, :1])
                    p_RV.copy_(log_p_RV.exp_().scatter_add_(1, column_R1, minus_1_R1))
                if needs_x:
                    dx_NC[block] = p_RV @ weight
            if needs_weight:
                part_VC = p_NV.T @ x[part]
                dweight_VC = part_VC.to(exact) if dweight_VC is None else dweight_VC.add_(part_VC)
        if needs_x:
            dx_NC = dx_NC.to(exact).mul_(has_target_N[:, None]).div_(n_targets)
        if dweight_VC is not None:
            dweight_VC = dweight_VC.div_(n_targets)
        elif needs_weight:  # there is no row
            dweight_VC = weight.new_zeros(weight.shape, dtype=exact)
        ctx.gradients = (dx_NC, dweight_VC)
        return loss / n_targets

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: object, gradient: Tensor) -> tuple:
        dx_NC, dweight_VC = ctx.gradients
        ctx.gradients = (None, None)  # they are overwritten, so this runs once
        if dx_NC is not None:
            dx_NC.mul_(gradient)
        if dweight_VC is not None:
            dweight_VC.mul_(gradient)
        return dx_NC, dweight_VC, None, None


def _rows_per_block(vocab: int, kind: str) -> int:
    """Rows of a block: of 2^26 scores on a GPU. On a CPU their scores stay in a core's cache if
    that holds 256 rows, else in the cache that cores share.
    """
    if kind != "cpu":
        return max(64, 2**26 // vocab)
    return max(64, min(max(256, 2**18 // vocab), 2**20 // vocab))


def _slices(length: int, step: int, start: int = 0) -> list[slice]:
    return [slice(at, min(at + step, start + length)) for at in range(start, start + length, step)]
