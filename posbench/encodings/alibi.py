"""ALiBi: head h adds -m_h (i - j) to the scaled score of query i and key j; the slopes are fixed.

Press, Smith, Lewis 2021, arXiv 2108.12409. H heads, H a power of two: m_h = 2^(-8h/H), h = 1..H.
Otherwise, with C the power of two below H: the C slopes of a C-head model, then every second slope
(1st, 3rd, ...) of a 2C-head model until H are filled. `slope_scale` is a factor on all slopes; the
paper's is 1. At the end of the training window the flattest head subtracts 2^-8 times the training
length: 4 at 1,024 tokens, where the paper trained, but 0.25 at 64. slope_scale = 1024 / train_len
(16 at 64) makes it 4 again. The bias has rank two, (-m_h i) 1 + m_h j, so it enters a fused kernel
as extra columns of q and k and no [T, T] matrix exists. Positions are counted from the middle of
the text, which halves the magnitude that has to cancel and changes no score."""

import torch
from torch import Tensor

from posbench.position.geometry import Above0, Shape, Trait
from posbench.position.interfaces import Encoding


def alibi_slopes(n_head: int) -> list[float]:
    """Slope of each head, in the paper's order.

    >>> alibi_slopes(4)
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    power = 2 ** (n_head.bit_length() - 1)  # the largest power of two up to n_head
    regular = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    # Of a model with twice as many heads every second slope: those between the regular ones.
    between = [2.0 ** (-4 * h / power) for h in range(1, 2 * power, 2)]
    return regular + between[: n_head - power]


class Alibi(Encoding):
    """Linear biases on distance; no parameters."""

    traits = Trait.COORDINATE | Trait.RELATIVE | Trait.UNBOUNDED

    def __init__(self, shape: Shape, slope_scale: Above0 = 1.0):
        super().__init__(shape)
        slope_H = slope_scale * torch.tensor(alibi_slopes(shape.n_head))
        self.register_buffer("slope_H", slope_H, persistent=False)

    def columns(
        self, q_pos_T: Tensor, k_pos_T: Tensor, row_constant: bool
    ) -> tuple[Tensor, Tensor]:
        """Columns whose product is the bias; without `row_constant` up to a constant of each query,
        which softmax ignores.
        """
        middle = k_pos_T[len(k_pos_T) // 2]  # smaller numbers cancel with smaller errors
        q_T = (q_pos_T - middle).float()
        k_T = (k_pos_T - middle).float()
        slope_HT = self.slope_H[:, None].expand(-1, len(q_T))
        if not row_constant:
            return slope_HT[..., None], k_T[..., None]
        q_HT2 = torch.stack((-slope_HT * q_T, slope_HT), dim=-1)
        k_T2 = torch.stack((torch.ones_like(k_T), k_T), dim=-1)
        return q_HT2, k_T2
