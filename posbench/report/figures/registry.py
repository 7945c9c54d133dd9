"""Figures of a report. Each is declared where it is drawn, and found here by its kind.

A new figure is one function in a file of this folder, below
`@report_figure("curve", "heatmap", "Methods and lengths", place=2)`."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from posbench.report.records import ContextPoint, Score, SectionKey, StepPoint

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw = Callable[..., "Figure | None"]
OVERALL_KIND = "overall"  # kind of the figures that are drawn once, of all points by length


@dataclass(frozen=True)
class ReportFigure:
    """Figure of a section of a report."""

    # context, accuracy, validation, position or curve, as `kind_of` names sections; OVERALL_KIND
    kind: str
    name: str  # of its files
    title: str  # on the page
    place: int  # among the figures of its kind
    # of records and a title, and of `bars` if it takes them; gives None where a figure would show
    # nothing
    draw: Draw

    def drawn(self, records: Sequence[SectionKey], title: str, bars: str) -> "Figure | None":
        """Figure of records, with the bars of a word of `uncertainty.BARS` if it can have any."""
        if "bars" in inspect.signature(self.draw).parameters:
            return self.draw(records, title, bars=bars)
        return self.draw(records, title)


_declared: dict[str, ReportFigure] = {}


def report_figure(kind: str, name: str, title: str, place: int = 1) -> Callable[[Draw], Draw]:
    """Declare that a function draws a figure of a report; `place` orders the figures of a kind."""

    def declare(draw: Draw) -> Draw:
        _declared[name] = ReportFigure(kind, name, title, place, draw)
        return draw

    return declare


@cache
def report_figures() -> tuple[ReportFigure, ...]:
    """All figures, in the order of their places."""
    folder = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(importlib.import_module(folder).__path__):
        importlib.import_module(f"{folder}.{module.name}")
    return tuple(sorted(_declared.values(), key=lambda figure: figure.place))


def figures_of(kind: str) -> list[ReportFigure]:
    """Figures of a kind, in the order of their places."""
    return [figure for figure in report_figures() if figure.kind == kind]


def kind_of(section: Sequence[SectionKey]) -> str:
    """Kind of the figures of a section: context, accuracy, validation, position or curve."""
    first = section[0]
    if isinstance(first, ContextPoint):
        return "context"
    if isinstance(first, Score):
        return "accuracy"
    if isinstance(first, StepPoint):
        return "validation"
    return "position" if first.window else "curve"
