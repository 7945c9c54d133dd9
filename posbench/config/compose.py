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
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

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
from posbench.config.hydra_errors import error_sentence
from posbench.config.names import shipped_yamls, with_choice_keys
from posbench.config.schema import DATA_TYPES, JOB_TYPES, SWEEP_NAME_CHECK, Size
from posbench.config.typed_args import convert

EXPERIMENT_KEYS = ("name", "title", "base", "grid", "tolerance", "next", "first")
PLAIN_VALUE = str | int | float | bool | list | None  # types of one word's value
# Keys that say where and how a command runs, and not what it makes.
PLACE_KEYS = ("device", "jobs", "name", "results_dir", "cache_dir", "report_dir", "log")
PARTS_OF_SWEEP = (  # hashed into the name of its group in wandb
    "encoding",
    "extension",
    "scale_attention",
    "model",
    "data",
    "train",
    "evaluate",
    "seed",
)
# argument of a method that makes its factor the same at all lengths
TARGET_LENGTH_KEY = "target_len"
# data.tokenizer whose vocabulary has data.vocab_size entries; all others have a size of their own
TOKENIZERS_WITH_SIZE = {"bpe", "task"}
KEYS_OF_MUON = ("train.muon_lr", "train.momentum", "finetune.muon_lr")
MOST_JOBS = 10_000  # of one sweep: composing them takes a second or two
# {key whose value is not typed: words that fill it in}
FILLED_IN_BY = {
    "model.checkpoint": "model=hf model.path=PATH",
    "model.engine": "model=server",
    "train.parent": "finetune= beside run=DIR",
    "evaluate.origin": "finetune= beside run=DIR",
    "train.step": "step=STEP",
}


@dataclass(frozen=True)
class Request:
    """Jobs of one command."""

    raw_configs: list[dict]  # their plain configurations
    experiment: dict  # its yaml
    sweep: bool
    launcher: dict = field(default_factory=dict)  # its yaml
    words: list[str] = field(default_factory=list)  # as they were typed

    @property
    def name(self) -> str:
        """Name of the sweep, as typed or of its experiment; "" without one."""
        return self.raw_configs[0].get("name") or self.experiment.get("name") or ""

    @property
    def title(self) -> str:
        """Title of the sweep's tables and figures; "" without a name.

        A typed name replaces the title of an experiment, since words beside it change the grid."""
        if self.name == self.experiment.get("name"):
            return self.experiment.get("title") or self.name
        return self.name


def hydra_loader(config_dir: str | None = None) -> ConfigLoaderImpl:
    """The loader of the initialized Hydra, which also searches `config_dir`.

    Raises ConfigError where that is not a folder."""
    hydras_loader = GlobalHydra.instance().config_loader()
    if config_dir is None:
        return hydras_loader
    if not os.path.isdir(config_dir):
        raise ConfigError(
            f"--config-dir {config_dir} is not a folder: name the one that holds your yamls."
        )
    path = hydras_loader.get_search_path()
    # As Hydra itself does: behind all yamls and before the schemas of classes, the last provider.
    anchor = SearchPathQuery(provider="schema")
    path.prepend("command-line", f"file://{os.path.abspath(config_dir)}", anchor)
    hydras_loader.repository.initialize_sources(path)  # which else keeps the former folders
    return hydras_loader


# {repository: {(its folders, group): yamls}}; a sweep asks for its tasks and texts cell by cell
_cached_yamls: WeakKeyDictionary = WeakKeyDictionary()


def all_yamls(group: str) -> dict[str, dict]:
    """{name: content} of a group's yamls, with those of --config-dir.

    Where no Hydra is initialized, they are those of posbench's own alone."""
    if not GlobalHydra.instance().is_initialized():
        return shipped_yamls(group)
    repository = hydra_loader().repository
    # hydra_loader may add a folder to the same repository later.
    folders = tuple(source.path for source in repository.get_sources())
    read_yamls = _cached_yamls.setdefault(repository, {})
    if (folders, group) not in read_yamls:
        read_yamls[folders, group] = {
            name: OmegaConf.to_container(repository.load_config(f"{group}/{name}").config)
            for name in repository.get_group_options(group)
            if not name.startswith("_")  # _base.yaml: what choices share, and no choice
        }
    return read_yamls[folders, group]


