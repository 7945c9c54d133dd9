"""KERPLE: each head subtracts a learned kernel of the distance d = i - j from its scores.

log: z_ij - a ln(1 + b d); power: z_ij - a d^b, 0 < b < 2. Chi et al. 2022, arXiv 2205.09921; with b
= 1 the power form is ALiBi of slope a. At the start, as in chijames/KERPLE: log a ~ U(0, 2), b ~
U(0, 1); power a ~ U(0, 1), b ~ U(0, 2), none below 0.01. Deviation: that code clamps the numbers in
its forward pass (>= 0.01, b <= 2); here they are softplus of the parameters, and the power's b is 2
sigmoid, so no gradient becomes zero at a bound. They are not weights of an nn.Linear, so weight
decay does not act on them."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posbench.position.geometry import Shape, Trait
from posbench.position.interfaces import Encoding

LEAST_INITIAL_VALUE = 0.01  # of a and b


class Kerple(Encoding):
    """Logarithmic or power-law biases on distance."""

    traits = Trait.COORDINATE | Trait.RELATIVE | Trait.UNBOUNDED

    def __init__(
        self, shape: Shape, form: Literal["log", "power"] = "log", share_layers: bool = False
    ):
        super().__init__(shape)
        self.form = form
        a_NH, b_NH = torch.rand(2, 1 if share_layers else shape.n_layer, shape.n_head)
        # Uniform as in the published code: log a in 0..2, b in 0..1; power a in 0..1, b in 0..2,
        # which is twice a sigmoid.
        if form == "log":
            self.raw_a = nn.Parameter(_before_softplus(2 * a_NH))
            self.raw_b = nn.Parameter(_before_softplus(b_NH))
        else:
            self.raw_a = nn.Parameter(_before_softplus(a_NH))
            self.raw_b = nn.Parameter(
                b_NH.clamp(LEAST_INITIAL_VALUE / 2, 1 - LEAST_INITIAL_VALUE / 2).logit()
            )

    def profile(self, delta: Tensor, layer: int) -> Tensor:
        """Bias of each distance: -a ln(1 + b d), or -a d^b with 0 < b < 2, for every head."""
        by_head = (-1, *[1] * delta.ndim)  # [H, 1, ...], which broadcasts over the distances
        n = layer % len(self.raw_a)  # 0 if layers share
        raw_a = self.raw_a[n].view(by_head)
        raw_b = self.raw_b[n].view(by_head)
        if self.form == "log":
            return -F.softplus(raw_a) * torch.log1p(F.softplus(raw_b) * delta)
        # 0^b has the derivative 0^b ln 0 in b, so distance 0 is left out of the power.
        power = delta.where(delta > 0, 1) ** (2 * raw_b.sigmoid())
        return -F.softplus(raw_a) * power.where(delta > 0, 0)


def _before_softplus(value: Tensor) -> Tensor:
    """Numbers whose softplus is `value`, at least LEAST_INITIAL_VALUE."""
    return value.clamp(min=LEAST_INITIAL_VALUE).expm1().log()
