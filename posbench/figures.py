"""Every figure, drawn from a CSV of curve points and nothing else.

Colour tells encodings apart (extensions, where a panel shows one encoding), dash the extension, marker the scale-attention.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from posbench.files import atomic_path
from posbench.marks import caption, carets, end_labels, name
from posbench.points import Point, marked, read_points, sections

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", (0, (5, 1.6)), (0, (1.2, 1.4)), (0, (6, 1.5, 1.2, 1.5)), (0, (3, 1.2)), (0, (8, 2, 1, 2, 1, 2)), (0, (2, 2.5)))
MARKERS = ("o", "D", "s", "^", "v", "P", "X")
GREY, FONT, FEW = "#5a5a5a", 8.5, 6
BEND, BROKEN = 0.1, 4.0  # nats/token: where the scale of differences turns logarithmic, and where a model knows nothing any more
TICKS = (0, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 4, 8, 16)


def draw(points_csv: Path | str, out_dir: Path | str, title: str) -> list[Path]:
    """Draw every section (protocol, data, tokenizer, training length) of `points_csv` as png and svg; returns the files.

    One section gives curve.png and curve.svg, further ones curve-2.png and so on. Equal input gives equal bytes.
    """
    paths = []
    for number, curve in enumerate(sections(read_points(points_csv)), start=1):
        paths += save(_figure(curve, title), Path(out_dir) / (f"curve-{number}" if number > 1 else "curve"))
    return paths


def save(figure, stem: Path) -> list[Path]:
    """Write a figure as png and svg; equal figures give equal bytes."""
    import matplotlib

    for suffix, extra in ((".png", {"dpi": 160, "metadata": {"Software": None}}), (".svg", {"metadata": {"Date": None}})):
        with atomic_path(stem.with_suffix(suffix)) as path, matplotlib.rc_context({"svg.hashsalt": "posbench"}):
            figure.savefig(path, bbox_inches="tight", pad_inches=0.15, facecolor="white", **extra)
    return [stem.with_suffix(".png"), stem.with_suffix(".svg")]


def panels(curve: list[Point]) -> list[tuple[str, list[Point]]]:
    """(heading, points) of each panel: one for few curves, else encodings as they are, then each encoding's extensions, the most first."""
    cells = {(point.encoding, point.extension, point.scale_attention) for point in curve}
    plain = [point for point in curve if point.extension == "none"]
    extended: dict[str, set] = {}
    for encoding, extension, scale in sorted(cells):
        if extension != "none":
            extended.setdefault(encoding, set()).add((extension, scale))
    encodings = sorted(extended, key=lambda name: -len(extended[name]))
    if len(cells) <= FEW and len({point.encoding for point in curve}) > 1 or not extended:
        return [("", curve)]
    shown = [(f"{name}: extensions", [point for point in curve if point.encoding == name]) for name in encodings]
    return ([("Encodings, nothing extended", plain)] if len({point.encoding for point in plain}) > 1 else []) + shown