def words_of_jobs(words: list[str]) -> list[list[str]]:
    """The words of each job of a sweep: -m a=1,2 b=3,4. Raises ConfigError for more than
    MOST_JOBS.
    """
    overrides = OverridesParser.create(config_loader=hydra_loader()).parse_overrides(words)
    counts = {override.input_line: _number_of_values(override) for override in overrides}
    check_job_count(math.prod(counts.values()), max(counts, key=counts.get, default=""))
    (jobs,) = BasicSweeper.split_arguments(overrides, None)  # None: all in one batch
    return jobs


def _number_of_values(override: Override) -> int:
    """Number of jobs that a word makes: 3 of seed=0,1,2 and of seed=range(0,3), 1 of seed=0."""
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


def check_job_count(jobs: int, longest: str) -> None:
    """Raise ConfigError for a sweep of more than MOST_JOBS jobs; `longest` is the word, or key of a
    grid, with most values.
    """
    if jobs > MOST_JOBS:
        raise ConfigError(
            f"This sweep has {jobs:,} jobs, and one command takes {MOST_JOBS:,} at most: shorten"
            f" {longest}, or type several commands."
        )


def words_of_swept_groups(words: list[str]) -> list[str]:
    """Words that set a key of a swept group, which only some of its choices may have.

    Of -m extension=yarn,ntk extension.mode=fixed that is the second."""
    overrides = OverridesParser.create(config_loader=hydra_loader()).parse_overrides(words)
    swept = [override.input_line for override in overrides if override.is_sweep_override()]
    return [word for word in words if any(sets_below(word, choice) for choice in swept)]


def sets_below(word: str, choice: str) -> bool:
    """True if `word` sets a key of what the word `choice` chooses.

    >>> sets_below("extension.mode=fixed", "extension=yarn")
    True
    >>> sets_below("train.scale_attention.bias=true", "scale_attention@train.scale_attention=ssmax")
    True
    >>> sets_below("train.steps=9", "scale_attention@train.scale_attention=ssmax")
    False
    """
    return key_of(word).startswith(f"{key_of(choice)}.")


def unresolved_values(raw: DictConfig) -> dict:
    """A composed configuration as plain values, without Hydra's own part.

    Interpolations and ??? stay as they are written. Methods of the user's own hold the names of
    their yamls (`with_choice_keys`), which are known where Hydra's part is there."""
    keys = [key for key in raw if key != "hydra"]
    values = OmegaConf.to_container(OmegaConf.masked_copy(raw, keys))
    return with_choice_keys(values, raw.hydra.runtime.choices if "hydra" in raw else {})


