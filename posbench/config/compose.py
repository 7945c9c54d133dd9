"""Composition: command-line words to plain configurations, one per cell of an experiment's grid.
Imports nothing heavier than hydra.
"""

import contextlib
import functools
import itertools
import json
import math
import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, RangeSweep
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from posbench.common.errors import ConfigError, did_you_mean
from posbench.common.files import sha256_json
from posbench.config.hydra_errors import sentence
from posbench.config.names import group_yamls, with_choices
from posbench.config.schema import DATA, JOB, Size
from posbench.config.typed_args import convert

EXPERIMENT = ("name", "title", "base", "grid", "tolerance", "next", "first")
VALUE = str | int | float | bool | list | None  # of a single word
MOST_JOBS = 10_000  # of one sweep: composing them takes a second or two
FILLED_IN = ("model.checkpoint", "model.engine", "train.parent")  # no values of these are typed


@dataclass(frozen=True)
class Request:
    """Jobs of one command: their plain configurations, the yaml of their experiment, True for a
    sweep, the launcher's yaml, words typed.
    """

    cfgs: list[dict]
    experiment: dict
    sweep: bool
    launcher: dict = field(default_factory=dict)
    words: list[str] = field(default_factory=list)


def loader(config_dir: str | None = None) -> ConfigLoaderImpl:
    """The loader of the initialized Hydra, which also searches `config_dir`. Raises ConfigError
    where that is not a folder.
    """
    found = GlobalHydra.instance().config_loader()
    if config_dir is not None:
        if not os.path.isdir(config_dir):
            raise ConfigError(
                f"--config-dir {config_dir} is not a folder: name the one that holds your yamls."
            )
        path = found.get_search_path()
        path.prepend(
            "command-line",
            f"file://{os.path.abspath(config_dir)}",
            SearchPathQuery(provider="schema"),
        )
        found.repository.initialize_sources(path)
    return found


def yamls(group: str) -> dict[str, dict]:
    """{name: content} of a group's yamls, with those of --config-dir; of posbench's own where no
    Hydra is initialized.
    """
    if not GlobalHydra.instance().is_initialized():
        return group_yamls(group)
    found = loader().repository
    names = [name for name in found.get_group_options(group) if not name.startswith("_")]
    return {
        name: OmegaConf.to_container(found.load_config(f"{group}/{name}").config) for name in names
    }


def swept(words: list[str]) -> list[list[str]]:
    """The words of each job of a sweep: -m a=1,2 b=3,4. Raises ConfigError for more than
    MOST_JOBS.
    """
    overrides = OverridesParser.create(config_loader=loader()).parse_overrides(words)
    counts = {override.input_line: _count(override) for override in overrides}
    check_number(math.prod(counts.values()), max(counts, key=counts.get, default=""))
    (jobs,) = BasicSweeper.split_arguments(overrides, None)
    return jobs


def _count(override: Override) -> int:
    """Number of values of a word: 3 of seed=0,1,2 and of seed=range(0,3), 1 of seed=0."""
    if not override.is_sweep_override():
        return 1
    value = override.value()
    if isinstance(value, RangeSweep):
        if not value.step or value.start is None or value.stop is None:
            return 1  # left to Hydra, which refuses it
        if not all(map(math.isfinite, (value.start, value.stop, value.step))):
            raise ConfigError(
                f"{override.input_line} has no end: type numbers, as in seed=range(0,3)."
            )
        return max(0, math.ceil((value.stop - value.start) / value.step))
    return len(list(override.sweep_string_iterator()))


def check_number(jobs: int, longest: str) -> None:
    """Raise ConfigError for a sweep of more than MOST_JOBS jobs; `longest` is the word, or key of a
    grid, with most values.
    """
    if jobs > MOST_JOBS:
        raise ConfigError(
            f"This sweep has {jobs:,} jobs, and one command takes {MOST_JOBS:,} at most: shorten"
            f" {longest}, or type several commands."
        )


