"""Composition of many cells: Hydra composes each choice of a group once, and values are set on copies."""

import contextlib
import functools
import os

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from posbench.common.errors import ConfigError
from posbench.config.names import nodes

PLAIN = str | int | float | bool | list | None


def loader(config_dir: str | None = None) -> ConfigLoaderImpl:
    """The loader of the initialized Hydra, which also searches `config_dir`. Raises ConfigError where that is not a folder."""
    found = GlobalHydra.instance().config_loader()
    if config_dir is not None:
        if not os.path.isdir(config_dir):
            raise ConfigError(f"--config-dir {config_dir} is not a folder: name the one that holds your yamls.")
        path = found.get_search_path()
        path.prepend("command-line", f"file://{os.path.abspath(config_dir)}", SearchPathQuery(provider="schema"))
        found.repository.initialize_sources(path)
    return found


def yamls(group: str) -> dict[str, dict]:
    """{name: content} of a group's yamls, with those of --config-dir; of posbench's own where no Hydra is initialized."""
    if not GlobalHydra.instance().is_initialized():
        return nodes(group)
    found = loader().repository
    names = [name for name in found.get_group_options(group) if not name.startswith("_")]
    return {name: OmegaConf.to_container(found.load_config(f"{group}/{name}").config) for name in names}


def swept(words: list[str]) -> list[list[str]]:
    """The words of each job of a sweep: -m a=1,2 b=3,4."""
    (jobs,) = BasicSweeper.split_arguments(OverridesParser.create(config_loader=loader()).parse_overrides(words), None)
    return jobs


def of_swept(words: list[str]) -> list[str]:
    """Words that set a key of a swept group, as in -m extension=yarn,ntk extension.mode=fixed: its choices alone may have the key."""
    parsed = OverridesParser.create(config_loader=loader()).parse_overrides(words)
    groups = {one.key_or_group for one in parsed if one.is_sweep_override()}
    heads = [one.key_or_group.partition(".") for one in parsed]
    return [word for word, (head, dot, _) in zip(words, heads, strict=True) if dot and head in groups]


def unresolved(cfg: DictConfig) -> dict:
    """A composed configuration as plain values, without Hydra's own part; interpolations and ??? stay as they are written."""
    return OmegaConf.to_container(OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"]))


class Composer:
    """Composes words over configs/CONFIG_NAME.yaml; `hydra` holds the words for Hydra itself, such as hydra.searchpath.

    The values that it returns share parts with each other: copy them before a change.
    """

    def __init__(self, config_name: str = "run", hydra: list[str] | None = None):
        self.config_name, self.hydra = config_name, list(hydra or [])
        self.loader = loader()
        self.yamls = self.loader._parse_overrides_and_create_caching_repo(config_name, self.hydra)[1]
        kept = (self._parse, self._choose, self._part, self._load)
        self._parse, self._choose, self._part, self._load = map(functools.cache, kept)

    def values(self, words: list[str]) -> dict:
        """The configuration that --cfg job would print for these words, unresolved. Raises what Hydra raises."""
        parsed = [self._parse(word) for word in words]
        composed = values = self._choose(tuple(override.input_line for override, chooses in parsed if chooses))
        given = [override for override, chooses in parsed if not chooses]
        try:
            for override in given:
                values = _replaced(values, override)
            return values
        except (KeyError, TypeError):  # no plain value in place of another: left to Hydra, which also knows the words of a refusal
            cfg = OmegaConf.create(composed)
            OmegaConf.set_struct(cfg, True)
            ConfigLoaderImpl._apply_overrides_to_config(given, cfg)
            return OmegaConf.to_container(cfg)

    def _parse(self, word: str) -> tuple[Override, bool]:
        """The override of a word, and whether it chooses from a group."""
        (override,) = OverridesParser.create(config_loader=self.loader).parse_overrides([word])
        return override, bool(self.yamls.get_group_options(override.key_or_group))

    def _choose(self, words: tuple[str, ...]) -> dict:
        """Values of these choices together: the parts that each changes alone, side by side, or else as Hydra merges them."""
        parts = [self._part(word) for word in words]
        apart = None not in parts and len(dict(parts)) == len(parts)
        return {**self._load()[0], **dict(parts)} if apart else self._load(*words)[0]

    def _part(self, word: str) -> tuple[str, object] | None:
        """(key, value) of the only part that a choice changes; None for a choice that changes others too, or does not compose."""
        override, (bare, usual) = self._parse(word)[0], self._load()
        group = override.key_or_group
        key, whole = (override.package or group).split(".")[0], self._yaml(group, override.value())
        if whole is not None and key == group and bare.get(key) == self._yaml(group, usual.get(group)):
            return key, whole
        with contextlib.suppress(HydraException, OmegaConfBaseException):
            one, _ = self._load(word)
            if key in one and repr(one) == repr({**bare, key: one[key]}):
                return key, one[key]
        return None

    def _yaml(self, group: str, name: object) -> dict | None:
        """Content of a yaml that is the whole part of its group; None for one with defaults or a package of its own, or for none."""
        found = self.yamls.load_config(f"{group}/{name}")
        whole = found and not found.defaults_list and found.header["package"] is None and OmegaConf.is_dict(found.config)
        return OmegaConf.to_container(found.config) if whole else None

    def _load(self, *words: str) -> tuple[dict, dict[str, str]]:
        """Values of these choices as Hydra composes them, and {group: choice}."""
        cfg = self.loader.load_configuration(self.config_name, [*self.hydra, *words], RunMode.RUN)
        return unresolved(cfg), dict(cfg.hydra.runtime.choices)


def _replaced(values: dict, override: Override) -> dict:
    """`values` with one value replaced; they themselves stay. Raises KeyError or TypeError where Hydra has to do it."""
    value = override.value()
    if override.is_add() or override.is_force_add() or override.is_delete() or override.package or not isinstance(value, PLAIN):
        raise TypeError

    def within(part: dict, key: str, rest: list[str]) -> dict:
        if not rest and isinstance(part[key], dict):
            raise TypeError
        return {**part, key: within(part[key], rest[0], rest[1:]) if rest else value}

    first, *rest = override.key_or_group.split(".")
    return within(values, first, rest)
