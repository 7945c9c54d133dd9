"""Base class of the families whose attention modules compute the scores themselves.

All other models hand queries, keys and values to transformers' registry of attention functions. A
family here gives each of its attention modules a forward that does so too: the module's own
projections, its own cache and its own output, with the registry in place of its own scores. Biases
that the model adds to its scores are left to the encoding.

Letters: B batch, T tokens, S queries, H heads, G key heads, D head width, C width of the model.
"""

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from torch import Tensor, nn

from posbench.position.geometry import Shape
from posbench.position.interfaces import Encoding


class Family:
    """Attention modules of one model, which registry.py finds by their class.

    Raises ConfigError for a setting of the model that is not supported. `rotary_modules` hold the
    angles of the model where it has no rotary modules of its own. `longest_exact_text` is the
    longest text in tokens whose logits by the model as it came are exact, None without a limit."""

    name: ClassVar[str]  # as users know the family
    longest_exact_text: int | None = None

    def __init__(self, model: nn.Module, modules: list[nn.Module]):
        self.modules = modules
        self.rotary_modules: list[nn.Module] = []

    def encoding(self, model: nn.Module, shape: Shape) -> Encoding | None:
        """Encoding of the biases that the model adds to its scores; None for a model without
        biases.
        """
        return None

    def forward(
        self, function_name: str, module: nn.Module, hidden_BSC: Tensor, **options: object
    ) -> tuple[Tensor, None]:
        """Output of `module` by the function of this name in the registry, and None in
        place of the weights.
        """
        raise NotImplementedError

    @contextmanager
    def through_registry(self, function_name: str) -> Iterator[None]:
        """Context in which the attention modules call the function of this name in the registry."""
        # None for a module that has its class's forward and none of its own
        forwards_before = [vars(module).get("forward") for module in self.modules]
        for module in self.modules:
            module.forward = functools.partial(self.forward, function_name, module)
        try:
            yield
        finally:
            for module, forward_before in zip(self.modules, forwards_before, strict=True):
                del module.forward
                if forward_before is not None:
                    module.forward = forward_before


def attention_outputs(
    function_name: str,
    module: nn.Module,
    qkv: tuple[Tensor, Tensor, Tensor],
    cache: object,
    mask: object,
    scaling: float,
    dropout: float = 0.0,
    output_attentions: bool | None = None,
) -> Tensor:
    """Outputs [B, S, H D] of all heads: attention of new tokens to themselves and to the cache.

    `qkv` are those of the new tokens: q [B, H, S, D], k and v [B, G, S, D]. `module` is the
    attention module.
    """
    from transformers import AttentionInterface

    q_BHSD, k_BGSD, v_BGSD = qkv
    if cache is not None:
        k_BGSD, v_BGSD = cache.update(k_BGSD, v_BGSD, module.layer_idx)
    attention = AttentionInterface()[function_name]
    y_BSHD, _ = attention(
        module,
        q_BHSD,
        k_BGSD,
        v_BGSD,
        mask,
        scaling=scaling,
        dropout=dropout if module.training else 0.0,
        output_attentions=output_attentions,
    )
    return y_BSHD.flatten(2)


def python_module_of(module: nn.Module) -> object:
    """Python module of transformers in which the class of `module` is defined."""
    return sys.modules[type(module).__module__]
