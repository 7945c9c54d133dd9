"""Methods by the names of their yamls in configs/, as a user would type them."""

from __future__ import annotations

import functools
from pathlib import Path

from posbench.config.identity import method_args, method_name

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def choices(configs: list[Path], group: str) -> dict[str, dict]:
    """{name: content} of a group's yamls in all configuration folders; later folders win."""
    from omegaconf import OmegaConf

    paths = sorted(path for folder in configs for path in (folder / group).glob("*.yaml") if not path.stem.startswith("_"))
    return {path.stem: OmegaConf.to_container(OmegaConf.load(path)) for path in paths}


@functools.cache
def nodes(group: str) -> dict[str, dict]:
    """{name: content} of the yamls of one of posbench's own groups, read once."""
    return choices([CONFIGS], group)


def named(group: str, node: dict) -> str:
    """Display name of a method by its configuration. Raises ConfigError for one without _target_."""
    return called(group, method_name(node), method_args(node))


def called(group: str, method: str, args: dict | None) -> str:
    """Display name of a method: among the yamls of its class the one that shares most arguments (fox_rope, not fox).

    A class without a yaml is named by its module.
    """
    alike = {stem: method_args(node) for stem, node in nodes(group).items() if method_name(node) == method}
    own, absent = args or {}, object()

    def common(stem: str) -> tuple[int, bool]:
        return sum(own.get(key, absent) == value for key, value in alike[stem].items()), stem == method

    return max(alike, key=common, default=method)
