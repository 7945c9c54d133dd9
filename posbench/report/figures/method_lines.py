"""Lines of methods, in a report's figures and in one's own: the panel in which each stands, its
name and its look.

Colour shows the encoding (the extension, if a panel has one encoding), dash the extension, marker
the scale-attention and the source. Many methods are spread over several panels, each with all
others in grey."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from posbench.common.errors import ConfigError
from posbench.report.figures.captions import shortened
from posbench.report.figures.lines import Line, Mark
from posbench.report.figures.palette import (
    apart,
    bases,
    encoding_look,
    extension_look,
    foreign_pens,
    looks,
)
from posbench.report.figures.style import FEW, MARKERS
from posbench.report.records import CurvePoint, Score, methods

TELLING = (
    "train_len",
    "data",
    "task",
    "protocol",
    "tokenizer",
    "setting",
)  # columns that may tell lines of one method apart
Point = CurvePoint | Score


@dataclass(frozen=True)
class Group:
    """Points of one panel, with its heading, and `others`, drawn in grey behind them."""

    heading: str
    points: list[Point]
    others: list[Point] = field(default_factory=list)


def groups(points: list[Point]) -> list[Group]:
    """One group for few lines; else encodings alone, then each encoding's extensions, the most
    first. Crowded groups are divided.
    """
    cells = sorted(methods(points), key=str)
    extended = Counter(encoding for encoding, extension, *_ in cells if extension != "none")
    if len(cells) <= FEW and len({point.encoding for point in points}) > 1 or not extended:
        return _divided("", points)
    plain = [point for point in points if point.extension == "none"]
    shown = [
        (f"{name}: extensions", [point for point in points if point.encoding == name])
        for name, _ in extended.most_common()
    ]
    shown = [("Encodings, nothing extended", plain)] * (
        len({point.encoding for point in plain}) > 1
    ) + shown
    return [part for heading, own in shown for part in _divided(heading, own)]


def _divided(heading: str, points: list[Point]) -> list[Group]:
    """One group, or several if it had too many lines: each with some of the methods, and all others
    in grey.
    """
    alone = len({point.encoding for point in points}) == 1
    name, look = ("extension", extension_look) if alone else ("encoding", encoding_look)
    reference = {"none"} if alone else set()  # the line without an extension is in each panel
    names = [
        one
        for one in dict.fromkeys(getattr(point, name) for point in points)
        if one not in reference
    ]
    divided = apart(names, look, bases(points))
    if len(divided) == 1:
        return [Group(heading, points)]
    parts = []
    for index, group in enumerate(divided, start=1):
        inside = {*group, *reference}
        own, others = (
            [point for point in points if (getattr(point, name) in inside) == wanted]
            for wanted in (True, False)
        )
        parts.append(Group(f"{heading or 'Methods'} ({index} of {len(divided)})", own, others))
    return parts


class Names:
    """Names of lines and panels. `labels` may rename a whole line as A|B|C or A|B, a part of it,
    its source, and a value of TELLING.
    """

    def __init__(self, points: Sequence[Point], labels: Mapping[str, str] | None = None):
        self.labels, self.points = labels or {}, points
        said = [set(str(point.setting).split(", ")) for point in points]
        self.always = set.intersection(*said) if said else set()

    def known(self) -> list[str]:
        """Words that `labels` may rename."""
        words = [
            (
                *_wholes(point),
                *point.method[:3],
                point.source,
                (point.source or "").removesuffix(".csv"),
            )
            for point in self.points
        ]
        words += [
            tuple(str(getattr(point, name, "")) for name in TELLING if name != "setting")
            for point in self.points
        ]
        return [
            "no extension",
            *sorted({word for own in words for word in own if word and word != "none"}),
            "none",
        ]

    def line(self, point: Point, panel: Sequence[Point], telling: Sequence[str] = ()) -> str:
        """Name of a line: what of its method differs in the panel, * for an untested pair, and in
        brackets what else tells it apart.
        """
        whole = [self.labels[name] for name in _wholes(point) if name in self.labels]
        among = panel if len({other.encoding for other in self.points}) > 1 else self.points
        alone = len({other.encoding for other in among}) == 1 and any(
            other.extension != "none" for other in among
        )
        parts = [] if alone else [point.encoding]
        if point.extension != "none" or alone:
            parts.append(point.extension if point.extension != "none" else "no extension")
        parts += [point.scale_attention] * (point.scale_attention != "none")
        method = whole[0] if whole else " + ".join(self.labels.get(part, part) for part in parts)
        alike = [other for other in panel if other.method == point.method]
        told = [
            self.value(name, getattr(point, name))
            for name in telling
            if len({getattr(other, name) for other in alike}) > 1
        ]
        told += [self.source(point.source)] * (
            bool(point.source) and len({other.source for other in panel}) > 1
        )
        return shortened(method + "*" * point.untested + f" ({', '.join(told)})" * bool(told))

    def source(self, source: str) -> str:
        return self.labels.get(source, self.labels.get((source or "").removesuffix(".csv"), source))

    def value(self, name: str, value: Any) -> str:
        """Value of a column as it stands in headings and in names."""
        text = "none" if value is None or value != value else str(value)
        if name == "source":
            return self.source(text)
        if name == "setting":
            text = next((part for part in text.split(", ") if part not in self.always), text)
        usual = {
            "train_len": f"trained at {text}",
            "extension": "no extension" if text == "none" else text,
        }
        return self.labels.get(
            text, usual.get(name, text if isinstance(value, str) else f"{name} {text}")
        )


def _wholes(point: Point) -> list[str]:
    """Names of a whole line: A|B|C, and A|B for one without a scale."""
    *both, scale = point.method[:3]
    return ["|".join([*both, scale])] + ["|".join(both)] * (scale == "none")


def telling_columns(points: Sequence[Point], group: Callable[[Point], Hashable]) -> list[str]:
    """Columns of TELLING that tell points of one group apart, each more than those before it."""
    kept: list[str] = []

    def count(names: Iterable[str]) -> int:
        return len(
            {(group(point), *(getattr(point, name, None) for name in names)) for point in points}
        )

    for name in TELLING:
        kept += [name] * (count([*kept, name]) > count(kept))
    return kept


def marks_of(
    points: Sequence[Point], mark: Callable[[Point], Mark | None]
) -> Iterator[tuple[tuple, Point, list[Mark]]]:
    """(key, a point, marks) of each line in the order of x; `mark` gives None for no value. Raises
    ConfigError for two at one place.
    """
    lines: dict[tuple, tuple[Point, dict[float, Mark]]] = {}
    telling = telling_columns(points, lambda point: point.method)
    for point in points:
        key = (
            point.encoding,
            point.extension,
            point.source,
            point.scale_attention,
            *(getattr(point, name) for name in telling),
        )
        _, own = lines.setdefault(key, (point, {}))
        made = mark(point)
        if made and own.setdefault(made.x, made) is not made:
            raise ConfigError(
                f"{'|'.join(point.method[:3])} has several values at {made.x:g}: tell them apart by"
                " a column source, or choose among them."
            )
    return ((key, point, [own[x] for x in sorted(own)]) for key, (point, own) in lines.items())


def lines_of(
    panel: Sequence[Point],
    figure: Sequence[Point],
    mark: Callable[[Point], Mark | None],
    names: Names | None = None,
) -> list[Line]:
    """Line of each method of a panel, with the look that it has in all panels of the figure of
    these points.
    """
    names, telling = names or Names(figure), telling_columns(panel, lambda point: point.method)
    scales, sources = (
        list(dict.fromkeys(getattr(point, name) for point in figure))
        for name in ("scale_attention", "source")
    )
    scales = list(dict.fromkeys(["none", *scales]))
    found = list(marks_of(panel, mark))
    own = [one for one in figure if not _foreign(one)]
    drawn = dict.fromkeys(key[:3] + key[4:] for key, point, _ in found if not _foreign(point))
    pens = looks(drawn, bases(own), dict.fromkeys(one.extension for one in own))
    pens_of_others = foreign_pens(dict.fromkeys(one.method for one in figure if _foreign(one)))
    lines = []
    for key, point, marks in found:
        if not marks:
            continue
        if _foreign(point):
            pen = pens_of_others[point.method]
        else:
            source, scale = key[2:4]
            marker = MARKERS[(scales.index(scale) + sources.index(source)) % len(MARKERS)]
            pen = replace(pens[key[:3] + key[4:]], marker=marker, hollow=scale != "none")
        lines.append(Line(names.line(point, panel, telling), marks, pen))
    return lines


def _foreign(point: Point) -> bool:
    """True for a loss of somebody else's CSV; scores of tasks are never."""
    return getattr(point, "foreign", False)