class Composer:
    """Composes words over configs/CONFIG_NAME.yaml; `hydra` holds the words for Hydra itself, such
    as hydra.searchpath.

    The values that it returns share parts with each other: copy them before a change.
    """

    def __init__(self, config_name: str = "run", hydra: list[str] | None = None):
        self.config_name = config_name
        self.hydra = list(hydra or [])
        self.loader = hydra_loader()
        _, self.yamls = self.loader._parse_overrides_and_create_caching_repo(
            config_name, self.hydra
        )
        # The jobs of a sweep share most of their words.
        self._parse_word = functools.cache(self._parse_word)
        self._compose_choices = functools.cache(self._compose_choices)
        self._part_of_choice = functools.cache(self._part_of_choice)
        self._compose_by_hydra = functools.cache(self._compose_by_hydra)

    def values(self, words: list[str]) -> dict:
        """The configuration that --cfg job would print for these words, unresolved.

        Raises what Hydra raises."""
        choices = []
        overrides = []
        for word in words:
            override, is_choice = self._parse_word(word)
            if is_choice:
                choices.append(override.input_line)
            else:
                overrides.append(override)
        composed = self._compose_choices(tuple(choices))
        values = composed
        try:
            for override in overrides:
                values = _with_override(values, override)
        except (KeyError, TypeError):
            # not one plain value for another: left to Hydra, which also words the refusal
            raw = OmegaConf.create(composed)
            OmegaConf.set_struct(raw, True)
            ConfigLoaderImpl._apply_overrides_to_config(overrides, raw)
            return OmegaConf.to_container(raw)
        return values

    def _parse_word(self, word: str) -> tuple[Override, bool]:
        """The override of a word, and whether it chooses from a group, as encoding=rope does."""
        (override,) = OverridesParser.create(config_loader=self.loader).parse_overrides([word])
        return override, bool(self.yamls.get_group_options(override.key_or_group))

    def _compose_choices(self, words: tuple[str, ...]) -> dict:
        """Values of these choices together.

        Parts that one choice each changes are put side by side; Hydra merges all others."""
        parts = [self._part_of_choice(word) for word in words]
        if None in parts or len(dict(parts)) < len(parts):  # two choices change one part
            values, _ = self._compose_by_hydra(*words)
            return values
        defaults, _ = self._compose_by_hydra()
        return {**defaults, **dict(parts)}

    def _part_of_choice(self, word: str) -> tuple[str, object] | None:
        """(key, value) of the only part that a choice changes.

        None for a choice that changes others too, or does not compose."""
        override, _ = self._parse_word(word)
        defaults, default_choices = self._compose_by_hydra()
        group = override.key_or_group
        key = (override.package or group).split(".")[0]
        content = self._content_of_yaml(group, override.value())
        default = self._content_of_yaml(group, default_choices.get(group))
        # The part is the default's yaml and nothing else, so another yaml replaces all of it and
        # need not be composed.
        if content is not None and key == group and defaults.get(key) == default:
            return key, content
        # The cache of __init__ keeps the answer: composing a task's word for each cell that has it
        # would take seconds. A word that does not compose is left to Hydra, which words the error.
        with contextlib.suppress(HydraException, OmegaConfBaseException):
            values, _ = self._compose_by_hydra(word)
            # Compared as text, in which 1, 1.0 and True differ.
            if key in values and repr(values) == repr({**defaults, key: values[key]}):
                return key, values[key]
        return None

    def _content_of_yaml(self, group: str, name: object) -> dict | None:
        """Content of GROUP/NAME.yaml if Hydra puts it at the key GROUP as it is.

        None for a yaml with defaults, with a package of its own or without keys, and without a
        yaml."""
        yaml = self.yamls.load_config(f"{group}/{name}")
        if not yaml or yaml.defaults_list or yaml.header["package"] is not None:
            return None
        if not OmegaConf.is_dict(yaml.config):
            return None
        values = {group: OmegaConf.to_container(yaml.config)}
        # A class of the user's gets its yaml's name, as in values that Hydra composes.
        return with_choice_keys(values, {group: name})[group]

    def _compose_by_hydra(self, *words: str) -> tuple[dict, dict[str, str]]:
        """Values of these choices as Hydra composes them, and {group: choice}."""
        raw = self.loader.load_configuration(self.config_name, [*self.hydra, *words], RunMode.RUN)
        return unresolved_values(raw), dict(raw.hydra.runtime.choices)


def _with_override(values: dict, override: Override) -> dict:
    """A copy of `values` with one value replaced.

    Raises KeyError or TypeError where Hydra has to do it."""
    value = override.value()
    adds = override.is_add() or override.is_force_add()
    if adds or override.is_delete() or override.package or not isinstance(value, PLAIN_VALUE):
        raise TypeError  # left to Hydra

    def copy_with_value(part: dict, key: str, deeper: list[str]) -> dict:
        """A copy of `part` with the value below `key`, at the keys `deeper`."""
        if deeper:
            return {**part, key: copy_with_value(part[key], deeper[0], deeper[1:])}
        if isinstance(part[key], dict):
            raise TypeError  # a mapping in whose place a value stands would lose its keys
        return {**part, key: value}

    first, *deeper = override.key_or_group.split(".")
    return copy_with_value(values, first, deeper)


