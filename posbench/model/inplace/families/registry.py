"""Families of transformers by the class of their attention modules.

To add one, write its file beside this one, with a subclass of Family, and name it in FAMILIES."""

from torch import nn

from posbench.common.errors import ConfigError
from posbench.model.inplace.families.bloom import Bloom
from posbench.model.inplace.families.falcon import Falcon
from posbench.model.inplace.families.family import Family
from posbench.model.inplace.families.gptj import CodeGen, GptJ
from posbench.model.inplace.families.mpt import Mpt

# {class of attention modules in transformers.models, which subclasses share: family}
FAMILIES: dict[str, type[Family]] = {
    "BloomAttention": Bloom,
    "MptAttention": Mpt,
    "FalconAttention": Falcon,
    "GPTJAttention": GptJ,
    "CodeGenAttention": CodeGen,
}


def has_family(model: nn.Module) -> bool:
    """True for a model whose attention modules compute the scores as a family here does."""
    return any(_family_class(module) is not None for module in model.modules())


def family_of(model: nn.Module) -> Family | None:
    """Family of a model whose attention modules compute the scores themselves; None for others.

    Raises ConfigError for a setting of the model that is not supported.
    """
    modules = [module for module in model.modules() if _family_class(module) is not None]
    if not modules:
        return None
    family_class = _family_class(modules[0])
    try:
        return family_class(model, modules)
    except AttributeError as error:  # a version of transformers whose modules have other parts
        raise ConfigError(
            f"{type(model).__name__} of this version of transformers has other parts than posbench "
            f"knows ({error}), so it is left as it came."
        ) from error


def _family_class(module: nn.Module) -> type[Family] | None:
    """Family of an attention module; None for any other module."""
    for base in type(module).__mro__:
        if base.__module__.startswith("transformers.models.") and base.__name__ in FAMILIES:
            return FAMILIES[base.__name__]
    return None
