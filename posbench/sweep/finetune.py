"""Configuration of a child: a short training that begins with the weights of its parent.

The child is a run like any other. The extension that was asked for is trained in: it becomes a part
of the child's encoding, and what is evaluated is the child without a further one."""

import math
from dataclasses import replace

from posbench.common.errors import ConfigError
from posbench.config.defaults import usual_validate_every
from posbench.config.identity import NO_EXTENSION, method_name
from posbench.config.schema import FinetuneConfig, JobConfig, TrainConfig
from posbench.position.instantiate import nodes_within

DEFAULT_LENGTH_FACTOR = 4  # times the parent's training length, if nothing else is said


def child_config(config: JobConfig, run_id: str, tuning: FinetuneConfig) -> JobConfig:
    """Resolved configuration of the child of the training `config`, whose id is `run_id`.

    Raises ConfigError for lengths that contradict each other, and for evaluate.split=all. A child
    that posbench.model.inherit refuses is returned too, so that a sweep can list it."""
    parent = config.train
    if config.evaluate.split == "all":
        raise ConfigError(
            "evaluate.split=all scores the text of the fine-tuning too, which the child has seen:"
            " choose test or validation."
        )
    # A new encoding is learned at the old length; without one, longer texts are the point.
    usual_length = parent.train_len if tuning.encoding else DEFAULT_LENGTH_FACTOR * parent.train_len
    length = tuning.length or usual_length
    target = _target_length(config, tuning, length)
    _check_trained_scale(parent, tuning)
    train = replace(
        parent,
        length=length,
        tokens_per_step=tuning.tokens_per_step or max(parent.tokens_per_step, length),
        scale_attention=tuning.scale_attention or parent.scale_attention,
        frozen=tuning.frozen,
        parent=_parent_note(parent, run_id),
        steps=tuning.steps,
        lr=tuning.lr,
        muon_lr=tuning.muon_lr,
        warmup=tuning.warmup,
        schedule=tuning.schedule,
        checkpoint_every=tuning.checkpoint_every,
        step=None,  # the child ends after its own last step, whichever the parent ended after
        keep_steps=None,  # a child keeps none: the parent's are steps of the parent
    )
    # The usual steps of validations are those of the child's own, usually shorter training.
    if parent.validate_every == usual_validate_every(parent):
        train = replace(train, validate_every=usual_validate_every(train))
    encoding = _child_encoding(config, tuning, target)  # with the extension trained in
    return replace(config, encoding=encoding, extension=NO_EXTENSION, train=train)


def _target_length(config: JobConfig, tuning: FinetuneConfig, length: int) -> int:
    """Length in tokens for which a child's positions are made.

    Raises ConfigError if lengths contradict each other, or finetune.target_len has no effect.
    """
    lengths = {}  # {key: length that the methods themselves name, or None}
    for key, method in nodes_within(config.extension, "extension"):  # parts of compose too
        lengths[f"{key}.target_len"] = method.get("target_len")
    lengths["finetune.encoding.max_len"] = (tuning.encoding or {}).get("max_len")
    if tuning.target_len:
        _check_target_used(config, tuning)
        for key, named in lengths.items():
            if named not in (None, tuning.target_len):
                raise ConfigError(
                    f"finetune.target_len={tuning.target_len} and {key}={named} differ: make them"
                    " equal, or leave finetune.target_len out."
                )
        source = "finetune.target_len"
        target = tuning.target_len
    elif not tuning.encoding:
        # The parent's encoding is trained on texts of the new length. This fixes a dynamic factor
        # alone: an extension that names extension.target_len keeps it.
        return length
    else:
        named_lengths = [(key, named) for key, named in lengths.items() if named]
        if not named_lengths:  # a new encoding learns positions beyond the sequences that it is fed
            return max(length, DEFAULT_LENGTH_FACTOR * config.train.train_len)
        # Of two lengths each stays where it is named; the first is checked below.
        source, target = named_lengths[0]
    if target < length:
        raise ConfigError(
            f"{source}={target} is shorter than a sequence of finetune.length={length}: raise it,"
            " or leave it out."
        )
    return target


def _check_target_used(config: JobConfig, tuning: FinetuneConfig) -> None:
    """Raise ConfigError if finetune.target_len has no effect."""
    if tuning.encoding:
        used = "base" in tuning.encoding  # where the parent's encoding goes (pose, randomized)
        reason = "finetune.encoding has no positions of the parent"
    else:
        # An extension, or a part of compose, whose factor depends on a length.
        used = any("mode" in method for _, method in nodes_within(config.extension))
        reason = (
            f"extension={method_name(config.extension)} has no factor that is made for a length"
        )
    if not used:
        raise ConfigError(
            f"finetune.target_len={tuning.target_len} has no effect, since {reason}: leave it out."
        )


def _child_encoding(config: JobConfig, tuning: FinetuneConfig, target: int) -> dict:
    """Encoding of the child: that of the parent or finetune.encoding, with the extension in it."""
    scaling = _scaling_arguments(config.extension, config.train.train_len, target)
    if tuning.encoding is None:
        return {**config.encoding, **scaling}
    if "base" not in tuning.encoding:  # nothing of the parent's encoding stays
        return {**tuning.encoding, **scaling}
    encoding = {**tuning.encoding, "base": {**config.encoding, **scaling}}
    if "max_len" in encoding:
        encoding["max_len"] = encoding["max_len"] or math.ceil(target)  # null: the target
    return encoding


def _parent_note(parent: TrainConfig, run_id: str) -> dict:
    """Value of train.parent: the parent's id, its reach, and the child's generation from 2 on."""
    note = {"run_id": run_id, "reach": parent.origin}
    if parent.parent:
        note["generation"] = parent.generation + 1
    return note


def _check_trained_scale(parent: TrainConfig, tuning: FinetuneConfig) -> None:
    """Raise ConfigError for a second trained scale, and for a child with nothing to train."""
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


def _scaling_arguments(extension: dict, train_len: int, target: int) -> dict:
    """Arguments of an encoding that has `extension` trained in.

    A factor that would follow each length is fixed at that of `target`.
    """
    if method_name(extension) == "none":
        return {}
    return {"scaling": _with_fixed_factors(extension, target), "scaling_len": train_len}


def _with_fixed_factors(value: object, target: int) -> object:
    """A node, or a value in it, with each factor that follows the length fixed at `target`.

    Parts of compose have factors of their own."""
    if isinstance(value, list):
        return [_with_fixed_factors(item, target) for item in value]
    if not isinstance(value, dict):
        return value
    fixed = {key: _with_fixed_factors(item, target) for key, item in value.items()}
    if "_target_" in fixed and fixed.get("mode") == "dynamic":
        fixed.update(mode="fixed", target_len=target)
    return fixed
