"""Display names of methods, as a user would type them."""

from __future__ import annotations

from posbench.config.compose import nodes
from posbench.config.identity import method_args, method_name


def called(group: str, method: str, args: dict | None) -> str:
    """Display name of a method: among the yamls of its class the one that shares most arguments (fox_rope, not fox).

    A class without a yaml is named by its module.
    """
    alike = {stem: method_args(node) for stem, node in nodes(group).items() if method_name(node) == method}
    own, absent = args or {}, object()

    def common(stem: str) -> tuple[int, bool]:
        return sum(own.get(key, absent) == value for key, value in alike[stem].items()), stem == method

    return max(alike, key=common, default=method)
