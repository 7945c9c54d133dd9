"""Parsed command line of a script."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Request:
    """Jobs of one command: their plain configurations, the yaml of their experiment, True for a sweep, and the launcher's yaml."""

    cfgs: list[dict]
    experiment: dict
    sweep: bool
    launcher: dict = field(default_factory=dict)
