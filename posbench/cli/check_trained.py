"""Refusal of training options beside run=DIR, model.path=DIR or an engine, whose weights they
cannot change.
"""

from dataclasses import asdict
from pathlib import Path

from posbench.common.defuse import printable
from posbench.common.errors import ConfigError, RunError
from posbench.config.identity import LATER, method_name, stable
from posbench.config.schema import TRAINING, typed
from posbench.results.run_metadata import ABSENT, text
from posbench.runs.directory import Run

OF_CHECKPOINT = {
    "model",
    "model.path",
    "model.own_scaling",
    "train.length",
    "train.scale_attention",
}  # the last has its own sentence


def check_given(expanded: list[tuple[list[dict], list[str]]], experiment: dict) -> None:
    """Raise ConfigError if a given key differs from the training in run=DIR, or would retrain the
    checkpoint of model.path.

    A training length that is given beside a checkpoint becomes a list of one, so that it counts
    also where it equals the default.

    A key is given on the command line or by the experiment. `expanded` holds (configurations,
    overrides typed) per job. A directory whose configuration cannot be read is skipped here: the
    command reports it when it needs it."""
    chosen = {
        str(key)
        for block in (experiment.get("base") or {}, *experiment.get("grid", []))
        for key in block
    }
    for cfgs, overrides in expanded:
        words = {
            override.partition("=")[0].lstrip("+~").rpartition("@")[2] for override in overrides
        }
        given = words | chosen
        for cfg in cfgs:
            if cfg["run"]:
                _check_run(cfg, given)
            elif cfg["model"].get("path") or cfg["model"].get("engine"):
                _check_checkpoint(cfg, given, words)
                if "train.length" in given and not isinstance(cfg["train"]["length"], list):
                    cfg["train"]["length"] = [
                        cfg["train"]["length"]
                    ]  # the same, and not to be taken for the default


def _check_run(cfg: dict, given: set[str]) -> None:
    try:
        own, asked = _training_settings(Run(cfg["run"]).read_config()), _training_settings(cfg)
    except (RunError, ConfigError, KeyError):  # KeyError: cut short
        return
    differing = [
        key
        for key in sorted(given)
        if key.split(".")[0] in TRAINING and _at(own, key) != _at(asked, key)
    ]
    if differing:
        there, words = (
            " ".join(_typed_word(key, _at(node, key, LATER.get(key, ABSENT))) for key in differing)
            for node in (own, asked)
        )
        raise ConfigError(
            f"run={Path(cfg['run'])} was trained with {there}, which {words} cannot change: "
            "leave out what describes a training, or leave out run= to make that training."
        )


def _check_checkpoint(cfg: dict, given: set[str], words: set[str]) -> None:
    engine, path, dtype = (
        cfg["model"].get("engine"),
        printable(str(cfg["model"].get("path"))),
        cfg["evaluate"].get("dtype"),
    )
    which = f"model={method_name(engine)}" if engine else f"model.path={path}"
    groups = ("train",) if engine else ("model", "train")
    # Another block of an experiment's grid may choose a model with other keys.
    without_effect = {
        key
        for key in given - OF_CHECKPOINT
        if key.split(".")[0] in groups and _at(cfg, key) != ABSENT
    }
    without_effect |= {"seed"} & given if cfg["seed"] else set()
    if without_effect:
        listed = " ".join(_typed_word(key, _at(cfg, key)) for key in sorted(without_effect))
        raise ConfigError(
            f"{which} is trained already, so {listed} would have no effect: leave it out "
            "(of what describes a training, train.length alone is taken)."
        )
    if engine and dtype and "evaluate.dtype" in words:
        raise ConfigError(
            f"{which} computes in a number format of its own, so evaluate.dtype={dtype} has no"
            " effect: leave it out."
        )
    if "data.tokenizer" in given and not engine and cfg["data"]["tokenizer"] in ("bytes", "bpe"):
        from posbench.pretrained.checkpoint import find_checkpoint

        if find_checkpoint(cfg["model"]["path"]).tokenizer():
            raise ConfigError(
                f"{which} has its own tokenizer, so data.tokenizer={cfg['data']['tokenizer']} has"
                " no effect: leave it out."
            )


def _training_settings(cfg: dict) -> dict:
    """Settings of a training, with the schema's defaults filled in. Raises KeyError where a part is
    missing.
    """
    parts = {part: cfg[part] for part in TRAINING}
    train = typed("train", parts["train"])
    return stable(
        {
            **parts,
            "model": asdict(typed("model", parts["model"])),
            "train": {**asdict(train), "length": train.lengths},
        }
    )


def _at(settings: object, key: str, usual: object = ABSENT) -> object:
    """Value of a dotted key, or `usual`."""
    for part in key.split("."):
        settings = settings.get(part, usual) if isinstance(settings, dict) else usual
    return settings


def _typed_word(key: str, value: object) -> str:
    if isinstance(value, dict) and (key == "data" or "_target_" in value):
        value = value.get("name") if key == "data" else method_name(value)
    return f"{printable(key)}={printable(text(value))}"
