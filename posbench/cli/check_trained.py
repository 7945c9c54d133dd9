"""Refusal of training options beside run=DIR, model.path=DIR or an engine, all trained already."""

from dataclasses import asdict
from pathlib import Path

from posbench.common.defuse import printable
from posbench.common.errors import ConfigError, RunError
from posbench.config.identity import FIELDS_ADDED_LATER, canonical, method_name
from posbench.config.schema import TRAINING_PARTS, USUAL_SOURCE, typed_group
from posbench.data.sources import WITHOUT_FILE
from posbench.results.run_metadata import ABSENT_WORD, OWN_FILES, typed_text
from posbench.runs.directory import Run

CHECKPOINT_KEYS = {  # keys that describe a checkpoint
    "model",
    "model.path",
    "model.own_scaling",
    "train.length",
    "train.scale_attention",  # refused by a sentence of its own
}


def check_trained(cells: list[dict], words: list[str], experiment: dict) -> None:
    """Raise ConfigError for a key that differs from the training in run=DIR, or would retrain a
    checkpoint.

    Keys are set by the words typed or by the experiment. A training length beside a checkpoint
    becomes a list of one, so that it counts also where it equals the default. A directory whose
    configuration cannot be read is skipped here: the command reports it when it needs it."""
    # GROUP@KEY=NAME puts a yaml at a key.
    typed_keys = {word.partition("=")[0].lstrip("+~").rpartition("@")[2] for word in words}
    blocks = [experiment.get("base") or {}, *experiment.get("grid", [])]
    keys = typed_keys | {str(key) for block in blocks for key in block}
    for raw in cells:
        if raw["run"]:
            _check_run(raw, keys)
        elif raw["model"].get("engine"):
            _check_engine(raw, keys, typed_keys)
        elif raw["model"].get("path"):
            _check_checkpoint(raw, keys)
        else:
            continue
        length = raw["train"]["length"]
        if not raw["run"] and "train.length" in keys and not isinstance(length, list):
            raw["train"]["length"] = [length]


def _check_run(raw: dict, keys: set[str]) -> None:
    """Raise ConfigError for a key that differs from the training in run=DIR."""
    try:
        trained = _training_settings(Run(raw["run"]).read_config())
        requested = _training_settings(raw)
    # KeyError: the file lacks a part.
    except (RunError, ConfigError, KeyError):
        return  # the command itself reports a configuration that it cannot read
    differing = [
        key
        for key in sorted(keys)
        if key.split(".")[0] in TRAINING_PARTS
        and _compared_value(trained, key) != _compared_value(requested, key)
    ]
    if differing:
        raise ConfigError(
            f"run={Path(raw['run'])} was trained with {_typed_words(trained, differing)}, which"
            f" {_typed_words(requested, differing)} cannot change: leave out what describes a"
            " training, or leave out run= to make that training."
        )


def _check_engine(raw: dict, keys: set[str], typed_keys: set[str]) -> None:
    """Raise ConfigError for a key that an engine cannot follow, such as a number format.

    `keys`: all that are set, also by an experiment; `typed_keys`: those of the words alone."""
    engine = f"model={method_name(raw['model']['engine'])}"
    _check_untrained(raw, keys, engine, refused_groups=("train",))
    dtype = raw["evaluate"].get("dtype")
    if dtype and "evaluate.dtype" in typed_keys:
        raise ConfigError(
            f"{engine} computes in a number format of its own, so evaluate.dtype={dtype} has no"
            " effect: leave it out."
        )


def _check_checkpoint(raw: dict, keys: set[str]) -> None:
    """Raise ConfigError for a key that would change the model, its training or its tokenizer."""
    from posbench.pretrained.checkpoint import find_checkpoint

    checkpoint = f"model.path={printable(str(raw['model']['path']))}"
    _check_untrained(raw, keys, checkpoint, refused_groups=("model", "train"))
    tokenizer = raw["data"]["tokenizer"]
    # Only bytes, char and bpe are refused: a tokenizer's file may be the checkpoint's own.
    if "data.tokenizer" not in keys or tokenizer not in WITHOUT_FILE:
        return
    if find_checkpoint(raw["model"]["path"]).tokenizer():
        raise ConfigError(
            f"{checkpoint} has its own tokenizer, so data.tokenizer={tokenizer} has no effect:"
            " leave it out."
        )


def _check_untrained(
    raw: dict, keys: set[str], weights: str, refused_groups: tuple[str, ...]
) -> None:
    """Raise ConfigError for a key of these groups, or another seed, beside weights such as
    model=server.
    """
    idle = [
        key
        for key in keys - CHECKPOINT_KEYS
        # another block of an experiment's grid may choose a model with other keys
        if key.split(".")[0] in refused_groups and _dotted_value(raw, key) != ABSENT_WORD
    ]
    if raw["seed"] and "seed" in keys:  # 0, the default, changes nothing
        idle.append("seed")
    if idle:
        raise ConfigError(
            f"{weights} is trained already, so {_typed_words(raw, sorted(idle))} would have no"
            " effect: leave it out (of what describes a training, train.length alone is taken)."
        )


def _training_settings(raw: dict) -> dict:
    """Settings of a training, with the schema's defaults. Raises KeyError where a part lacks."""
    parts = {part: raw[part] for part in TRAINING_PARTS}
    train = typed_group("train", parts["train"])
    parts["model"] = asdict(typed_group("model", parts["model"]))
    parts["train"] = {**asdict(train), "length": train.lengths}
    return canonical(parts)


def _compared_value(settings: dict, key: str) -> object:
    """Value of a dotted key by which two trainings are compared; of a text all but its name, which
    changes nothing."""
    value = _dotted_value(settings, key)
    if key == "data" and isinstance(value, dict):
        return {name: item for name, item in value.items() if name != "name"}
    return value


def _dotted_value(settings: object, key: str, default: object = ABSENT_WORD) -> object:
    """Value of a dotted key, or the default.

    >>> _dotted_value({"train": {"steps": 5}}, "train.steps")
    5
    """
    for part in key.split("."):
        if not isinstance(settings, dict):
            return default
        settings = settings.get(part, default)
    return settings


def _typed_words(settings: dict, keys: list[str]) -> str:
    """Words that set these keys, such as "encoding=rope train.steps=500"."""
    words = []
    for key in keys:
        value = _dotted_value(settings, key, FIELDS_ADDED_LATER.get(key, ABSENT_WORD))
        if isinstance(value, dict) and key == "data":
            reads_local_files = (value.get("source") or {}).get("_target_") == USUAL_SOURCE
            value = OWN_FILES if reads_local_files else value.get("name")
        elif isinstance(value, dict) and "_target_" in value:
            value = method_name(value)
        words.append(f"{printable(key)}={printable(typed_text(value))}")
    return " ".join(words)
