"""Start of a fine-tuned model: its parent's weights, checked to be the same function."""

from dataclasses import replace

import torch

from posbench.common.errors import ConfigError
from posbench.config.identity import method_name
from posbench.config.schema import JobConfig
from posbench.extensions.none import NoExtension
from posbench.model.build import make_encoding, make_trained_scale
from posbench.model.gpt import GPT
from posbench.position.effect import same_prefix
from posbench.position.legality import check_extension, name_of
from posbench.position.plan import make_plan


def inherit(model: GPT, parent: GPT, frozen: bool = False) -> None:
    """Copy the parent's weights into `model`; with `frozen` they take no further part in its
    training.

    Those of an encoding that now is the `base` of another go there, those of one that was replaced
    go nowhere. What the child alone has keeps its initial weights."""
    own = model.state_dict()
    names = {
        name: name if name in own else name.replace("encoding.", "encoding.base.", 1)
        for name in parent.state_dict()
    }
    model.load_state_dict(
        {names[name]: tensor for name, tensor in parent.state_dict().items() if names[name] in own},
        strict=False,
    )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not frozen or name not in names.values())


def check_beginning(cfg: JobConfig, parent: JobConfig) -> None:
    """Check a child by the configurations of both.

    Raises ConfigError for an extension that its encoding cannot have trained in, for positions that
    its encoding lacks, and if it would read a text of the parent differently from the parent: some
    methods are defined by the training length, which a child changes."""
    child, before = cfg.train, parent.train
    _check_scaling(cfg.encoding, parent.encoding)
    encoding = make_encoding(cfg)
    try:
        check_extension(encoding, NoExtension(), [child.train_len])
    except ConfigError as error:
        raise ConfigError(
            f"finetune.length={child.train_len} has positions that encoding={name_of(encoding)}"
            " lacks: fine-tune it at the length that it was trained at, or choose another"
            " encoding."
        ) from error
    if child.train_len == before.train_len:
        return
    encodings = [make_encoding(replace(one, encoding=parent.encoding)) for one in (parent, cfg)]
    scales = [
        make_trained_scale(one, encoding)
        for one, encoding in zip((parent, cfg), encodings, strict=True)
    ]
    length = min(child.train_len, before.train_len)
    for kind, (first, second), given in (
        ("encoding", encodings, (None, None)),
        ("train.scale_attention", scales, scales),
    ):
        if first is None:
            continue
        alike = _shapes(first) == _shapes(second)
        if alike:
            second.load_state_dict(first.state_dict())
            with torch.no_grad():
                plans = (
                    make_plan(one, length=length, trained_scale=scale)
                    for one, scale in zip(encodings, given, strict=True)
                )
                alike = same_prefix(*plans)
        if not alike:
            raise ConfigError(
                f"finetune.length={child.train_len} would change what {kind}={name_of(first)} does"
                f" within the first {before.train_len} tokens, since it is defined by the training"
                " length: choose a method that is not, or that length."
            )


def _check_scaling(encoding: dict, before: dict) -> None:
    """Raise ConfigError for an extension beside one that is trained in already, and for one without
    a place in the encoding.
    """
    inner = encoding["base"] if isinstance(encoding.get("base"), dict) else encoding
    scaling, name = inner.get("scaling"), method_name(inner)
    if scaling in (None, before.get("scaling")):
        return
    asked = method_name(scaling)
    if before.get("scaling"):
        raise ConfigError(
            f"extension={method_name(before['scaling'])} is already trained in, so"
            f" extension={asked} cannot be: choose none."
        )
    if name != method_name(before) or "scaling" not in before:
        raise ConfigError(
            f"encoding={name} has no frequencies that extension={asked} could be trained into:"
            " choose extension=none, or"
            f" {'another finetune' if name != method_name(before) else 'encoding=rope'}."
        )


def _shapes(method: torch.nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in method.state_dict().items()}