def raw_configs_of_jobs(
    raw: dict, overrides: list[str], composer: Composer | None = None
) -> list[dict]:
    """Resolved configurations of the jobs of `raw`: itself, or the cells of its experiment's grid.
    The command line overrides the grid.

    `composer` composes the yaml of configs/ that `raw` comes from. Raises ConfigError for a grid
    that does not compose."""
    experiment = experiment_of(raw, overrides)
    name = experiment["name"]
    if "grid" not in experiment:
        return [resolved_values(with_fixed_mode(raw, overrides), name)]
    _check_grid(experiment)
    composer = composer or Composer()
    typed = {word.split("=", 1)[0].lstrip("+~"): word for word in overrides}  # {key: word}
    typed.pop("experiment", None)  # put in front below
    cells = {}  # {content: values}, since blocks may overlap
    for block in experiment["grid"]:
        for choice in _cells_of_block(block):
            chosen = {**(experiment.get("base") or {}), **choice}
            words = {key: _grid_word(key, value) for key, value in chosen.items()} | typed
            words = [f"experiment={name}", *map(hydra_form, words.values())]
            values = with_fixed_mode(compose(words, composer), words)
            values = resolved_values(values, name)
            cells[json.dumps(values, sort_keys=True)] = values
    return list(cells.values())


def with_fixed_mode(values: dict, words: Iterable[str]) -> dict:
    """`values` with mode=fixed for each method whose target_len is set by `words` and whose mode is
    not, since a length to reach can mean nothing else.

    Of extension.target_len=512 that is extension.mode."""
    keys = [key_of(word) for word in words]
    for key in keys:
        method, _, argument = key.rpartition(".")
        if argument == TARGET_LENGTH_KEY and method and f"{method}.mode" not in keys:
            values = _with_fixed_mode_at(values, method.split("."))
    return values


def _with_fixed_mode_at(values: dict, place: list[str]) -> dict:
    """`values` whose method at the keys `place` has mode=fixed, if it has a mode and a target."""
    if not place:
        has_target = "mode" in values and values.get(TARGET_LENGTH_KEY) is not None
        # In place of the yaml's mode: with_fixed_mode calls this only where none was typed.
        return {**values, "mode": "fixed"} if has_target else values
    first, *deeper = place
    if not isinstance(values.get(first), dict):
        return values
    return {**values, first: _with_fixed_mode_at(values[first], deeper)}


def _check_grid(experiment: dict) -> None:
    """Raise ConfigError for an experiment without a name, or whose grid is no list of blocks."""
    name = experiment["name"]
    base = experiment.get("base") or {}
    grid = experiment["grid"]
    if not name:
        raise ConfigError(
            "The experiment has no name: add `name:` with the name of its file to the yaml."
        )
    has_blocks = isinstance(grid, list) and grid and all(isinstance(block, dict) for block in grid)
    if not has_blocks or not isinstance(base, dict):
        raise ConfigError(
            f"experiment={name} needs a grid that is a list of blocks (key: value or list), and"
            " base a block."
        )


def _cells_of_block(block: dict) -> Iterator[dict]:
    """All combinations of the values of a block's keys, one value a key."""
    axes = {key: _axis_values(key, values) for key, values in block.items()}
    counts = {key: len(values) for key, values in axes.items()}
    longest = max(counts, key=counts.get, default="")
    check_job_count(math.prod(counts.values()), f"experiment.grid's {longest}")
    for choice in itertools.product(*axes.values()):
        yield dict(zip(axes, choice, strict=True))


def _grid_word(key: str, value: object) -> str:
    """Word that sets a key as a grid does.

    >>> _grid_word("evaluate.lengths", [64, 128])
    'evaluate.lengths=[64, 128]'
    """
    text = value if isinstance(value, str) else json.dumps(value).replace('"', "")
    return f"{key}={text}"


