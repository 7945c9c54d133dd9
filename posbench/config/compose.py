"""Composition: command-line words to plain configurations, one per cell of an experiment's grid. Imports nothing heavier than hydra."""

import itertools
import json
import re
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from posbench.common.errors import ConfigError, did_you_mean
from posbench.common.files import sha256_json
from posbench.config.composer import Composer
from posbench.config.names import CONFIGS
from posbench.config.nearest import of_words, suggestion
from posbench.config.schema import DATA, JOB

EXPERIMENT = ("name", "title", "base", "grid", "tolerance", "next", "first")
FILLED = ("model.checkpoint", "train.parent")  # no values of these are typed


@dataclass(frozen=True)
class Request:
    """Jobs of one command: their plain configurations, the yaml of their experiment, True for a sweep, the launcher's yaml, words typed."""

    cfgs: list[dict]
    experiment: dict
    sweep: bool
    launcher: dict = field(default_factory=dict)
    words: list[str] = field(default_factory=list)


def expand(cfg: dict, overrides: list[str], composer: Composer | None = None) -> list[dict]:
    """Resolved configurations of the jobs of `cfg`: itself, or the cells of its experiment's grid. The command line overrides the grid.

    `composer` composes the yaml of configs/ that `cfg` comes from. Raises ConfigError for a grid that does not compose.
    """
    experiment = experiment_of(cfg, overrides)
    if "grid" not in experiment:
        return [plain(cfg, experiment["name"])]
    name, base, grid = experiment["name"], experiment.get("base") or {}, experiment["grid"]
    if not name:
        raise ConfigError("The experiment has no name: add `name:` with the name of its file to the yaml.")
    if not isinstance(base, dict) or not isinstance(grid, list) or not grid or not all(isinstance(block, dict) for block in grid):
        raise ConfigError(f"experiment={name} needs a grid that is a list of blocks (key: value or list), and base a block.")
    typed = {item.split("=", 1)[0].lstrip("+~"): item for item in overrides}
    typed.pop("experiment", None)
    cfgs, composer = {}, composer or Composer()
    for block in grid:
        axes = [[(key, value) for value in _values(key, values)] for key, values in block.items()]
        for choice in itertools.product(*axes):
            chosen = {key: f"{key}={_text(value)}" for key, value in {**base, **dict(choice)}.items()}
            words = [f"experiment={name}", *map(long_name, {**chosen, **typed}.values())]
            try:
                job = plain(compose(words, composer), name)
            except ConfigError as error:
                raise ConfigError(f"{error}{_way_out(typed, block)}") from error
            cfgs[json.dumps(job, sort_keys=True)] = job
    return list(cfgs.values())


def _way_out(typed: dict[str, str], block: dict) -> str:
    """Advice on typing a part of a grid, for a cell that words typed for keys of its block do not fit; empty without such words."""
    cell = ", ".join(f"{key}: {word.partition('=')[2]}" for key, word in typed.items() if key in block and "[" not in word)
    return f" What is typed holds for every cell of the grid: for a part of it type 'experiment.grid=[{{{cell}}}]'." if cell else ""


def experiment_of(cfg: dict, overrides: list[str]) -> dict:
    """Content of the experiment's yaml, with its `name`. Raises ConfigError for an unknown key.

    A yaml with `# @package _global_` changes the configuration itself. It is one job, named by the word that chose it.
    """
    if "experiment" not in cfg:
        if unknown := sorted(set(map(str, cfg)) - set(JOB)):
            raise ConfigError(f"{unknown[0]} is not a key{did_you_mean(unknown[0], JOB)}: --cfg job prints all that there is.")
        chosen = [item.partition("=")[2] for item in overrides if item.startswith("experiment=")]
        return {"name": chosen[-1] if chosen else None}
    if not isinstance(cfg["experiment"], dict):
        raise ConfigError(f"experiment={cfg['experiment']} must be a mapping of keys to values.")
    experiment = {"name": None, **cfg["experiment"]}
    name = experiment["name"]
    if unknown := sorted(set(experiment) - set(EXPERIMENT), key=str):
        known = f"{', '.join(EXPERIMENT[:-1])} and {EXPERIMENT[-1]}"
        raise ConfigError(
            f"experiment={name}: {unknown[0]} has no meaning there{did_you_mean(unknown[0], EXPERIMENT)}; the yaml may hold {known}, "
            "or begin with the line '# @package _global_' and hold values as --cfg job prints them."
        )
    if experiment.get("base") and "grid" not in experiment:
        raise ConfigError(f"experiment={name} has base and no grid to apply it to: add grid, a list of blocks (key: value or list).")
    first = experiment.get("first")
    if first is not None and (isinstance(first, bool) or not isinstance(first, int) or first < 1):
        raise ConfigError(f"experiment={name}: first={first} must be a number of trainings, 1 or more, or left out.")
    return experiment


