"""A small Llama-style GPT: pre-norm RMSNorm, SwiGLU, tied or untied embeddings.

Biases on q, k and v are optional, and there are no others. With encoding=rope (layout half) it
equals transformers' LlamaForCausalLM, with the same parameter names below `model.`, so it can be
checked against that code. Letters: B batch, T tokens, C width, V vocabulary, R scored rows."""

from pathlib import Path

import torch
from torch import Tensor, nn

from posbench.common.errors import ConfigError
from posbench.config.schema import ModelConfig
from posbench.extensions.none import NoExtension
from posbench.model.attention import Attention
from posbench.model.elementwise import added, gated, normed
from posbench.model.head_loss import head_loss
from posbench.model.weights import save_weights
from posbench.position.geometry import Bias, Shape
from posbench.position.interfaces import Encoding, Layer, ScaleAttention
from posbench.position.layer_plan import LayerPlan
from posbench.position.legality import check_extension
from posbench.position.plan import Plan, make_plan
from posbench.position.products import Linear


def make_shape(config: ModelConfig, train_len: int) -> Shape:
    """Sizes for the encoding. Raises ConfigError for a head_dim below 1 and for head counts that do
    not divide.
    """
    if config.head_dim is not None and config.head_dim < 1:
        raise ConfigError(
            f"model.head_dim={config.head_dim} must be at least 1, or null for model.d_model /"
            " model.n_head."
        )
    if config.head_dim is None and config.d_model % config.n_head:
        raise ConfigError(
            f"model.d_model={config.d_model} is not a multiple of model.n_head={config.n_head}:"
            " change one of them."
        )
    if config.n_head % config.kv_heads:
        raise ConfigError(
            f"model.n_head={config.n_head} is not a multiple of model.n_kv_head={config.kv_heads}:"
            " change one of them."
        )
    return Shape(
        d_model=config.d_model,
        n_layer=config.n_layer,
        n_head=config.n_head,
        n_kv_head=config.kv_heads,
        train_len=train_len,
        head_width=config.head_dim,
    )


class MLP(nn.Module):
    """SwiGLU layer, about 8/3 as wide as the model unless d_ff is given."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.gate_proj = Linear(config.d_model, config.hidden, bias=False)
        self.up_proj = Linear(config.d_model, config.hidden, bias=False)
        self.down_proj = Linear(config.hidden, config.d_model, bias=False)

    def forward(self, x_BTC: Tensor) -> Tensor:
        return self.down_proj(gated(self.gate_proj(x_BTC), self.up_proj(x_BTC)))


class Block(nn.Module):
    """One transformer layer: attention and MLP, each after a norm and added to its input. An
    encoding may have a mixer in place of attention.
    """

    def __init__(self, config: ModelConfig, layer: Layer):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        if layer.encoding.mixes:
            self.mixer = layer.encoding.mixer(layer.index)
        else:
            self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x_BTC: Tensor, plan: LayerPlan, last: int | None = None) -> Tensor:
        """Output [B, T, C], or of the `last` positions alone. Without gradients x is overwritten.

        The plan reports the share of the layer that is done."""
        encoding = plan.encoding
        # Gates, positions by content and recurrent states are computed in float32, so the norm's
        # output stays in it. Else `normed` gives it in the format of the matrix products.
        if Bias.GATES in encoding.biases or plan.reads_content or encoding.mixes:
            normed_BTC = self.input_layernorm(x_BTC)
        else:
            normed_BTC = normed(self.input_layernorm, x_BTC)
        if encoding.mixes:
            attended = self.mixer(normed_BTC)
            if last is not None:
                attended = attended[:, -last:]
        else:
            attended = self.self_attn(normed_BTC, plan, last)
        del normed_BTC  # frees its memory for the MLP
        x_BTC = added(x_BTC[:, -attended.shape[1] :], attended)
        x_BTC = added(x_BTC, self.mlp(normed(self.post_attention_layernorm, x_BTC)))
        plan.report_progress(1.0)
        return x_BTC


class GPT(nn.Module):
    """The model. `encoding` and the trained `scale` are its submodules, since they may have
    parameters.
    """

    def __init__(
        self,
        config: ModelConfig,
        encoding: Encoding,
        vocab_size: int,
        scale: ScaleAttention | None = None,
    ):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, config.d_model)
        self.encoding = encoding
        self.scale = scale
        self.layers = nn.ModuleList(Block(config, layer) for layer in encoding.layers())
        self.norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.lm_head = Linear(config.d_model, vocab_size, bias=False)
        if config.tied:
            self.lm_head.weight = self.embed_tokens.weight
        self._init_weights(config)

    @torch.no_grad()
    def _init_weights(self, config: ModelConfig) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith("_proj.bias"):
                parameter.zero_()
            # Methods initialise themselves, and gains of norms stay 1.
            if name.startswith(("encoding.", "scale.")) or parameter.ndim < 2 or ".norm." in name:
                continue
            # Convolutions, which only mixers have, draw their own weights.
            if ".conv." in name:
                continue
            # Each block starts as the identity, and an untied head predicts every token with equal
            # probability.
            if "o_proj" in name or "down_proj" in name or "lm_head" in name:
                parameter.zero_()
            else:
                parameter.normal_(std=config.init_std)

    def forward(
        self, tokens_BT: Tensor, plan: Plan | None = None, last: int | None = None
    ) -> Tensor:
        """Logits [B, T, V], or [B, R, V] for the last R = `last` positions only. Without `plan`
        there is no extension.

        Raises ConfigError for a text without `plan` that is longer than the encoding's positions.
        """
        if plan is None:
            device = next(self.parameters()).device
            tokens_BT = torch.atleast_2d(torch.as_tensor(tokens_BT, device=device))  # also lists
            check_extension(self.encoding, NoExtension(), [tokens_BT.shape[1]])
            plan = make_plan(
                self.encoding,
                length=tokens_BT.shape[1],
                device=str(tokens_BT.device),
                trained_scale=self.scale,
            )
        return self.lm_head(self.hidden(tokens_BT, plan, last))

    def hidden(self, tokens_BT: Tensor, plan: Plan, last: int | None = None) -> Tensor:
        """Input of the output head: [B, T, C] or [B, R, C]. With `last`, the last layer computes
        only the outputs of those R positions.
        """
        x_BTC = self.embed_tokens(tokens_BT)
        added_TC = plan.embed()
        if added_TC is not None:
            x_BTC = x_BTC + added_TC
        if self.encoding.reads_tokens:
            plan = plan.for_text(tokens_BT)
            added_BTC = self.encoding.embed_text(tokens_BT)
            if added_BTC is not None:
                x_BTC = x_BTC + added_BTC
        final = self.layers[-1]
        for block, layer_plan in zip(self.layers, plan.layers, strict=True):
            x_BTC = block(x_BTC, layer_plan, last if block is final else None)
        return normed(self.norm, x_BTC)

    def loss(self, tokens_BT: Tensor, targets_BT: Tensor, plan: Plan) -> Tensor:
        """Mean loss of the targets that are not IGNORED, in nats (scalar, float32)."""
        return head_loss(self.hidden(tokens_BT, plan), self.lm_head.weight, targets_BT)

    def save(self, file: Path) -> str:
        """Write the weights. Returns the file's SHA-256 in hex."""
        return save_weights(file, self)