def of_swept(words: list[str]) -> list[str]:
    """Words that set a key of a swept group, as in -m extension=yarn,ntk extension.mode=fixed: its
    choices alone may have the key.
    """
    parsed = OverridesParser.create(config_loader=loader()).parse_overrides(words)
    groups = {one.key_or_group for one in parsed if one.is_sweep_override()}
    heads = [one.key_or_group.partition(".") for one in parsed]
    return [
        word for word, (head, dot, _) in zip(words, heads, strict=True) if dot and head in groups
    ]


def unresolved(cfg: DictConfig) -> dict:
    """A composed configuration as plain values, without Hydra's own part; interpolations and ???
    stay as they are written.

    Methods of the user's own hold the names of their yamls (`with_choices`), which are known where
    Hydra's part is there."""
    values = OmegaConf.to_container(
        OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"])
    )
    return with_choices(values, cfg.hydra.runtime.choices if "hydra" in cfg else {})


class Composer:
    """Composes words over configs/CONFIG_NAME.yaml; `hydra` holds the words for Hydra itself, such
    as hydra.searchpath.

    The values that it returns share parts with each other: copy them before a change.
    """

    def __init__(self, config_name: str = "run", hydra: list[str] | None = None):
        self.config_name, self.hydra = config_name, list(hydra or [])
        self.loader = loader()
        self.yamls = self.loader._parse_overrides_and_create_caching_repo(config_name, self.hydra)[
            1
        ]
        kept = (self._parse, self._choose, self._part, self._load)
        self._parse, self._choose, self._part, self._load = map(functools.cache, kept)

    def values(self, words: list[str]) -> dict:
        """The configuration that --cfg job would print for these words, unresolved. Raises what
        Hydra raises.
        """
        parsed = [self._parse(word) for word in words]
        composed = values = self._choose(
            tuple(override.input_line for override, chooses in parsed if chooses)
        )
        given = [override for override, chooses in parsed if not chooses]
        try:
            for override in given:
                values = _replaced(values, override)
            return values
        except (
            KeyError,
            TypeError,
            # no plain value in place of another: left to Hydra, which also knows the words of a refusal
        ):
            cfg = OmegaConf.create(composed)
            OmegaConf.set_struct(cfg, True)
            ConfigLoaderImpl._apply_overrides_to_config(given, cfg)
            return OmegaConf.to_container(cfg)

    def _parse(self, word: str) -> tuple[Override, bool]:
        """The override of a word, and whether it chooses from a group."""
        (override,) = OverridesParser.create(config_loader=self.loader).parse_overrides([word])
        return override, bool(self.yamls.get_group_options(override.key_or_group))

    def _choose(self, words: tuple[str, ...]) -> dict:
        """Values of these choices together: the parts that each changes alone, side by side, or
        else as Hydra merges them.
        """
        parts = [self._part(word) for word in words]
        apart = None not in parts and len(dict(parts)) == len(parts)
        return {**self._load()[0], **dict(parts)} if apart else self._load(*words)[0]

    def _part(self, word: str) -> tuple[str, object] | None:
        """(key, value) of the only part that a choice changes; None for a choice that changes
        others too, or does not compose.
        """
        override, (bare, usual) = self._parse(word)[0], self._load()
        group = override.key_or_group
        key, whole = (override.package or group).split(".")[0], self._yaml(group, override.value())
        if (
            whole is not None
            and key == group
            and bare.get(key) == self._yaml(group, usual.get(group))
        ):
            return key, whole
        with contextlib.suppress(
            HydraException, OmegaConfBaseException
        ):  # once for a word, not for each cell that has it: 2 s of tasks
            one, _ = self._load(word)
            if key in one and repr(one) == repr({**bare, key: one[key]}):
                return key, one[key]
        return None

    def _yaml(self, group: str, name: object) -> dict | None:
        """Content of a yaml that is the whole part of its group; None for one with defaults or a
        package of its own, or for none.
        """
        found = self.yamls.load_config(f"{group}/{name}")
        whole = (
            found
            and not found.defaults_list
            and found.header["package"] is None
            and OmegaConf.is_dict(found.config)
        )
        if not whole:
            return None
        return with_choices({group: OmegaConf.to_container(found.config)}, {group: name})[group]

    def _load(self, *words: str) -> tuple[dict, dict[str, str]]:
        """Values of these choices as Hydra composes them, and {group: choice}."""
        cfg = self.loader.load_configuration(self.config_name, [*self.hydra, *words], RunMode.RUN)
        return unresolved(cfg), dict(cfg.hydra.runtime.choices)


