"""Start of a fine-tuned model: its parent's weights, checked to be the same function."""

from dataclasses import replace

import torch
from torch import nn

from posbench.common.errors import ConfigError
from posbench.config.identity import method_name
from posbench.config.schema import JobConfig
from posbench.extensions.none import NoExtension
from posbench.model.build import make_encoding, make_trained_scale
from posbench.model.gpt import GPT
from posbench.position.effect import same_prefix
from posbench.position.interfaces import ScaleAttention
from posbench.position.legality import check_extension, name_of
from posbench.position.plan import make_plan

Scale = ScaleAttention | None


def inherit(model: GPT, parent: GPT, frozen: bool = False) -> None:
    """Copy the parent's weights into `model`; with `frozen` its training does not change them.

    Those of an encoding that now is the `base` of another go there, those of one that was replaced
    go nowhere. What the child alone has keeps its initial weights."""
    child_names = model.state_dict().keys()
    inherited = {}  # {name in the child: the parent's weight}
    for name, weight in parent.state_dict().items():
        base_name = name.replace("encoding.", "encoding.base.", 1)
        if name in child_names:
            inherited[name] = weight
        elif base_name in child_names:
            inherited[base_name] = weight
    model.load_state_dict(inherited, strict=False)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not frozen or name not in inherited)


def check_beginning(config: JobConfig, parent: JobConfig) -> None:
    """Check a child by the configurations of both.

    Raises ConfigError for an extension that its encoding cannot have trained in, for positions that
    its encoding lacks, and if it would read a text of the parent differently from the parent: some
    methods are defined by the training length, which a child changes."""
    _check_scaling(config.encoding, parent.encoding)
    train_len = config.train.train_len
    encoding = make_encoding(config)
    try:
        check_extension(encoding, NoExtension(), [train_len])
    except ConfigError as error:
        raise ConfigError(
            f"finetune.length={train_len} has positions that encoding={name_of(encoding)}"
            " lacks: fine-tune it at the length that it was trained at, or choose another"
            " encoding."
        ) from error
    if train_len == parent.train.train_len:  # nothing is defined by another length
        return
    parent_encoding = make_encoding(parent)
    # The parent's encoding as the child's training length makes it.
    child_encoding = make_encoding(replace(config, encoding=parent.encoding))
    parent_scale = make_trained_scale(parent, parent_encoding)
    child_scale = make_trained_scale(config, child_encoding)
    length = min(train_len, parent.train.train_len)

    def begins_alike(parent_rule: Scale, child_rule: Scale) -> bool:
        """True if child and parent read the first `length` tokens in the same way."""
        child_plan = make_plan(child_encoding, length=length, trained_scale=child_rule)
        parent_plan = make_plan(parent_encoding, length=length, trained_scale=parent_rule)
        return same_prefix(parent_plan, child_plan)

    with torch.no_grad():
        same = _copies_weights(parent_encoding, child_encoding)
        if not same or not begins_alike(parent_rule=None, child_rule=None):  # without scales
            raise _error_of_changed_reading("encoding", parent_encoding, config, parent)
        if parent_scale is None:
            return
        same = _copies_weights(parent_scale, child_scale)
        if not same or not begins_alike(parent_scale, child_scale):
            raise _error_of_changed_reading("train.scale_attention", parent_scale, config, parent)


def _copies_weights(parent: nn.Module, child: nn.Module) -> bool:
    """Load a parent's method into a child's, where all shapes are the same; else False."""
    if _weight_shapes(parent) != _weight_shapes(child):
        return False
    child.load_state_dict(parent.state_dict())
    return True


def _error_of_changed_reading(
    key: str, method: nn.Module, config: JobConfig, parent: JobConfig
) -> ConfigError:
    """Refusal of a method that the child's training length changes."""
    return ConfigError(
        f"finetune.length={config.train.train_len} would change what {key}={name_of(method)} does"
        f" within the first {parent.train.train_len} tokens, since it is defined by the training"
        " length: choose a method that is not, or that length."
    )


def _check_scaling(encoding: dict, parent_encoding: dict) -> None:
    """Raise ConfigError for an extension beside one that is trained in already, and for one without
    a place in the encoding.
    """
    # An encoding around another one names it by `base`, which in rope is a number.
    inner = encoding["base"] if isinstance(encoding.get("base"), dict) else encoding
    scaling = inner.get("scaling")
    # A parent around another encoding has none here, and is refused below by its name.
    parent_scaling = parent_encoding.get("scaling")
    if scaling in (None, parent_scaling):  # nothing new is trained in
        return
    extension = method_name(scaling)
    if parent_scaling:
        raise ConfigError(
            f"extension={method_name(parent_scaling)} is already trained in, so"
            f" extension={extension} cannot be: choose none."
        )
    name = method_name(inner)
    other_encoding = name != method_name(parent_encoding)
    if other_encoding or "scaling" not in parent_encoding:
        way_out = "another finetune" if other_encoding else "encoding=rope"
        raise ConfigError(
            f"encoding={name} has no frequencies that extension={extension} could be trained into:"
            f" choose extension=none, or {way_out}."
        )


def _weight_shapes(method: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in method.state_dict().items()}
