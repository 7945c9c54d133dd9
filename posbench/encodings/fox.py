"""FoX, the forgetting transformer: gates between key and query add their logarithms to the score.

score(i, j) += sum of log f_t over j < t <= i, log f_t = logsigmoid(w_h x_t + b_h). Lin et al. 2025,
arXiv 2503.02130: a gate of each head and layer, w as any other linear layer, b = 0, no rotation.
CABLE (Veisi et al. 2025, arXiv 2503.08067) is the same operator: its log f = -softplus(h) is
logsigmoid(-h). f = 1 is NoPE, and a constant f is ALiBi of slope -ln f. `rope: true` turns q and k
as well, as the paper's ablation does; gates count tokens whatever an extension does.

`data_dependent: false` is the paper's variant without w: b_h = -ln(e^(1 / tau_h) - 1), so that f =
e^(-1 / tau_h), trained from tau_h spaced evenly in the logarithm from tau_min to tau_max.
x-transformers starts b at 5, close to no forgetting. The output gate, output norm and token shift
of the paper's Pro block are no matter of position and not here."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posbench.common.errors import ConfigError
from posbench.encodings.rope import Rope
from posbench.position.geometry import Base, Layout, Shape, Spectrum, Trait
from posbench.position.interfaces import Encoding

LEAST_TAU = 0.01  # tokens; e^(-1 / tau) is then next to the smallest number of float32


class Fox(Encoding):
    """Forget gates. Raises ConfigError unless 0.01 <= tau_min <= tau_max, in tokens."""

    def __init__(
        self,
        shape: Shape,
        rope: bool = False,
        data_dependent: bool = True,
        bias: float = 0.0,
        init_std: float = 0.02,
        tau_min: float = 2.0,
        tau_max: float | None = None,
        base: Base = 10000.0,
        layout: Layout = "half",
    ):
        super().__init__(shape)
        self.rope = Rope(shape, base, layout) if rope else None
        self.traits = Trait.CONTENT
        if self.rope is not None:
            self.traits |= self.rope.traits
        self.data_dependent = data_dependent
        if data_dependent:
            self.gate = nn.ModuleList(
                nn.Linear(shape.d_model, shape.n_head) for _ in range(shape.n_layer)
            )
            for linear in self.gate:
                nn.init.normal_(linear.weight, std=init_std)
                nn.init.constant_(linear.bias, bias)
            return
        if tau_max is None:
            tau_max = max(tau_min, shape.train_len)
        if not LEAST_TAU <= tau_min <= tau_max:
            raise ConfigError(
                f"encoding.tau_min={tau_min} and encoding.tau_max={tau_max} must be tokens,"
                f" {LEAST_TAU} <= tau_min <= tau_max."
            )
        # A time of forgetting for each head, evenly spaced in the logarithm. The gate sigmoid(bias)
        # is e^(-1 / tau), so the bias is -log(e^(1 / tau) - 1).
        ends = (math.log(tau_min), math.log(tau_max))
        tau_H = torch.linspace(*ends, shape.n_head, dtype=torch.float64).exp()
        self.bias_LH = nn.Parameter(-(1 / tau_H).expm1().log().float().repeat(shape.n_layer, 1))

    def gates(self, x_BTC: Tensor, layer: int) -> Tensor:
        if self.data_dependent:
            logit_BTH = self.gate[layer](x_BTC)
        else:
            logit_BTH = self.bias_LH[layer].expand(*x_BTC.shape[:2], -1)
        return F.logsigmoid(logit_BTH).mT

    def spectrum(self) -> Spectrum | None:
        return self.rope.spectrum() if self.rope else None

    def table(self, pos_T: Tensor, spectrum: Spectrum | None) -> Tensor | None:
        return self.rope.table(pos_T, spectrum) if self.rope else None

    def rotate(
        self, q_BHTD: Tensor, k_BGTD: Tensor, q_table: Tensor, k_table: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self.rope.rotate(q_BHTD, k_BGTD, q_table, k_table)