def experiment_of(raw: dict, overrides: list[str]) -> dict:
    """Content of the experiment's yaml, with its `name`. Raises ConfigError for an unknown key.

    A yaml with `# @package _global_` changes the configuration itself. It is one job, named by the
    word that chose it."""
    if "experiment" not in raw:
        unknown = sorted(set(map(str, raw)) - set(JOB_TYPES))
        if unknown:
            raise ConfigError(
                f"{unknown[0]} is not a key{did_you_mean(unknown[0], JOB_TYPES)}: --cfg job prints"
                " all keys."
            )
        names = [word.partition("=")[2] for word in overrides if word.startswith("experiment=")]
        return {"name": names[-1] if names else None}
    if not isinstance(raw["experiment"], dict):
        raise ConfigError(f"experiment={raw['experiment']} must be a mapping of keys to values.")
    experiment = {"name": None, **raw["experiment"]}
    name = experiment["name"]
    unknown = sorted(set(experiment) - set(EXPERIMENT_KEYS), key=str)
    if unknown:
        raise ConfigError(
            f"experiment={name}: {unknown[0]} is not a key of"
            f" experiments{did_you_mean(unknown[0], EXPERIMENT_KEYS)}; the yaml holds"
            f" {', '.join(EXPERIMENT_KEYS)}, or begins with the line '# @package _global_' and"
            " holds values as --cfg job prints them."
        )
    if experiment.get("base") and "grid" not in experiment:
        raise ConfigError(
            f"experiment={name} has base and no grid to apply it to: add grid, a list of blocks"
            " (key: value or list)."
        )
    # raises for a value of another type
    convert(f"experiment={name}: first", experiment.get("first"), Size | None)
    return experiment


def check_typed_keys(values: dict, words: list[str]) -> None:
    """Raise ConfigError for a word that removes a key, or adds one that nothing reads."""
    for word in words:
        key = key_of(word)
        if word.startswith("~"):
            raise ConfigError(
                f"{word} removes a key that posbench needs: give it another value instead."
            )
        # A key that posbench fills in, or one below it.
        filled_in = next((name for name in FILLED_IN_BY if f"{key}.".startswith(f"{name}.")), None)
        if filled_in:
            raise ConfigError(
                f"{word} sets a value that posbench fills in: give {FILLED_IN_BY[filled_in]}"
                " instead."
            )
        if word.startswith("+") and not _is_key_read(key, values):
            raise ConfigError(
                f"{word} adds a key that nothing reads{did_you_mean(key, JOB_TYPES)}: --cfg job"
                " prints all keys."
            )


def check_vocabulary(raw_configs: Iterable[dict], words: Iterable[str]) -> None:
    """Raise ConfigError for a typed data.vocab_size that no tokenizer of the jobs reads."""
    tokenizers = {str(raw["data"].get("tokenizer")) for raw in raw_configs}
    for word in words:
        if key_of(word) == "data.vocab_size" and not tokenizers & TOKENIZERS_WITH_SIZE:
            raise ConfigError(
                f"{word} has no effect on data.tokenizer={min(tokenizers)}, whose vocabulary has a"
                " size of its own: leave it out, or choose data.tokenizer=bpe."
            )


def check_optimizer(raw_configs: Iterable[dict], words: Iterable[str]) -> None:
    """Raise ConfigError for a typed value of Muon's where AdamW updates everything in all jobs."""
    optimizers = {(raw.get("train") or {}).get("optimizer") for raw in raw_configs}
    for word in words:
        if key_of(word) in KEYS_OF_MUON and optimizers == {"adamw"}:
            raise ConfigError(
                f"{word} is Muon's and has no effect on train.optimizer=adamw: leave it out, or"
                " choose train.optimizer=muon."
            )


def key_of(word: str) -> str:
    """Key that a word sets, whatever group it chooses from.

    >>> key_of("+seed=1"), key_of("+data@evaluate.text=books")
    ('seed', 'evaluate.text')
    """
    key = word.lstrip("+~").partition("=")[0]
    return key.rpartition("@")[2]  # GROUP@KEY puts a yaml of a group at a key


def words_beside(words: Iterable[str], keys: Collection[str]) -> list[str]:
    """Those words that set none of `keys`, nor a part of one, such as log.mode of log.

    >>> words_beside(["log.mode=disabled", "extension=pi", "name=mine"], PLACE_KEYS)
    ['extension=pi']
    """
    return [word for word in words if key_of(word).partition(".")[0] not in keys]


