"""What a command line asks of a script."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Request:
    """What was asked of a script: each job's plain configuration, the experiment they come from, whether they are a sweep, and the yaml
    of the launcher that says where they run."""

    cfgs: list[dict]
    experiment: dict
    sweep: bool
    launcher: dict = field(default_factory=dict)
