"""The attention module: projections, normalisation of q and k, the plan's geometry, a gate.

Normalisation and the gate on the output are optional.

Letters: B batch, T tokens, C width, H heads, G key heads, D head width, R queries with an output.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posbench.config.schema import ModelConfig
from posbench.model.kernels import dispatch as kernels
from posbench.position.layer_plan import LayerPlan
from posbench.position.products import Linear


class Attention(nn.Module):
    """Grouped-query attention; for qk_norm see `QKNorm`.

    output_gate: each head's output times sigmoid(W x), before the output projection, elementwise or
    one number for each head (Qiu et al. 2025, arXiv 2505.06708; elementwise is Qwen3-Next's). With
    it the first tokens attract less attention."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.head_dim = config.head_width
        q_width = self.head_dim * config.n_head
        kv_width = self.head_dim * config.kv_heads
        self.q_proj = Linear(config.d_model, q_width, bias=config.qkv_bias)
        self.k_proj = Linear(config.d_model, kv_width, bias=config.qkv_bias)
        self.v_proj = Linear(config.d_model, kv_width, bias=config.qkv_bias)
        self.o_proj = Linear(q_width, config.d_model, bias=False)
        self.norm = QKNorm(config) if config.qk_norm != "none" else None
        # `gates` is the number of gates of a token, 0 without them
        self.gate_proj = Linear(config.d_model, config.gates, bias=False) if config.gates else None

    def forward(self, x_BTC: Tensor, plan: LayerPlan, last: int | None = None) -> Tensor:
        """Output [B, T, C], or [B, R, C] of the R = `last` last positions alone."""
        q_BHTD, k_BGTD = self.queries_and_keys(x_BTC)
        v_BGTD = self._split_heads(self.v_proj(x_BTC))
        y_BRHD = kernels.attend(plan, x_BTC, q_BHTD, k_BGTD, v_BGTD, last).transpose(1, 2)
        if self.gate_proj is not None:
            n_rows, n_heads = y_BRHD.shape[1:3]
            gate_BRN = self.gate_proj(x_BTC[:, -n_rows:]).sigmoid()
            # a number for each head, or for each of its channels
            y_BRHD = y_BRHD * gate_BRN.unflatten(-1, (n_heads, -1))
        return self.o_proj(y_BRHD.flatten(2))

    def queries_and_keys(self, x_BTC: Tensor) -> tuple[Tensor, Tensor]:
        """q [B, H, T, D] and k [B, G, T, D] as the kernels take them: not yet rotated or scaled.

        They are float32 whatever the model's dtype, so that rotation and factors are too; the
        kernel casts once, at the end."""
        q_BHTD = self._split_heads(self.q_proj(x_BTC)).float()
        k_BGTD = self._split_heads(self.k_proj(x_BTC)).float()
        if self.norm is None:
            return q_BHTD, k_BGTD
        return self.norm(q_BHTD, k_BGTD)

    def _split_heads(self, x_BTC: Tensor) -> Tensor:
        return x_BTC.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class QKNorm(nn.Module):
    """Normalisation of q and k before rotation. It changes how log-n behaves.

    rms: q and k divided by their root mean square, with a learned gain per channel (Henry et al.
    2020, arXiv 2010.04245, in the form of Qwen3 and OLMo2). l2: cosine scores times sqrt(D) and a
    learned factor per head, 1 at the start. key_l2: only keys are normalised, to the fixed norm
    sqrt(D), without parameters (Su 2023, kexue.fm/archives/9859)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.kind = config.qk_norm
        self.eps = config.norm_eps
        if self.kind == "rms":
            self.q_gain = nn.Parameter(torch.ones(config.head_width))
            self.k_gain = nn.Parameter(torch.ones(config.head_width))
        # A factor on the scores, which k need not have too.
        if self.kind == "l2":
            self.q_gain = nn.Parameter(torch.ones(config.n_head, 1, 1))

    def forward(self, q_BHTD: Tensor, k_BGTD: Tensor) -> tuple[Tensor, Tensor]:
        """q and k, normalized: rms both with gains; l2 both, with a gain on q; key_l2 k alone."""
        width = (k_BGTD.shape[-1],)
        if self.kind == "rms":
            q_BHTD = F.rms_norm(q_BHTD, width, self.q_gain, self.eps)
            return q_BHTD, F.rms_norm(k_BGTD, width, self.k_gain, self.eps)
        if self.kind == "l2":
            q_BHTD = F.rms_norm(q_BHTD, width, eps=self.eps) * self.q_gain
        # l2 and key_l2: a root mean square of 1 is a norm of sqrt(D)
        return q_BHTD, F.rms_norm(k_BGTD, width, eps=self.eps)