def _is_key_read(key: str, values: dict) -> bool:
    """True if posbench reads a key, or a yaml's ${...} names it."""
    group, _, name = key.partition(".")
    # check_config refuses unknown keys of the other groups, but takes any of data.
    if group == "data" and name:
        is_known = name in DATA_TYPES or name.startswith("source.")
    else:  # also a bare `data`, a choice of its yaml
        is_known = group in JOB_TYPES
    name_in_group = re.escape(key.rpartition(".")[2])
    is_interpolated = re.search(rf"\$\{{[^}}]*\b{name_in_group}\b", repr(values))
    return is_known or bool(is_interpolated)


def check_words_have_effect(words: Iterable[str], keys: Collection[str], reason: str) -> None:
    """Raise ConfigError for a word that sets none of `keys`, since it has no effect."""
    for word in words:
        if word.lstrip("+~").partition("=")[0] not in keys:
            raise ConfigError(f"{word} has no effect {reason}.")


def _axis_values(key: str, values: object) -> list:
    """Values of one axis of a grid: a list, a single value, or for "*" every choice of `key`."""
    if values == "*":
        names = GlobalHydra.instance().config_loader().get_group_options(key)
        return [name for name in names if not name.startswith("_")]
    return values if isinstance(values, list) else [values]


def hydra_form(override: str) -> str:
    """Hydra's longer form of train.scale_attention=NAME, which chooses from the group
    scale_attention. Other words stay.
    """
    is_trained_scale = override.startswith("train.scale_attention=")
    return f"scale_attention@{override}" if is_trained_scale else override


def hash_name(raw_configs: list[dict]) -> str:
    """Name of unnamed jobs: a hash, so that the same jobs get it again."""
    settings = [[raw.get(part) for part in PARTS_OF_SWEEP] for raw in raw_configs]
    # With run=DIR the parts do not say which run it is.
    runs = [[raw["run"], raw["step"]] for raw in raw_configs if raw.get("run")]
    return f"sweep-{sha256_json([settings, runs] if runs else settings)[:8]}"


def set_wandb_group(raw_configs: list[dict]) -> None:
    """Set log.group of an unnamed sweep for wandb."""
    name = hash_name(raw_configs)
    for raw in raw_configs:
        raw["log"]["group"] = raw["log"]["group"] or name


def check_one_name(names: Iterable[object]) -> None:
    """Raise ConfigError for several names of one sweep."""
    distinct = list(dict.fromkeys(map(str, names)))
    if len(distinct) > 1:
        raise ConfigError(
            f"name={','.join(distinct)} gives {len(distinct)} names to one sweep: give one, or type"
            " a command for each."
        )


def compose(words: list[str], composer: Composer) -> dict:
    """Values of `words`, unresolved. Raises ConfigError if they do not compose."""
    try:
        return composer.values(words)
    except Exception as error:
        raise ConfigError(f"{words[0]} does not compose: {error_sentence(error)}") from error


def resolved_values(values: dict, experiment: str | None = None) -> dict:
    """Composed values resolved, without the experiment's yaml.

    Its name becomes that of the sweep, unless one was typed, and the group of wandb.
    Raises ConfigError for a required value that was not given.
    """
    # An interpolation, and a value that has to be given.
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
    values = _with_users_extensions(values)
    name = values.get("name")
    # An experiment in a folder of its own has a slash in its name, which no sweep may have.
    if name is None and experiment and SWEEP_NAME_CHECK.holds(experiment):
        name = experiment
    log = {**values["log"], "group": values["log"]["group"] or name or experiment}
    resolved = {**values, "name": name, "log": log}
    resolved.pop("experiment", None)
    return resolved


def _with_users_extensions(values: dict) -> dict:
    """Values in which train.validate_extensions holds the user's own extensions as their yamls."""
    chosen = (values.get("train") or {}).get("validate_extensions")
    names = chosen if isinstance(chosen, list) else [chosen]
    names_of_user = [
        name for name in names if isinstance(name, str) and name not in shipped_yamls("extension")
    ]
    if not names_of_user:
        return values
    nodes = {}
    yamls = all_yamls("extension")
    for name in names_of_user:
        if name in yamls:  # an unknown name is refused later
            node = with_choice_keys({"extension": yamls[name]}, {"extension": name})
            nodes[name] = node["extension"]
    extensions = [nodes.get(name, name) if isinstance(name, str) else name for name in names]
    return {**values, "train": {**values["train"], "validate_extensions": extensions}}