def _replaced(values: dict, override: Override) -> dict:
    """`values` with one value replaced; they themselves stay. Raises KeyError or TypeError where
    Hydra has to do it.
    """
    value = override.value()
    if (
        override.is_add()
        or override.is_force_add()
        or override.is_delete()
        or override.package
        or not isinstance(value, VALUE)
    ):
        raise TypeError

    def within(part: dict, key: str, rest: list[str]) -> dict:
        if not rest and isinstance(part[key], dict):
            raise TypeError
        return {**part, key: within(part[key], rest[0], rest[1:]) if rest else value}

    first, *rest = override.key_or_group.split(".")
    return within(values, first, rest)


def expand(cfg: dict, overrides: list[str], composer: Composer | None = None) -> list[dict]:
    """Resolved configurations of the jobs of `cfg`: itself, or the cells of its experiment's grid.
    The command line overrides the grid.

    `composer` composes the yaml of configs/ that `cfg` comes from. Raises ConfigError for a grid
    that does not compose."""
    experiment = experiment_of(cfg, overrides)
    if "grid" not in experiment:
        return [resolved_values(cfg, experiment["name"])]
    name, base, grid = experiment["name"], experiment.get("base") or {}, experiment["grid"]
    if not name:
        raise ConfigError(
            "The experiment has no name: add `name:` with the name of its file to the yaml."
        )
    if (
        not isinstance(base, dict)
        or not isinstance(grid, list)
        or not grid
        or not all(isinstance(block, dict) for block in grid)
    ):
        raise ConfigError(
            f"experiment={name} needs a grid that is a list of blocks (key: value or list), and"
            " base a block."
        )
    typed = {item.split("=", 1)[0].lstrip("+~"): item for item in overrides}
    typed.pop("experiment", None)
    cfgs, composer = {}, composer or Composer()
    for block in grid:
        axes = [
            [(key, value) for value in _axis_values(key, values)] for key, values in block.items()
        ]
        counts = dict(zip(block, map(len, axes), strict=True))
        check_number(
            math.prod(counts.values()),
            f"experiment.grid's {max(counts, key=counts.get, default='')}",
        )
        for choice in itertools.product(*axes):
            values = {**base, **dict(choice)}
            texts = {
                key: value if isinstance(value, str) else json.dumps(value).replace('"', "")
                for key, value in values.items()
            }
            chosen = {key: f"{key}={text}" for key, text in texts.items()}
            words = [f"experiment={name}", *map(long_name, {**chosen, **typed}.values())]
            job = resolved_values(compose(words, composer), name)
            cfgs[json.dumps(job, sort_keys=True)] = job
    return list(cfgs.values())


def experiment_of(cfg: dict, overrides: list[str]) -> dict:
    """Content of the experiment's yaml, with its `name`. Raises ConfigError for an unknown key.

    A yaml with `# @package _global_` changes the configuration itself. It is one job, named by the
    word that chose it."""
    if "experiment" not in cfg:
        if unknown := sorted(set(map(str, cfg)) - set(JOB)):
            raise ConfigError(
                f"{unknown[0]} is not a key{did_you_mean(unknown[0], JOB)}: --cfg job prints all"
                " keys."
            )
        chosen = [item.partition("=")[2] for item in overrides if item.startswith("experiment=")]
        return {"name": chosen[-1] if chosen else None}
    if not isinstance(cfg["experiment"], dict):
        raise ConfigError(f"experiment={cfg['experiment']} must be a mapping of keys to values.")
    experiment = {"name": None, **cfg["experiment"]}
    name = experiment["name"]
    if unknown := sorted(set(experiment) - set(EXPERIMENT), key=str):
        raise ConfigError(
            f"experiment={name}: {unknown[0]} is not a key of"
            f" experiments{did_you_mean(unknown[0], EXPERIMENT)}; the yaml holds"
            f" {', '.join(EXPERIMENT)}, or begins with the line '# @package _global_' and holds"
            " values as --cfg job prints them."
        )
    if experiment.get("base") and "grid" not in experiment:
        raise ConfigError(
            f"experiment={name} has base and no grid to apply it to: add grid, a list of blocks"
            " (key: value or list)."
        )
    convert(f"experiment={name}: first", experiment.get("first"), Size | None)
    return experiment