def check_words(values: dict, words: list[str]) -> None:
    """Raise ConfigError for a word that takes something out, and for one that adds a key that neither posbench nor a yaml reads."""
    for word in words:
        key = word.lstrip("+~").partition("=")[0].rpartition("@")[2]
        group, _, name = key.partition(".")
        if word.startswith("~"):
            raise ConfigError(f"{word} takes out what is needed: give it another value instead.")
        if key.startswith(FILLED):
            raise ConfigError(f"{word} sets what posbench fills in: give model=hf model.path=PATH, or finetune= beside run=DIR, instead.")
        read = (name in DATA or name.startswith("source.")) if group == "data" and name else group in JOB
        if word.startswith("+") and not read and not re.search(rf"\$\{{[^}}]*\b{re.escape(key.rpartition('.')[2])}\b", repr(values)):
            raise ConfigError(f"{word} adds a key that nothing reads{did_you_mean(key, JOB)}: --cfg job prints all that there are.")


def check_effect(words: Iterable[str], known: Collection[str], why: str) -> None:
    """Raise ConfigError for a word that sets none of the `known` keys, since it has no effect; `why` goes on from there."""
    for word in words:
        if word.lstrip("+~").partition("=")[0] not in known:
            raise ConfigError(f"{word} has no effect {why}.")


def _values(key: str, given: object) -> list:
    """Values of one axis of a grid: a list, a single value, or for "*" every choice of the group `key`."""
    if given == "*":
        return [name for name in GlobalHydra.instance().config_loader().get_group_options(key) if not name.startswith("_")]
    return given if isinstance(given, list) else [given]


def long_name(override: str) -> str:
    """Hydra's longer form of train.scale_attention=NAME, which chooses from the group scale_attention. Other words stay."""
    name = "train.scale_attention="
    return f"scale_attention@{override}" if override.startswith(name) else override


def name_group(cfgs: list[dict]) -> None:
    """Set log.group of an unnamed sweep for wandb. The name is a hash, so the same sweep gets the same name again."""
    parts = ("encoding", "extension", "scale_attention", "model", "data", "train", "evaluate", "seed")
    name = f"sweep-{sha256_json([[cfg.get(part) for part in parts] for cfg in cfgs])[:8]}"
    for cfg in cfgs:
        cfg["log"]["group"] = cfg["log"]["group"] or name


def compose(words: list[str], composer: Composer) -> dict:
    """Values of `words`, unresolved. Raises ConfigError if they do not compose."""
    try:
        return composer.values(words)
    except Exception as error:
        raise ConfigError(f"{words[0]} does not compose: {sentence(error)}") from error


def _text(value: object) -> str:
    return "null" if value is None else json.dumps(value).replace('"', "") if not isinstance(value, str) else value


def plain(values: dict, experiment: str | None = None) -> dict:
    """Composed values resolved, without the experiment's yaml. The name of its `experiment` becomes the wandb group, in a `log` of its own.

    Raises ConfigError for a required value that was not given.
    """
    if any(mark in repr(values) for mark in ("${", "???")):
        try:
            values = OmegaConf.to_container(OmegaConf.create(values), resolve=True, throw_on_missing=True)
        except OmegaConfBaseException as error:
            key = error.full_key or str(error).splitlines()[0]
            raise ConfigError(f"{key} has no value: give it on the command line, or choose another option of its group.") from error
    log = {**values["log"], "group": values["log"]["group"] or experiment}
    return {key: log if key == "log" else value for key, value in values.items() if key != "experiment"}


def _no_name(word: str) -> bool:
    value = word.partition("=")[2]
    return value in ("", "null", "true", "false") or value[0].isdigit() or value[0] in "[{"


def sentence(error: Exception) -> str:
    """One-sentence form of Hydra's error message, which takes several lines: what is refused and the legal choices."""
    if str(error).startswith("Config group override must be"):
        words = [
            word.rpartition("@")[2] for word in sys.argv[1:] if (CONFIGS / word.split("=")[0].split("@")[0]).is_dir() and _no_name(word)
        ]
        return f"{' '.join(words) or 'One word'} names none of its group's choices: --help lists them."
    if isinstance(error, AttributeError | TypeError | ValueError) and not isinstance(error, HydraException | OmegaConfBaseException):
        return f"What was typed does not compose ({error}): is every yaml that it names a mapping of keys to values?"
    said = str(error).split("\nConfig search path")[0].split("\nSee http")[0]
    if said.startswith("Could not override"):
        return f"{said.splitlines()[0].rstrip('.')}: there is no such key{suggestion(error)}; --cfg job prints all of them."
    if said.startswith("Error merging override"):
        return f"{said.splitlines()[0].removeprefix('Error merging override ').rstrip('.')} does not fit what --cfg job prints there."
    if isinstance(error, OverrideParseException) and error.override not in said:
        said = f"{error.override}: {said}"
    if way := of_words(said):
        return way
    head, _, options = said.partition("\t")
    return f"{'; '.join(filter(None, map(str.strip, head.splitlines())))} {', '.join(options.split())}".strip().rstrip(".") + "."
