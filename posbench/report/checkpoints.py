"""Lines on the checkpoints behind a report: which file, and how its weights are stored."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from posbench.common.files import read_json
from posbench.runs.directory import Run
from posbench.runs.origins import Origin, or_nothing, text

QUANTISED = re.compile(r"(\d+) I?Q(\d)_?\w*")  # 210 Q4_1 in the text of train.json


def checkpoint_lines(origins: Iterable[Origin]) -> list[str]:
    """A line for each checkpoint among the runs; quantised weights are named as such, since they are dequantised when loaded."""
    return list(dict.fromkeys(line for origin in origins if (line := _line(origin))))


def _line(origin: Origin) -> str | None:
    path = origin.config.get("model.path")
    if not path:
        return None
    stored = text(or_nothing(lambda: read_json(Run(origin.path).summary)).get("stored") or "")
    quantised = QUANTISED.match(stored)  # the most frequent kind comes first
    how = f": {quantised[2]}-bit weights, dequantised" if quantised else ""
    return f"checkpoint {Path(text(path).rpartition(':')[2]).name}{how}{f' ({stored})' if stored else ''}"