def check_words(values: dict, words: list[str]) -> None:
    """Raise ConfigError for a word that removes a key, and for one that adds a key that neither
    posbench nor a yaml reads.
    """
    for word in words:
        key = word.lstrip("+~").partition("=")[0].rpartition("@")[2]
        group, _, name = key.partition(".")
        if word.startswith("~"):
            raise ConfigError(
                f"{word} removes a key that posbench needs: give it another value instead."
            )
        if key.startswith(FILLED_IN):
            raise ConfigError(
                f"{word} sets a value that posbench fills in: give model=hf model.path=PATH, or"
                " finetune= beside run=DIR, instead."
            )
        read = (
            (name in DATA or name.startswith("source."))
            if group == "data" and name
            else group in JOB
        )
        if (
            word.startswith("+")
            and not read
            and not re.search(rf"\$\{{[^}}]*\b{re.escape(key.rpartition('.')[2])}\b", repr(values))
        ):
            raise ConfigError(
                f"{word} adds a key that nothing reads{did_you_mean(key, JOB)}: --cfg job prints"
                " all keys."
            )


def check_effect(words: Iterable[str], known: Collection[str], why: str) -> None:
    """Raise ConfigError for a word that sets none of the `known` keys, since it has no effect;
    `why` goes on from there.
    """
    for word in words:
        if word.lstrip("+~").partition("=")[0] not in known:
            raise ConfigError(f"{word} has no effect {why}.")


def _axis_values(key: str, given: object) -> list:
    """Values of one axis of a grid: a list, a single value, or for "*" every choice of the group
    `key`.
    """
    if given == "*":
        return [
            name
            for name in GlobalHydra.instance().config_loader().get_group_options(key)
            if not name.startswith("_")
        ]
    return given if isinstance(given, list) else [given]


def long_name(override: str) -> str:
    """Hydra's longer form of train.scale_attention=NAME, which chooses from the group
    scale_attention. Other words stay.
    """
    name = "train.scale_attention="
    return f"scale_attention@{override}" if override.startswith(name) else override


def name_group(cfgs: list[dict]) -> None:
    """Set log.group of an unnamed sweep for wandb. The name is a hash, so the same sweep gets the
    same name again.
    """
    parts = (
        "encoding",
        "extension",
        "scale_attention",
        "model",
        "data",
        "train",
        "evaluate",
        "seed",
    )
    name = f"sweep-{sha256_json([[cfg.get(part) for part in parts] for cfg in cfgs])[:8]}"
    for cfg in cfgs:
        cfg["log"]["group"] = cfg["log"]["group"] or name


def compose(words: list[str], composer: Composer) -> dict:
    """Values of `words`, unresolved. Raises ConfigError if they do not compose."""
    try:
        return composer.values(words)
    except Exception as error:
        raise ConfigError(f"{words[0]} does not compose: {sentence(error)}") from error


def resolved_values(values: dict, experiment: str | None = None) -> dict:
    """Composed values resolved, without the experiment's yaml. The name of its `experiment` becomes
    the wandb group, in a `log` of its own.

    Raises ConfigError for a required value that was not given.
    """
    if any(mark in repr(values) for mark in ("${", "???")):
        try:
            values = OmegaConf.to_container(
                OmegaConf.create(values), resolve=True, throw_on_missing=True
            )
        except OmegaConfBaseException as error:
            key = error.full_key or str(error).splitlines()[0]
            raise ConfigError(
                f"{key} has no value: give it on the command line, or choose another option of its"
                " group."
            ) from error
    log = {**values["log"], "group": values["log"]["group"] or experiment}
    return {
        key: log if key == "log" else value for key, value in values.items() if key != "experiment"
    }
