"""Limits of one report: beyond them drawing would take hours, and nobody could read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from posbench.common.errors import ConfigError

if TYPE_CHECKING:
    from posbench.report.points import Point

MOST = {"encodings": 300, "methods": 1_000, "lengths or positions": 1_000, "tables of different data, protocols or settings": 500}


def check(sections: Sequence[Sequence[Point]]) -> None:
    """Check the size of a report. Raises ConfigError for more encodings, methods, lengths or sections than it can show."""
    points = [point for section in sections for point in section]
    counted = (
        len({point.encoding for point in points}),
        len({(point.encoding, point.extension, point.scale_attention) for point in points}),
        max((len({point.length for point in section}) for section in sections), default=0),
        len(sections),
    )
    for (what, most), count in zip(MOST.items(), counted, strict=True):
        if count > most:
            raise ConfigError(f"These runs hold {count:,} {what}, and a report shows at most {most:,}: name fewer with runs=.")
