"""Refusal of training options beside run=DIR, model.path=DIR or an engine, whose weights they cannot change."""

from dataclasses import asdict
from pathlib import Path

from posbench.common.defuse import printable
from posbench.common.errors import ConfigError, RunError
from posbench.config.identity import LATER, method_name
from posbench.config.schema import TRAINING, typed
from posbench.runs.directory import Run
from posbench.runs.run_metadata import ABSENT, flatten, text, under

OF_CHECKPOINT = {
    "model",
    "model.path",
    "model.own_scaling",
    "train.length",
    "train.scale_attention",
}  # the last is refused with its own sentence
IDENTIFYING = {"encoding": "_target_", "data": "name"}  # {group: key that identifies its choice}


def check_given(expanded: list[tuple[list[dict], list[str]]], experiment: dict) -> None:
    """Raise ConfigError if a given key differs from the training in run=DIR, or would retrain the checkpoint of model.path.

    A training length that is given beside a checkpoint becomes a list of one, so that it counts also where it equals the default.

    A key is given on the command line or by the experiment. `expanded` holds (configurations, overrides typed) per job.
    A directory whose configuration cannot be read is skipped here: the command reports it when it needs it.
    """
    chosen = [str(key) for block in (experiment.get("base") or {}, *experiment.get("grid", [])) for key in block]
    for cfgs, overrides in expanded:
        words = [override.partition("=")[0].lstrip("+~") for override in overrides]
        given = {word.rpartition("@")[2] for word in [*words, *chosen]}
        for cfg in cfgs:
            if cfg["run"]:
                _check_run(cfg, given)
            elif cfg["model"].get("path") or cfg["model"].get("engine"):
                _check_checkpoint(cfg, given)
                if "data.tokenizer" in given and cfg["model"].get("path"):
                    _check_tokenizer(cfg["data"]["tokenizer"], cfg["model"]["path"])
                if "train.length" in given and not isinstance(cfg["train"]["length"], list):
                    cfg["train"]["length"] = [cfg["train"]["length"]]  # the same, and not to be taken for the default


def _check_run(cfg: dict, given: set[str]) -> None:
    try:
        trained = Run(cfg["run"]).read_config()
        if any(part not in trained for part in TRAINING):
            return  # empty, or cut short
        own = {**LATER, **_training_values(trained)}
    except (RunError, ConfigError):
        return
    asked = {key: value for key, value in _training_values(cfg).items() if under(key, given)}
    differing = [key for key, value in asked.items() if value != own.get(key, ABSENT)]
    kinds = {part: f"{part}.{kind}" for part, kind in IDENTIFYING.items()}
    named = [key for key in differing if kinds.get(part := key.split(".")[0]) not in differing or key == kinds[part]]
    if named:
        there = " ".join(_typed_word(key, own.get(key, ABSENT)) for key in named)
        words = " ".join(_typed_word(key, asked[key]) for key in named)
        raise ConfigError(
            f"run={Path(cfg['run'])} was trained with {there}, which {words} cannot change: "
            "leave out what describes a training, or leave out run= to make that training."
        )


def _check_checkpoint(cfg: dict, given: set[str]) -> None:
    engine, values = cfg["model"].get("engine"), flatten({part: cfg[part] for part in ("model", "train", "seed")})
    groups = ("train",) if engine else ("model", "train")
    # Another block of an experiment's grid may choose a model with other keys.
    without_effect = {key for key in given - OF_CHECKPOINT if key.split(".")[0] in groups and key in {*values, *groups}}
    without_effect |= {"seed"} & given if cfg["seed"] else set()
    if without_effect:
        words = " ".join(_typed_word(key, values[key]) if key in values else printable(key) for key in sorted(without_effect))
        which = f"model={method_name(engine)}" if engine else f"model.path={printable(cfg['model']['path'])}"
        raise ConfigError(
            f"{which} is trained already, so {words} would have no effect: leave it out "
            "(of what describes a training, train.length alone is taken)."
        )


def _check_tokenizer(choice: str, path: str) -> None:
    """Raise ConfigError for a tokenizer of ours beside a checkpoint that has its own."""
    from posbench.pretrained.checkpoint import find_checkpoint

    if choice in ("bytes", "bpe") and find_checkpoint(path).tokenizer():
        raise ConfigError(f"model.path={printable(path)} has its own tokenizer, so data.tokenizer={choice} has no effect: leave it out.")


def _training_values(cfg: dict) -> dict[str, object]:
    """{dotted key: value} of the parts that describe a training, with the schema's defaults filled in."""
    parts = {part: cfg[part] for part in TRAINING if part in cfg}
    if "model" in parts:
        parts["model"] = asdict(typed("model", parts["model"]))
    if "train" in parts:
        train = typed("train", parts["train"])
        parts["train"] = {**asdict(train), "length": train.lengths}
    return flatten(parts)


def _typed_word(key: str, value: object) -> str:
    part = key.split(".")[0]
    if key == f"{part}.{IDENTIFYING.get(part)}":
        return f"{part}={printable(method_name({'_target_': str(value)}) if part == 'encoding' else text(value))}"
    return f"{printable(key)}={printable(text(value))}"
