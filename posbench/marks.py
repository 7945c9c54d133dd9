"""What stands around the curves of a figure: carets for values beyond the edge, names at line ends, the caption."""

from __future__ import annotations

from posbench.points import Point
from posbench.tables import scored

SMALL = 7.2


def spread(wanted: list[float], gap: float, low: float, high: float) -> list[float]:
    """Positions at least `gap` apart within [low, high], each as near to the wanted one as the others allow (least squares).

    Neighbours that would overlap are pooled and centred on their mean. Where `high - low` is too small, the gap shrinks.
    """
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    gap = min(gap, (high - low) / max(1, len(wanted) - 1))
    blocks: list[list[float]] = []  # [sum of wanted starts, members]: the starts, were each member's offset in the block taken off
    for rank, index in enumerate(order):
        blocks.append([wanted[index] - rank * gap, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            total, members = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += members
    result, rank = [0.0] * len(wanted), 0
    last = high - (len(wanted) - 1) * gap
    for total, members in blocks:
        start = min(max(total / members, low), last)
        for _ in range(int(members)):
            result[order[rank]] = start + rank * gap
            rank += 1
    return result


def carets(axes, clipped: dict[int, list[tuple[float, str]]], signed: bool) -> int:
    """Mark values beyond the top edge, {length: [(value, colour)]}, the true value printed above; returns the tallest stack."""
    for length, values in clipped.items():
        where = {"xy": (length, 1.0), "xycoords": axes.get_xaxis_transform(), "textcoords": "offset points", "annotation_clip": False}
        for rank, (value, colour) in enumerate(sorted(values)):
            axes.plot([length], [1.0], marker=6, markersize=6, color=colour, transform=axes.get_xaxis_transform(), clip_on=False, zorder=5)
            text = number(value, signed)
            axes.annotate(text, xytext=(0, 8 + rank * (SMALL + 1.3)), ha="center", va="bottom", fontsize=SMALL, color=colour, **where)
    return max(map(len, clipped.values()), default=0)


def number(value: float, signed: bool) -> str:
    """A loss or a difference in few digits."""
    return f"{value:{'+' if signed else ''}.{2 if abs(value) < 10 else 0}f}"


def end_labels(axes, ends: list[tuple[float, int, str, str]]) -> None:
    """Write (value, length, text, colour) of each line right of the axes, in the order of the values and without overlap."""
    figure = axes.figure
    bottom, top = axes.get_ylim()
    height = axes.get_position().height * figure.get_figheight() * 72
    right = axes.get_xlim()[1]
    to_axes = axes.transScale.transform
    low, high = to_axes([(right, bottom), (right, top)])[:, 1]
    wanted = [(to_axes((right, min(value, top)))[1] - low) / (high - low) * height for value, *_ in ends]
    nudged = [position + 1e-3 * value for position, (value, *_) in zip(wanted, ends, strict=True)]
    for y, place, (_, length, text, colour) in zip(wanted, spread(nudged, 9.6, 2.0, height), ends, strict=True):
        axes.plot([length, right, right * 1.07], [y / height, y / height, place / height], color=colour, linewidth=0.7, alpha=0.6,
                  transform=axes.get_xaxis_transform(), clip_on=False, zorder=2)  # fmt: skip
        axes.annotate(text, (right * 1.07, place / height), xycoords=axes.get_xaxis_transform(), xytext=(3, 0), textcoords="offset points",
                      va="center", fontsize=8.2, color=colour, annotation_clip=False)  # fmt: skip


def name(point: Point, panel: list[Point]) -> str:
    """A line's name: only what differs within its panel; * marks an untested pair."""
    parts = [point.encoding] if len({other.encoding for other in panel}) > 1 else []
    if point.extension != "none" or not parts:
        parts.append(point.extension if point.extension != "none" else "no extension")
    if point.scale_attention != "none":
        parts.append(point.scale_attention)
    return " + ".join(parts) + ("*" if point.untested else "")


def caption(curve: list[Point], relative: bool) -> list[str]:
    """Lines that say what was measured, on what, and what the bars and marks mean."""
    first, seeds = curve[0], sorted({point.n_seeds for point in curve})
    count = f"{seeds[0]} seed{'s' * (seeds[0] > 1)}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
    lines = [f"{first.data}, {first.tokenizer} | protocol {first.protocol}: {scored(first)} | {count}"]
    over = sorted({point.over for point in curve if point.half_width is not None})
    if relative and over:
        what = " or ".join("over seeds" if unit == "seeds" else f"over {unit}s (one seed)" for unit in over)
        lines.append(f"Scale: linear to 0.1, logarithmic beyond. Bars: 95 % t interval of the paired difference, {what}.")
    known = {point.encoding: point for point in curve if point.floor is not None}
    if known:
        each = [f"{encoding} {point.floor:.3f}{_gain(point)}" for encoding, point in known.items()]
        lines.append(f"Loss with exactly {first.train_len} tokens, and G, what their second half brings (nats/token): {'; '.join(each)}.")
    if any(point.untested for point in curve):
        lines.append("* a pair its authors have not tested")
    return lines


def _gain(point: Point) -> str:
    if point.gain is None:
        return ""
    return f" (G {point.gain:.3f}{'' if point.gain_lower is not None and point.gain_lower > 0 else ', gate failed'})"
