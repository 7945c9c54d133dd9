"""Defaults of the configuration that depend on other values or on this machine."""

from dataclasses import replace

from posbench.common.errors import ConfigError
from posbench.common.machine import fast_dtype
from posbench.config.names import chosen_node
from posbench.config.schema import JobConfig, TrainConfig

# training length in tokens above which the defaults of `evaluate` are those of a text that takes
# seconds to read
LONG_TRAINING = 1024
# usual number of validations at several lengths: enough points for a curve
USUAL_VALIDATIONS = 20


def resolved_config(raw: dict, auto_dtype: str | None = None) -> JobConfig:
    """Fill in the defaults that depend on other values or on this machine, so that ids hash numbers
    and words, not nulls.

    `auto_dtype` is what dtype=auto means; None: the format that this machine multiplies fastest.
    Raises ConfigError as `check_config` does, and for lengths that contradict evaluate.max_length.
    """
    config = JobConfig.of(raw)
    auto_dtype = auto_dtype or fast_dtype(config.device)
    train_len = config.train.origin  # a child is evaluated on the targets of its parent
    evaluate = config.evaluate
    # Long texts take long to read, so there are fewer of them, of fewer lengths.
    is_long = train_len > LONG_TRAINING
    multiples = (1, 2, 4) if is_long else (1, 2, 4, 8, 16)
    usual = [n * train_len for n in multiples]
    largest = evaluate.max_length
    if not largest:
        # Lengths that are left out do not move the windows, unless the usual ones cost too much.
        largest = max(evaluate.lengths if is_long and evaluate.lengths else usual)
    lengths = evaluate.lengths or [length for length in usual if length <= largest]
    lengths = sorted(set(lengths))
    scores_training_text = not (config.model.path or config.model.engine or evaluate.text)
    if evaluate.split == "all" and scores_training_text:
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
    if lengths[-1] > largest:
        raise ConfigError(
            f"evaluate.lengths={lengths} goes beyond evaluate.max_length={largest}, which places"
            f" the windows: set evaluate.max_length to {lengths[-1]} or more."
        )
    evaluate = replace(
        evaluate,
        max_length=largest,
        lengths=lengths,
        windows=evaluate.windows or (8 if is_long else 512),
        targets=evaluate.targets or usual_targets(train_len),
        floor_block=evaluate.floor_block or usual_floor_block(train_len),
        protocol=evaluate.protocol or _usual_protocols(config.data),
        dtype=auto_dtype if evaluate.dtype == "auto" else evaluate.dtype,
    )
    return replace(config, evaluate=evaluate, train=_resolved_training(config.train, auto_dtype))


def _resolved_training(train: TrainConfig, auto_dtype: str) -> TrainConfig:
    """Settings of a training with its number format, and with when and how it is validated."""
    if train.dtype == "auto":
        train = replace(train, dtype=auto_dtype)
    if train.validate_every is None:
        train = replace(train, validate_every=usual_validate_every(train))
    if train.validate_lengths:
        train = replace(train, validate_lengths=sorted(set(train.validate_lengths)))
    if train.validate_extensions:
        nodes = [chosen_node("extension", chosen, {}) for chosen in train.validate_extensions]
        distinct = [node for i, node in enumerate(nodes) if node not in nodes[:i]]
        train = replace(train, validate_extensions=distinct)
    if train.keep_steps:
        train = replace(train, keep_steps=sorted(set(train.keep_steps)))
    return train


def usual_validate_every(train: TrainConfig) -> int:
    """Steps between validations: a twentieth of all with validate_lengths, else 0: at the end."""
    return max(1, train.steps // USUAL_VALIDATIONS) if train.validate_lengths else 0


def usual_targets(train_len: int) -> int:
    """Scored tokens of a window: an eighth of the training length."""
    return max(1, train_len // 8)


def usual_floor_block(train_len: int) -> int:
    """Targets that share one text of the floor, which would take long with one for each."""
    return train_len // 16 if train_len > LONG_TRAINING else 1


def _usual_protocols(data: dict) -> list[str]:
    """Protocols of a task, of a text mixed with a task, and of any other text."""
    if data.get("tokenizer") == "task":
        return ["accuracy"]
    return ["fixed_targets", "accuracy"] if data.get("mix") else ["fixed_targets"]
