"""MPT: ALiBi in float32. Its slopes are not BLOOM's if the number of heads is no power of two.

MosaicML 2023, mosaicml/mpt-7b. transformers passes over `alibi`, `alibi_bias_max`, `qk_ln` and
`prefix_lm` of the configuration, and so does this file.
"""

from torch import Tensor, nn

from posbench.encodings.as_trained import Sloped
from posbench.model.inplace.families.family import Family, attention_outputs
from posbench.position.geometry import Shape


class Mpt(Family):
    """MPT, whose own biases end with the longest text of the configuration."""

    name = "MPT"

    def __init__(self, model: nn.Module, modules: list[nn.Module]):
        super().__init__(model, modules)
        self.longest_exact_text = model.config.max_seq_len

    def encoding(self, model: nn.Module, shape: Shape) -> Sloped:
        bias_H1T = model.base_model.build_mpt_alibi_tensor(shape.n_head, 2, device=model.device)
        # The first of two tokens, at distance 1 of the last, has minus the slope.
        return Sloped(shape, -bias_H1T[:, 0, 0])

    def forward(
        self,
        function_name: str,
        module: nn.Module,
        hidden_BSC: Tensor,
        attention_mask: object = None,
        past_key_values: object = None,
        output_attentions: bool | None = None,
        **unused: object,
    ) -> tuple[Tensor, None]:
        """MptAttention.forward with the registry's function in place of its own scores."""
        mixed_BSX = module.Wqkv(hidden_BSC)  # q, k and v side by side: [B, S, 3 C]
        if module.clip_qkv:
            mixed_BSX = mixed_BSX.clamp(min=-module.clip_qkv, max=module.clip_qkv)
        by_head = (
            x_BSC.unflatten(-1, (module.n_heads, -1)) for x_BSC in mixed_BSX.chunk(3, dim=-1)
        )
        qkv = tuple(x_BSHD.transpose(1, 2) for x_BSHD in by_head)
        y_BSC = attention_outputs(
            function_name,
            module,
            qkv,
            past_key_values,
            attention_mask,
            scaling=module.softmax_scale,
            dropout=module.attn_dropout_p,
            output_attentions=output_attentions,
        )
        return module.out_proj(y_BSC), None  # without weights, which the function does not keep
