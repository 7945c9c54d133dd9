"""Defaults of the configuration that depend on other values or on this machine."""

from dataclasses import replace

from posbench.common.errors import ConfigError
from posbench.common.machine import fast_dtype
from posbench.config.schema import JobConfig

# training length in tokens above which the defaults of `evaluate` are those of a text that takes
# seconds to read
LONG = 1024


def resolve(cfg: dict, auto: str | None = None) -> JobConfig:
    """Fill in the defaults that depend on other values or on this machine, so that ids hash numbers
    and words, not nulls.

    `auto` is what dtype=auto means; None: the format that this machine multiplies fastest.
    Raises ConfigError as `check_config` does, and for lengths that contradict evaluate.max_length.
    """
    found = JobConfig.of(cfg)
    auto = auto or fast_dtype(found.device)
    train_len, asked = (
        found.train.origin,
        found.evaluate,
    )  # a child is evaluated on the targets of its parent
    long = train_len > LONG
    usual = [n * train_len for n in ((1, 2, 4) if long else (1, 2, 4, 8, 16))]
    largest = asked.max_length or max(long and asked.lengths or usual)
    lengths = sorted(set(asked.lengths or [length for length in usual if length <= largest]))
    if asked.split == "all" and not (found.model.path or found.model.engine or asked.text):
        raise ConfigError(
            "evaluate.split=all scores the text of the training too, which the model has seen:"
            " choose test or validation, another text (evaluate.text), or evaluate a checkpoint"
            " (model=hf)."
        )
    if not lengths:
        raise ConfigError(
            f"evaluate.max_length={largest} is shorter than train.length={train_len}: raise it, or"
            " give evaluate.lengths."
        )
    task = found.data.get("tokenizer") == "task"
    usual_protocol = (
        ["accuracy"]
        if task
        else ["fixed_targets", "accuracy"]
        if found.data.get("mix")
        else ["fixed_targets"]
    )
    if lengths[-1] > largest:
        raise ConfigError(
            f"evaluate.lengths={lengths} goes beyond evaluate.max_length={largest}, which places"
            f" the windows: set evaluate.max_length to {lengths[-1]} or more."
        )
    evaluate = replace(
        asked,
        max_length=largest,
        lengths=lengths,
        windows=asked.windows or (8 if long else 512),
        targets=asked.targets or max(1, train_len // 8),
        floor_block=asked.floor_block or (train_len // 16 if long else 1),
        protocol=asked.protocol or usual_protocol,
        dtype=asked.dtype or ("auto" if long else "fp32"),
    )
    evaluate, train = (
        replace(part, dtype=auto if part.dtype == "auto" else part.dtype)
        for part in (evaluate, found.train)
    )
    return replace(found, evaluate=evaluate, train=train)
