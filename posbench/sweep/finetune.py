"""Configuration of a child: a training of a few steps that begins with the weights of another one,
its parent.

The child is a run like any other. The extension that was asked for is trained in: it becomes a part
of the child's encoding, and what is evaluated is the child without a further one."""

import math
from dataclasses import replace

from posbench.common.errors import ConfigError
from posbench.config.identity import NO_EXTENSION, method_name
from posbench.config.schema import FinetuneConfig, JobConfig

LONGER = 4  # times the parent's training length, if nothing else is said


def child_config(cfg: JobConfig, run_id: str, tuning: FinetuneConfig) -> JobConfig:
    """Resolved configuration of the child of the training `cfg`, whose id is `run_id`.

    Raises ConfigError for lengths that contradict each other, and for evaluate.split=all. A child
    that posbench.model.inherit refuses is returned too, so that a sweep can list it."""
    parent = cfg.train
    if cfg.evaluate.split == "all":
        raise ConfigError(
            "evaluate.split=all scores the text of the fine-tuning too, which the child has seen:"
            " choose test or validation."
        )
    longer = LONGER * parent.train_len
    length = tuning.length or (parent.train_len if tuning.encoding else longer)
    own_max = (tuning.encoding or {}).get("max_len")
    own_lengths = {
        "extension.target_len": cfg.extension.get("target_len"),
        "finetune.encoding.max_len": own_max,
    }
    named = {"finetune.target_len": tuning.target_len, **(own_lengths if tuning.encoding else {})}
    source, target = next(
        ((key, one) for key, one in named.items() if one),
        ("", max(length, longer) if tuning.encoding else length),
    )
    if tuning.encoding:
        unused = (
            "" if "base" in tuning.encoding else "finetune.encoding has no positions of the parent"
        )
    else:
        unused = (
            ""
            if "mode" in cfg.extension
            else f"extension={method_name(cfg.extension)} has no factor that is made for a length"
        )
    if tuning.target_len and unused:
        raise ConfigError(
            f"finetune.target_len={target} has no effect, since {unused}: leave it out."
        )
    for (
        key,
        own,
    ) in own_lengths.items():  # what names a length itself does not take that of finetune
        if tuning.target_len and own not in (None, target):
            raise ConfigError(
                f"finetune.target_len={target} and {key}={own} differ: make them equal, or leave"
                " finetune.target_len out."
            )
    if target < length:
        raise ConfigError(
            f"{source}={target} is shorter than a sequence of finetune.length={length}: raise it,"
            " or leave it out."
        )
    scaling = _trained_in(cfg.extension, parent.train_len, target)
    if tuning.encoding is None:
        encoding = {**cfg.encoding, **scaling}
    elif "base" in tuning.encoding:
        filled = {
            "base": {**cfg.encoding, **scaling},
            "max_len": tuning.encoding.get("max_len") or math.ceil(target),
        }
        encoding = {key: filled.get(key, value) for key, value in tuning.encoding.items()}
    else:
        encoding = {**tuning.encoding, **scaling}
    if tuning.scale_attention and method_name(parent.scale_attention) != "none":
        raise ConfigError(
            f"train.scale_attention={method_name(parent.scale_attention)} and"
            f" finetune.scale_attention={method_name(tuning.scale_attention)} cannot both be"
            " trained in: choose another finetune, or a parent without one."
        )
    if tuning.frozen and not tuning.scale_attention:
        raise ConfigError(
            "finetune.frozen=true leaves nothing to train: give finetune.scale_attention, or choose"
            " finetune=head_scale."
        )
    train = replace(
        parent,
        length=length,
        tokens_per_step=tuning.tokens_per_step or max(parent.tokens_per_step, length),
        scale_attention=tuning.scale_attention or parent.scale_attention,
        frozen=tuning.frozen,
        parent={
            "run_id": run_id,
            "reach": parent.origin,
            **({"generation": parent.generation + 1} if parent.parent else {}),
        },
        **{
            key: getattr(tuning, key)
            for key in ("steps", "lr", "muon_lr", "warmup", "schedule", "checkpoint_every")
        },
    )
    return replace(cfg, encoding=encoding, extension=NO_EXTENSION, train=train)


def _trained_in(extension: dict, train_len: int, target: int) -> dict:
    """Arguments of an encoding that has `extension` trained in. A factor that would follow each
    length is fixed at that of `target`.
    """
    if method_name(extension) == "none":
        return {}
    fixed = {"mode": "fixed", "target_len": target} if extension.get("mode") == "dynamic" else {}
    return {"scaling": {**extension, **fixed}, "scaling_len": train_len}
