"""Adaptive scale: the logits of a query are multiplied by a factor that its hidden state says.

delta + softplus(w x) (ln(1 + n))^(s tanh(u x)) for a query that sees n keys, w and u one vector
for each head and layer. Vasylenko et al. 2025, arXiv 2506.16640 (ICLR 2026), in the form of
deep-spin/asentmax (attn_scale_type adapt-softplus-tanh): delta = 1, s = 2, w and u begin as any
linear layer of torch does. There it comes with 1.5-entmax (asentmax.py); here the softmax stays.
`bias` adds a number to w x and u x, as the authors' commands do.

A logarithm of 1 + n, as in that code, since that of one key is 0, which has no power below 0; n are
the keys that a query sees, where the code has its index. No weight decay. With encoding=nape it
acts on the heads without positions alone, as there."""

from torch import Tensor, nn
from torch.nn.functional import softplus

from posbench.position.geometry import AtLeast0, Shape, Span
from posbench.position.interfaces import ScaleAttention
from posbench.position.products import Linear


class Adaptive(ScaleAttention):
    """Trained in: two linear maps w and u of the input of each layer.

    The factor is delta + softplus(w x) (ln(1 + n))^(power tanh(u x)) for a query that sees n keys.
    """

    trained = True

    def __init__(
        self, shape: Shape, delta: AtLeast0 = 1.0, power: AtLeast0 = 2.0, bias: bool = False
    ):
        super().__init__(shape)
        self.delta = delta
        self.power = power
        # of each layer, with an amount and an exponent for each head
        self.maps = nn.ModuleList(
            Linear(shape.d_model, 2 * shape.n_head, bias=bias) for _ in range(shape.n_layer)
        )

    def content_factor(self, x_BTC: Tensor, n_T: Tensor, span: Span, layer: int) -> Tensor:
        amount_BHT, power_BHT = self.maps[layer](x_BTC).mT.chunk(2, dim=1)
        logarithm_T = n_T.log1p().to(x_BTC)
        return self.delta + softplus(amount_BHT) * logarithm_T ** (self.power * power_BHT.tanh())
