"""Annotations of a figure: carets for values beyond the edge, names at line ends, the caption."""

import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from posbench.report.figures.style import GREY, note
from posbench.report.points import Point, over_words, span, two_seeds
from posbench.report.tables import file, scored

if TYPE_CHECKING:
    from posbench.report.context_loss import Step

SMALL, LABEL, GAP, LONGEST, MOST = 7.2, 8.2, 9.6, 60, 4


@functools.cache
def width(text: str, size: float = LABEL, weight: str = "normal") -> float:
    """Width of a text in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    return TextPath((0, 0), text, size=size, prop=FontProperties(weight=weight)).get_extents().x1 if text.strip() else 0.0


def spread(wanted: list[float], gap: float, low: float, high: float) -> list[float]:
    """Positions at least `gap` apart within [low, high], each as near to the wanted one as the others allow (least squares).

    Neighbours that would overlap are pooled and centred on their mean. If `high - low` is too small, the gap shrinks.
    """
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    gap = min(gap, (high - low) / max(1, len(wanted) - 1))
    blocks: list[tuple[float, int]] = []  # sum of (wanted - rank * gap), members
    for rank, index in enumerate(order):
        total, members = wanted[index] - rank * gap, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / members:
            before, others = blocks.pop()
            total, members = before + total, others + members
        blocks.append((total, members))
    last = high - (len(wanted) - 1) * gap
    starts = [min(max(total / members, low), last) for total, members in blocks for _ in range(members)]
    placed = {index: start + rank * gap for rank, (index, start) in enumerate(zip(order, starts, strict=True))}
    return [placed[index] for index in range(len(wanted))]


def stack(clipped: dict[int, list]) -> float:
    """Height in points that `carets` takes above the axes."""
    tallest = max(map(len, clipped.values()), default=0)
    return 5 * (tallest > 0) + (SMALL + 1.3) * (tallest if tallest <= MOST else 2)


def carets(axes, clipped: dict[int, list[tuple[float, str]]], signed: bool) -> None:
    """Mark values beyond the top edge, {length: [(value, colour)]}, and print them above; of more than MOST the number and the largest."""
    for length, values in clipped.items():
        values = sorted(values)
        colour = GREY if len(values) > MOST else values[0][1]
        axes.plot([length], [1.0], marker=6, markersize=6, color=colour, transform=axes.get_xaxis_transform(), clip_on=False, zorder=5)
        texts = [(number(value, signed), colour) for value, colour in values]
        if len(values) > MOST:
            texts = [(f"to {number(values[-1][0], signed)}", GREY), (f"{len(values)} here", GREY)]
        for rank, (text, colour) in enumerate(texts):
            style = {"xycoords": axes.get_xaxis_transform(), "ha": "center", "va": "bottom", "fontsize": SMALL, "color": colour}
            note(axes, text, (length, 1.0), (0, 8 + rank * (SMALL + 1.3)), **style)


def number(value: float, signed: bool) -> str:
    """Text of a loss or a difference in few digits."""
    return f"{value:{'+' if signed else ''}.{2 if abs(value) < 10 else 0}f}"


def end_labels(axes, ends: list[tuple[float, int, str, str]]) -> None:
    """Write each line's text right of the axes, for (value, length, text, colour), in the order of the values and without overlap."""
    place, figure = axes.get_position(), axes.figure
    tall, wide = place.height * figure.get_figheight() * 72, place.width * figure.get_figwidth() * 72
    top = axes.get_ylim()[1]
    to_axes = (axes.transScale + axes.transLimits).transform
    starts = [to_axes((length, min(value, top))) for value, length, *_ in ends]
    nudged = [y * tall + 1e-3 * value for (_, y), (value, *_) in zip(starts, ends, strict=True)]
    for (x, y), put, (*_, text, colour) in zip(starts, spread(nudged, GAP, 2.0, tall), ends, strict=True):
        line = {"color": colour, "linewidth": 0.7, "alpha": 0.6, "transform": axes.transAxes, "clip_on": False, "zorder": 2}
        axes.plot([x, 1, 1 + 7 / wide], [y, y, put / tall], **line)
        style = {"xycoords": "axes fraction", "va": "center", "fontsize": LABEL, "color": colour}
        note(axes, text, (1 + 7 / wide, put / tall), (3, 0), **style)


