"""BLOOM: ALiBi by the position of the key.

Le Scao et al. 2022, arXiv 2211.05100. transformers adds the biases to the scores in the model's
format, and in bfloat16 a sum of 1,000 is a multiple of 4. Here they are added in float32, so that
logits of 16 bits are those of the model in float32 to their rounding, and not those of
transformers."""

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from posbench.encodings.as_trained import Sloped
from posbench.model.inplace.families.family import Family, attention_outputs
from posbench.position.geometry import Shape

EXACT_TOKENS = 256  # tokens whose positions are exact in bfloat16


class Bloom(Family):
    """BLOOM and BLOOMZ."""

    name = "BLOOM"

    def __init__(self, model: nn.Module, modules: list[nn.Module]):
        super().__init__(model, modules)
        if model.dtype == torch.bfloat16:
            self.longest_exact_text = EXACT_TOKENS

    def encoding(self, model: nn.Module, shape: Shape) -> Sloped:
        mask_BT = torch.ones(1, 2, device=model.device, dtype=torch.long)
        bias_H1T = model.base_model.build_alibi_tensor(mask_BT, shape.n_head, torch.float32)
        slope_H = bias_H1T[:, 0, 1]  # the bias of position 1
        return Sloped(shape, slope_H)

    def forward(
        self,
        function_name: str,
        module: nn.Module,
        hidden_BSC: Tensor,
        residual_BSC: Tensor,
        attention_mask: object = None,
        layer_past: object = None,
        output_attentions: bool | None = None,
        **unused: object,
    ) -> tuple[Tensor, None]:
        """BloomAttention.forward with the registry's function in place of its own scores."""
        qkv = module._reshape(module.query_key_value(hidden_BSC))
        y_BSC = attention_outputs(
            function_name,
            module,
            qkv,
            layer_past,
            attention_mask,
            scaling=module.inv_norm_factor,
            dropout=module.attention_dropout.p,
            output_attentions=output_attentions,
        )
        y_BSC = dropout(module.dense(y_BSC), module.hidden_dropout, module.training)
        return residual_BSC + y_BSC, None
