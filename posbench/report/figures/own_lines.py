"""Panels of a figure of one's own: which points stand in which, and the names and looks of their lines."""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from posbench.common.errors import ConfigError
from posbench.report.figures.captions import name_parts, shortened
from posbench.report.figures.lines import Line, Mark, Pen
from posbench.report.figures.loss_curves import groups
from posbench.report.figures.palette import bases, looks
from posbench.report.figures.paper import Content
from posbench.report.figures.style import MARKERS
from posbench.report.records import CurvePoint, Score

if TYPE_CHECKING:
    import pandas

TELLING = ("train_len", "data", "task", "protocol", "tokenizer", "setting")  # columns that may tell lines of one method apart
MANY = 12  # places on x; with more, lines have no markers


@dataclass(frozen=True)
class Spot:
    """A point with its place on x and what is drawn of it: a value with both ends of its interval. It has the point's attributes too."""

    point: CurvePoint | Score
    x: float
    reading: tuple[float, float | None, float | None] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.point, name)

    @property
    def where(self) -> tuple:
        """Section, task and place, which are equal for points that can be subtracted."""
        return self.section, getattr(self.point, "task", None), self.x

    def mark(self, shape: str | None = None) -> Mark:
        return Mark(self.x, *self.reading, shape)


class Words:
    """Names of lines and panels. `labels` may rename a whole line as A|B|C or A|B, a part of it, its source, and a value of TELLING."""

    def __init__(self, labels: Mapping[str, str], spots: Sequence[Spot]):
        self.labels, self.spots = labels, spots
        words = [(*_wholes(spot), *spot.method[:3], spot.source, _stem(spot.source)) for spot in spots]
        words += [tuple(str(getattr(spot, name, "")) for name in TELLING if name != "setting") for spot in spots]
        self.known = ["no extension", *sorted({word for own in words for word in own if word and word != "none"}), "none"]
        said = [set(str(spot.setting).split(", ")) for spot in spots]
        self.always = set.intersection(*said) if said else set()

    def line(self, spot: Spot, panel: Sequence[Spot], telling: Sequence[str]) -> str:
        """Name of a line: its method as far as that differs in the panel, and in brackets what else tells it apart, its source last."""
        whole = [self.labels[name] for name in _wholes(spot) if name in self.labels]
        among = panel if len({other.encoding for other in self.spots}) > 1 else self.spots
        method = whole[0] if whole else " + ".join(self.labels.get(part, part) for part in name_parts(spot, among))
        alike = [other for other in panel if other.method == spot.method]
        apart = [self.value(name, getattr(spot, name)) for name in telling if len({getattr(other, name) for other in alike}) > 1]
        apart += [self.source(spot.source)] * (bool(spot.source) and len({other.source for other in panel}) > 1)
        return shortened(method + "*" * spot.untested + f" ({', '.join(apart)})" * bool(apart))

    def source(self, source: str) -> str:
        return self.labels.get(source, self.labels.get(_stem(source), source))

    def value(self, name: str, value: Any) -> str:
        """Value of a column as it stands in headings and in names."""
        text = "none" if value is None or value != value else str(value)
        if name == "source":
            return self.source(text)
        if name == "setting":
            text = next((part for part in text.split(", ") if part not in self.always), text)
        usual = {"train_len": f"trained at {text}", "extension": "no extension" if text == "none" else text}
        return self.labels.get(text, usual.get(name, text if isinstance(value, str) else f"{name} {text}"))


def _wholes(spot: Spot) -> list[str]:
    """Names of a whole line: A|B|C, and A|B for one without a scale."""
    *both, scale = spot.method[:3]
    return ["|".join([*both, scale])] + ["|".join(both)] * (scale == "none")


def _stem(source: str | None) -> str:
    """Name of a file without .csv."""
    return (source or "").removesuffix(".csv")


def panel_contents(table: "pandas.DataFrame", columns: Sequence[str], said: Words, trained: float | None) -> list[Content]:
    """Panels of the spots of a table: one for each value of `columns`, or as in a report's figures for each part of what was measured.

    `trained`: the training length on x, where that is the same for all.
    """
    spots = list(table.spot)
    wanted = [] if columns == ["none"] else list(columns) or _apart(spots, lambda spot: spot.source)
    apart: dict[tuple[str, ...], list[Spot]] = {}
    words: dict[tuple[str, ...], list[str]] = {}
    for spot, *values in zip(spots, *(table[name] for name in wanted), strict=True):
        key = tuple(map(str, values))
        apart.setdefault(key, []).append(spot)
        words[key] = [said.value(name, value) for name, value in zip(wanted, values, strict=True)]
    contents = []
    for key, own in apart.items():
        for group in [None] if columns else groups(own):
            shown, others = (own, []) if group is None else (group.points, group.others)
            heading = ", ".join(filter(None, [*words[key], group.heading if group else ""]))
            behind = [[spot.mark() for spot in line] for line in _lines(others)]
            lengths = [trained] if trained else sorted({float(spot.train_len) for spot in shown})
            lines = _drawn(shown, spots, said)
            lines = [replace(line, name="") for line in lines] if [line.name for line in lines] == [heading] else lines
            contents.append(Content(heading, lines, behind, lengths))
    return contents


def _apart(spots: Sequence[Spot], group: Callable[[Spot], object]) -> list[str]:
    """Columns of TELLING that tell spots of one group apart, each more than those before it."""
    kept: list[str] = []

    def count(names: Iterable[str]) -> int:
        return len({(group(spot), *(getattr(spot, name, None) for name in names)) for spot in spots})

    for name in TELLING:
        kept += [name] * (count([*kept, name]) > count(kept))
    return kept


def _lines(spots: Sequence[Spot]) -> list[list[Spot]]:
    """Spots of each line in the order of x. Raises ConfigError for two of them at one place."""
    telling = _apart(spots, lambda spot: spot.method)
    lines: dict[tuple, dict[float, Spot]] = {}
    for spot in spots:
        line = lines.setdefault((*spot.method, *(getattr(spot, name) for name in telling)), {})
        if line.setdefault(spot.x, spot) is not spot:
            raise ConfigError(
                f"{'|'.join(spot.method[:3])} has several values at {spot.x:g}: tell them apart by a column source, or choose among them."
            )
    return [[line[x] for x in sorted(line)] for line in lines.values()]


def _drawn(shown: Sequence[Spot], spots: Sequence[Spot], said: Words) -> list[Line]:
    """Lines of a panel. Colour and dash are those of the figures of reports; the marker tells scales and sources apart."""
    scales, sources = (list(dict.fromkeys(getattr(spot, name) for spot in spots)) for name in ("scale_attention", "source"))
    scales = list(dict.fromkeys(["none", *scales]))
    telling = _apart(shown, lambda spot: spot.method)
    key_of = operator.attrgetter("encoding", "extension", "source", "scale_attention", *telling)
    lines = {key_of(line[0]): line for line in _lines(shown)}
    pens = looks(dict.fromkeys(key[:3] + key[4:] for key in lines), dict.fromkeys(spot.extension for spot in spots), bases(spots))
    shape = None if len({spot.x for spot in shown}) <= MANY else ""
    found = []
    for key, line in lines.items():
        foreign, (_, _, source, scale, *_) = getattr(line[0], "foreign", False), key
        marker = "x" if foreign else MARKERS[(scales.index(scale) + sources.index(source)) % len(MARKERS)]
        pen = Pen(*pens[key[:3] + key[4:]], marker, scale != "none" and not foreign, thin=foreign)
        found.append(Line(said.line(line[0], shown, telling), [spot.mark(shape) for spot in line], pen))
    return found
