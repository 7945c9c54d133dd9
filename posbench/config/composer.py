"""Composition of many cells: Hydra composes each choice of a group once, and values are set on copies."""

from __future__ import annotations

import contextlib

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

PLAIN = str | int | float | bool | list | None


def unresolved(cfg: DictConfig) -> dict:
    """A composed configuration as plain values, without Hydra's own part; interpolations and ??? stay as they are written."""
    return OmegaConf.to_container(OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"]))


class Composer:
    """Composes words over configs/CONFIG_NAME.yaml; `hydra` holds the words for Hydra itself, such as hydra.searchpath.

    The values that it returns share parts with each other: copy them before a change.
    """

    def __init__(self, config_name: str = "run", hydra: list[str] | None = None):
        self.config_name, self.hydra = config_name, list(hydra or [])
        self.loader = GlobalHydra.instance().config_loader()
        self.parsed: dict[str, tuple[Override, bool]] = {}
        self.known: dict[tuple[str, ...], dict] = {}

    def values(self, words: list[str]) -> dict:
        """The configuration that --cfg job would print for these words, unresolved. Raises what Hydra raises."""
        parsed = [self._parse(word) for word in words]
        composed = values = self._choose([override for override, group in parsed if group])
        given = [override for override, group in parsed if not group]
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
        if word not in self.parsed:
            (override,) = OverridesParser.create(config_loader=self.loader).parse_overrides([word])
            options = self.loader.get_group_options(override.key_or_group, config_name=self.config_name, overrides=self.hydra)
            self.parsed[word] = override, bool(options)
        return self.parsed[word]

    def _choose(self, chosen: list[Override]) -> dict:
        """Values of these choices together: the parts that each changes alone, side by side, or else as Hydra merges them."""
        lines = tuple(override.input_line for override in chosen)
        if lines not in self.known:
            parts = [self._part(override) for override in chosen]
            apart = None not in parts and len(dict(parts)) == len(parts)
            self.known[lines] = {**self._load(()), **dict(parts)} if apart else self._load(lines)
        return self.known[lines]

    def _part(self, override: Override) -> tuple[str, object] | None:
        """(key, value) of the only part that a choice changes; None for a choice that changes others too, or does not compose."""
        key = (override.package or override.key_or_group).split(".")[0]
        with contextlib.suppress(HydraException, OmegaConfBaseException):
            bare, one = self._load(()), self._load((override.input_line,))
            if key in one and repr(one) == repr({**bare, key: one[key]}):
                return key, one[key]
        return None

    def _load(self, lines: tuple[str, ...]) -> dict:
        if lines not in self.known:
            cfg = self.loader.load_configuration(self.config_name, [*self.hydra, *lines], RunMode.RUN)
            self.known[lines] = unresolved(cfg)
        return self.known[lines]


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
