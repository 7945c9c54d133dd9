"""Base class of the families whose attention modules compute the scores themselves.

All other models hand queries, keys and values to transformers' registry of attention functions. A
family here gives each of its attention modules a forward that does so too: the module's own
projections, its own cache and its own output, with the registry in place of its own scores. Biases
that the model adds to its scores are left to the encoding.

Letters: B batch, T tokens, S queries, H heads, G key heads, D head width, C width of the model.
"""

import functools
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from torch import Tensor, nn

from posbench.common.errors import ConfigError
from posbench.position.geometry import Shape
from posbench.position.interfaces import Encoding

FILES = {  # of the class of a family's attention modules
    "BloomAttention": "bloom.Bloom",
    "MptAttention": "mpt.Mpt",
    "FalconAttention": "falcon.Falcon",
    "GPTJAttention": "gptj.GptJ",
    "CodeGenAttention": "gptj.CodeGen",
}


class Family:
    """Attention modules of one model. Raises ConfigError for a setting of the model that is not
    supported.

    `rotary` are modules that hold the angles of the model where it has no rotary modules of its
    own. `comparable` is the longest text in tokens whose logits by the model as it came are exact,
    None without a limit."""

    name: ClassVar[str]  # as users know the family
    comparable: int | None = None

    def __init__(self, model: nn.Module, modules: list[nn.Module]):
        self.modules = modules
        self.rotary: list[nn.Module] = []

    def encoding(self, model: nn.Module, shape: Shape) -> Encoding | None:
        """Encoding of the biases that the model adds to its scores; None for a model without
        biases.
        """
        return None

    def forward(
        self, registered: str, module: nn.Module, hidden_BSC: Tensor, **options: object
    ) -> tuple[Tensor, None]:
        """Output of `module` by the function that is `registered`, and None in place of the
        weights.
        """
        raise NotImplementedError

    @contextmanager
    def in_place(self, registered: str) -> Iterator[None]:
        """Context in which the attention modules ask the function of this name in the registry."""
        before = [vars(module).get("forward") for module in self.modules]
        for module in self.modules:
            module.forward = functools.partial(self.forward, registered, module)
        try:
            yield
        finally:
            for module, forward in zip(self.modules, before, strict=True):
                del module.forward
                if forward is not None:
                    module.forward = forward


def attended(
    registered: str,
    module: nn.Module,
    qkv: tuple[Tensor, Tensor, Tensor],
    cache: object,
    mask: object,
    scaling: float,
    dropout: float = 0.0,
    output_attentions: bool | None = None,
) -> Tensor:
    """Outputs of all heads [B, S, H D] to new tokens and those in the cache.

    `qkv` are those of the new tokens: q [B, H, S, D], k and v [B, G, S, D].
    """
    from transformers import AttentionInterface

    q_BHSD, k_BGSD, v_BGSD = qkv
    if cache is not None:
        k_BGSD, v_BGSD = cache.update(k_BGSD, v_BGSD, module.layer_idx)
    function = AttentionInterface()[registered]
    y_BSHD, _ = function(
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


def code_of(module: nn.Module) -> object:
    """Python module of transformers in which the class of `module` is defined."""
    return sys.modules[type(module).__module__]


def has_family(model: nn.Module) -> bool:
    """True for a model whose attention modules compute the scores themselves, as a family here
    does.
    """
    return any(_file(module) for module in model.modules())


def family_of(model: nn.Module) -> Family | None:
    """Family of a model whose attention modules compute the scores themselves; None for others.

    Raises ConfigError for a setting of the model that is not supported.
    """
    modules = [module for module in model.modules() if _file(module)]
    if not modules:
        return None
    file, name = _file(modules[0]).split(".")
    family = getattr(importlib.import_module(f"posbench.model.inplace.families.{file}"), name)
    try:
        return family(model, modules)
    except AttributeError as error:  # a version of transformers whose modules have other parts
        raise ConfigError(
            f"{type(model).__name__} of this version of transformers has other parts than posbench "
            f"knows ({error}), so it is left as it came."
        ) from error


def _file(module: nn.Module) -> str | None:
    """File and class of a module's family, such as "bloom.Bloom"; None for a module of no
    family.
    """
    kinds = [
        kind for kind in type(module).__mro__ if kind.__module__.startswith("transformers.models.")
    ]
    return next((FILES[kind.__name__] for kind in kinds if kind.__name__ in FILES), None)
