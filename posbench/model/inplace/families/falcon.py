"""Falcon: rotary positions in halves, or ALiBi in bfloat16 (Falcon-RW). Heads may share key heads.

Penedo et al. 2023, arXiv 2306.01116; Almazrouei et al. 2023, arXiv 2311.16867. Slopes, positions
and their products are rounded to bfloat16 whatever the model's format, and then divided by the
square root of the head width like the scores. The cache holds each key head once, where
transformers repeats it for the heads of its group.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from posbench.common.errors import ConfigError
from posbench.encodings.as_trained import Sloped
from posbench.model.inplace.families.family import Family, attention_outputs, python_module_of
from posbench.position.geometry import Shape


class Falcon(Family):
    """Falcon with either of its positions.

    Raises ConfigError for ALiBi in transformers' eager attention, which adds it twice.
    """

    name = "Falcon"

    def __init__(self, model: nn.Module, modules: list[nn.Module]):
        super().__init__(model, modules)
        self.decoder = model.base_model
        self.has_alibi = self.decoder.use_alibi
        if self.has_alibi and model.config._attn_implementation == "eager":
            raise ConfigError(
                f"{type(model).__name__} with attn_implementation=eager adds its ALiBi biases twice"
                " in transformers: load it with attn_implementation='sdpa'."
            )

    def encoding(self, model: nn.Module, shape: Shape) -> Sloped | None:
        """Encoding with the slopes of a Falcon with ALiBi; None for one that turns q and k, which
        is measured as any other model is.
        """
        if not self.has_alibi:
            return None
        mask_BT = torch.ones(1, 2, device=model.device, dtype=torch.long)
        bias_H1T = python_module_of(self.modules[0]).build_alibi_tensor(
            mask_BT, shape.n_head, torch.float32
        )
        return Sloped(
            shape,
            bias_H1T[:, 0, 1],  # of position 1: the slopes
            rounded=torch.bfloat16,  # Falcon computes its biases so, whatever its format
            divisor=shape.head_dim**0.5,  # and divides them like its scores
        )

    def forward(
        self,
        function_name: str,
        module: nn.Module,
        hidden_BSC: Tensor,
        attention_mask: object = None,
        layer_past: object = None,
        output_attentions: bool | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **unused: object,
    ) -> tuple[Tensor, None]:
        """FalconAttention.forward with the registry's function in place of its own scores."""
        by_head = module._split_heads(module.query_key_value(hidden_BSC))
        q_BHSD, k_BGSD, v_BGSD = (x_BSHD.transpose(1, 2) for x_BSHD in by_head)
        if module.new_decoder_architecture:
            # Its _split_heads repeats a key head for the heads of its group: once is enough.
            group_size = module.num_heads // module.num_kv_heads
            k_BGSD = k_BGSD[:, ::group_size]
            v_BGSD = v_BGSD[:, ::group_size]
        if not self.has_alibi:
            apply_rotary = python_module_of(module).apply_rotary_pos_emb
            q_BHSD, k_BGSD = apply_rotary(q_BHSD, k_BGSD, *position_embeddings)
        y_BSC = attention_outputs(
            function_name,
            module,
            (q_BHSD, k_BGSD, v_BGSD),
            layer_past,
            attention_mask,
            scaling=module.inv_norm_factor,
            # Falcon itself drops attention weights with ALiBi alone.
            dropout=module.attention_dropout.p if self.has_alibi else 0.0,
            output_attentions=output_attentions,
        )
        return module.dense(y_BSC), None

    @contextmanager
    def through_registry(self, function_name: str) -> Iterator[None]:
        """Context as of any family, in which the decoder adds no ALiBi biases."""
        use_alibi_before = self.decoder.use_alibi
        # The decoder would otherwise write the biases into the mask; the hook adds them.
        self.decoder.use_alibi = False
        try:
            with super().through_registry(function_name):
                yield
        finally:
            self.decoder.use_alibi = use_alibi_before
