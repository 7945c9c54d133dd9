"""Display names of methods: the choice that a user would type."""

from __future__ import annotations

from posbench.config.compose import nodes
from posbench.config.identity import method_args, method_name


def called(group: str, method: str, args: dict | None) -> str:
    """Name of the choice that makes a method: of the yamls of its class the one it has most arguments in common with (fox_rope, not fox).

    A class that no yaml names is called by its module.
    """
    alike = {stem: method_args(node) for stem, node in nodes(group).items() if method_name(node) == method}
    own, absent = args or {}, object()

    def common(stem: str) -> tuple[int, bool]:
        return sum(own.get(key, absent) == value for key, value in alike[stem].items()), stem == method

    return max(alike, key=common, default=method)