def _figure(curve: list[Point], title: str):
    from matplotlib.figure import Figure

    if curve[0].window:  # the first positions have a high loss in every model and would flatten the rest
        curve = [point for point in curve if 8 * point.length >= point.train_len]
    shown = panels(curve)
    relative = all(point.difference is not None or point.nll is None for point in curve)
    known = [point.difference if relative else point.nll for point in curve]
    bottom, top = limits([value for value in known if value is not None], relative)
    columns = min(len(shown), 3)
    lines = -(-len(shown) // columns)
    figure = Figure(figsize=(6.4 if columns == 1 else 5.2 * columns, 4.3 * lines), layout=None)
    grid = figure.subplots(lines, columns, sharey=True, squeeze=False)
    figure.subplots_adjust(wspace=0.56, hspace=0.5, left=0.08, right=0.9, bottom=0.1, top=0.86)
    colours, extensions = _colours(curve, shown), list(dict.fromkeys(["none", *(point.extension for point in curve)]))
    stacks = [0]
    for index, axes in enumerate(grid.flat):
        if index >= len(shown):
            axes.set_axis_off()
            continue
        points = shown[index][1]
        _frame(axes, points, relative, bottom, top, first=index % columns == 0)
        stacks.append(_curves(axes, points, relative, colours[index], extensions, top))
    above = 8 + 8.5 * max(stacks) + 5 * (max(stacks) > 0)
    for axes, (heading, _) in zip(grid.flat, shown, strict=False):
        axes.set_title(heading, fontsize=10.5, loc="left", pad=above, color="#222222")
    edge = {"textcoords": "offset points", "ha": "left", "annotation_clip": False}
    top_left = (-42, above + (24 if shown[0][0] else 6))
    grid[0][0].annotate(title, (0, 1), xycoords="axes fraction", xytext=top_left, fontsize=13, fontweight="bold", **edge)
    wrapped = [part for line in caption(curve, relative) for part in textwrap.wrap(line, 45 + 75 * columns)]
    grid[-1][0].annotate("\n".join(wrapped), (0, 0), xycoords="axes fraction", xytext=(-42, -40), va="top", fontsize=7.8,
                         color=GREY, linespacing=1.35, **edge)  # fmt: skip
    return figure


def _colours(curve: list[Point], shown: list[tuple[str, list[Point]]]) -> list[dict]:
    """For each panel cell -> colour. An encoding keeps its colour; in a panel of one encoding extensions take colours no encoding has."""
    encodings = list(dict.fromkeys(point.encoding for point in curve))
    free = [colour for colour in OKABE_ITO if colour not in OKABE_ITO[: len(encodings)]] or list(OKABE_ITO)
    extensions = [name for name in dict.fromkeys(point.extension for point in curve) if name != "none"]
    result = []
    for _, points in shown:
        single = len({point.encoding for point in points}) == 1
        cells = {(point.encoding, point.extension) for point in points}
        own = {name: OKABE_ITO[index % len(OKABE_ITO)] for index, name in enumerate(encodings)}
        spare = free + [
            colour for encoding, colour in own.items() if colour not in free and all(point.encoding != encoding for point in points)
        ]
        other = {name: spare[index % len(spare)] for index, name in enumerate(extensions)}
        result.append({cell: other[cell[1]] if single and cell[1] != "none" else own[cell[0]] for cell in cells})
    return result


def limits(values: list[float], relative: bool) -> tuple[float, float]:
    """Bottom and top of the y axis. The top is cut where few exploding values would flatten all the rest.

    A difference to the floor is drawn on a scale that is logarithmic beyond BEND and can show more: it is cut at BROKEN or at
    twice the upper quartile, whichever is higher. A plain loss is cut at twice the spread of the lower half.
    """
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    if relative:
        low, high = min(low, -0.02), max(high, 0.05)
        return 1.6 * low - 0.02, min(1.25 * high, max(BROKEN, 2 * ordered[len(ordered) * 3 // 4]))
    top = low + 2.0 * (ordered[(len(ordered) - 1) // 2] - low)
    top = high if high <= low + 1.7 * (top - low) else top
    margin = 0.07 * ((top - low) or 0.1)
    return low - margin, top + margin


def _frame(axes, points: list[Point], relative: bool, bottom: float, top: float, first: bool) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    train_len, lengths = points[0].train_len, marked(point.length for point in points)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(lengths))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(lengths[0] / 1.12, lengths[-1] * 1.06)
    axes.axvline(train_len, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    axes.annotate(f"trained at {train_len}", (train_len, bottom), xytext=(4, 4), textcoords="offset points", fontsize=7.5, color=GREY)
    if relative:
        axes.set_yscale("symlog", linthresh=BEND, linscale=1.3)
        both = [sign * tick for tick in TICKS for sign in (1, -1)]
        axes.yaxis.set_major_locator(FixedLocator([tick for tick in sorted(set(both)) if bottom <= tick <= top]))
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:+g}" if y else "0")
        axes.yaxis.set_minor_locator(NullLocator())
        axes.axhspan(bottom, 0, color="#009E73", alpha=0.07, linewidth=0, zorder=0)
        axes.axhline(0, color="black", linewidth=0.9, zorder=1)
    axes.set_ylim(bottom, top)
    window = points[0].window
    axes.set_xlabel(f"position in a window of {window} tokens" if window else "length at evaluation (tokens)", fontsize=FONT)
    if first:
        reference = f"loss minus the loss with exactly\n{train_len} tokens of context (nats/token)"
        axes.set_ylabel(reference if relative else "loss (nats/token)", fontsize=FONT)
    if first and relative:
        where = {"xycoords": "axes fraction", "textcoords": "offset points", "ha": "right", "fontsize": 7.5, "style": "italic"}
        axes.annotate("below 0: the longer context helps", (1, 0), xytext=(-3, 4), color="#00724f", **where)
    axes.tick_params(labelsize=FONT, labelleft=True, color=GREY)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _curves(axes, points: list[Point], relative: bool, colours: dict, extensions: list[str], top: float) -> int:
    def value(point: Point) -> float | None:
        return point.difference if relative else point.nll

    scales = list(dict.fromkeys(["none", *(point.scale_attention for point in points)]))
    cells: dict[tuple, list[Point]] = {}
    for point in points:
        cells.setdefault((point.encoding, point.extension, point.scale_attention), []).append(point)
    ends, clipped, ticks = [], {}, marked(point.length for point in points)
    for (encoding, extension, scale), cell in cells.items():
        cell = sorted((point for point in cell if value(point) is not None), key=lambda point: point.length)
        colour, known = colours[encoding, extension], [value(point) for point in cell]
        if not cell:
            continue
        marker = MARKERS[scales.index(scale) % len(MARKERS)]
        style = {"color": colour, "linestyle": DASHES[extensions.index(extension) % len(DASHES)], "linewidth": 1.5, "zorder": 3}
        axes.plot([point.length for point in cell], known, **style)
        inside = [(point, y) for point, y in zip(cell, known, strict=True) if y <= top]
        marks = {"marker": marker, "markersize": 4.6, "markeredgewidth": 1.1, "markeredgecolor": colour}
        marks["markerfacecolor"] = colour if scale == "none" else "white"
        axes.plot([point.length for point, _ in inside], [y for _, y in inside], linestyle="none", zorder=4, **marks)
        for point, y in inside:
            if relative and point.half_width is not None:
                ends_of_bar = [y - point.half_width, y + point.half_width]
                axes.plot([point.length] * 2, ends_of_bar, color=colour, linewidth=2.4, alpha=0.35, zorder=2)
        for point, y in zip(cell, known, strict=True):
            if y > top and point.length in ticks:
                clipped.setdefault(point.length, []).append((y, colour))
        ends.append((known[-1], cell[-1].length, name(cell[-1], points), colour))
    end_labels(axes, ends)
    return carets(axes, clipped, relative)