def name(point: Point, panel: list[Point]) -> str:
    """Name of a line, with only what differs within its panel. * marks an untested pair; a file's name follows if it is the source."""
    alone = len({other.encoding for other in panel}) == 1 and any(other.extension != "none" for other in panel)
    parts = [] if alone else [point.encoding]
    if point.extension != "none" or not parts:
        parts.append(point.extension if point.extension != "none" else "no extension")
    if point.scale_attention != "none":
        parts.append(point.scale_attention)
    return shortened(" + ".join(parts) + "*" * point.untested + file(point.source))


def extension_name(method: tuple, points: Iterable[Point]) -> str:
    """Name of a `Point.method` without its encoding: extension and scale; * marks an untested pair."""
    _, extension, scale, source = method
    parts = ["no extension" if extension == "none" else extension, *([scale] * (scale != "none"))]
    return shortened(" + ".join(parts) + file(source) + "*" * any(point.untested for point in points))


def line_name(encoding: str, *others: str) -> str:
    """Name of a line of several encodings: the encoding (or nothing), then extension and scale where there are any."""
    return shortened(" + ".join([encoding] * bool(encoding) + [other for other in others if other != "none"]))


def shortened(text: str) -> str:
    """Name of at most LONGEST characters: both ends of a longer one."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[5 - LONGEST // 2 :]}"


def caption(curve: list[Point], relative: bool) -> list[str]:
    """Lines of a caption: what was measured, on what text, and the meaning of bars and marks."""
    first, bars = curve[0], of_intervals(curve)
    lines = [measured(curve, scored(first))]
    if relative:
        lines.append("Scale: linear to 0.1, logarithmic beyond." + (f" Bars: {bars}." if bars else ""))
    known = {point.encoding + file(point.source): point for point in curve if point.floor is not None and not point.foreign}
    if known:
        each = [f"{encoding} {point.floor:.3f}{_gain(point)}" for encoding, point in known.items()]
        lines.append(f"Loss with exactly {first.train_len} tokens, and G, what their second half brings (nats/token): {'; '.join(each)}.")
    lines += [f"{said[0].upper()}{said[1:]}." for said in two_seeds(curve)]
    if any(point.untested for point in curve):
        lines.append("* a pair its authors have not tested")
    return lines + of_files(curve, relative)


def measured(section: "Sequence[Point | Step]", targets: str) -> str:
    """Line on the data, the protocol and its targets, and the number of seeds."""
    first, seeds = section[0], span(one.n_seeds for one in section)
    return f"{first.data}, {first.tokenizer} | protocol {first.protocol}: {targets} | {seeds} seed{'s' * (seeds != '1')}"


def of_intervals(points: Iterable[Point]) -> str:
    """Text that explains the intervals of differences by their units; "" without intervals."""
    over = sorted({point.over for point in points if point.half_width is not None})
    return f"95 % t interval of the paired difference, {' or '.join(map(over_words, over))}" if over else ""


def of_files(curve: list[Point], relative: bool) -> list[str]:
    """Lines on losses that were read from CSVs."""
    read = sorted({point.source for point in curve if point.source and not point.foreign})
    stated = sorted({point.source for point in curve if point.source and point.foreign})
    lines = [f"Thin lines: rows read from {', '.join(read)}."] if read else []
    if stated:
        lines.append(f"Thin lines and their bars: as {' and '.join(stated)} states them, or over its seeds; not paired with anything.")
    lacking = sorted({point.source for point in curve if point.foreign and point.source and point.floor is None})
    others = [point for point in curve if point.source not in lacking]
    if lacking and not relative and all(point.difference is not None or point.nll is None for point in others) and others:
        lines.append(f"Losses and no differences, since {', '.join(lacking)} names no floor to subtract.")
    return lines


def _gain(point: Point) -> str:
    if point.gain is None:
        return ""
    return f" (G {point.gain:.3f}{'' if point.gain_lower is not None and point.gain_lower > 0 else ', gate failed'})"
