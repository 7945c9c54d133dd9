"""Picture of diagnostics.json: a row of panels for each layer, with the entropy of its heads by
length and maps of head and distance.
"""

import math

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import LinearSegmentedColormap, PowerNorm

from posbench.report.figures.lines import end_labels
from posbench.report.figures.style import FONT, GREY, OKABE_ITO, Frame, legible, note, octaves
from posbench.report.records import tick_lengths
from posbench.tools.anatomy.attention_file import arm_name, windows_read

CURVE, CELL, TALL = (
    150,
    20,
    84,
)  # points: width of a panel of curves and of a map's cell, and least height of a layer
MARGIN, GUTTER, BETWEEN, ABOVE, BELOW = 92, 60, 34, 46, 40
HIDDEN, NUMBERED = (
    "#ececec",
    96,
)  # colour of what is not seen; most heads of a model whose maps have numbers
LABELLED, BARS = 12, 4  # most heads of a layer whose curves have names, and intervals


def attention_page(found: dict):
    """Figure of diagnostics.json: on the left the model as it was trained, then for each arm
    curves, and a map at its longest length.
    """
    heads, train_len = (
        len(found["arms"][0]["measured"][0]["layers"][0]["entropy"]),
        found["train_len"],
    )
    tall = max(TALL, min(11, max(4, 2600 / heads / len(found["layers"]))) * heads)
    measured = [text for one in found["arms"] for text in one["measured"]]
    sinks = any(max(layer["sink"]) for text in measured for layer in text["layers"])
    columns = [("sink", "sink", 0)] * sinks + [
        ("first", "first", 0)
    ]  # label, key, number of the bucket
    lows = [low for low, _ in found["buckets"]]
    columns += [
        (str(low) if low < 1024 else f"{low // 1024}k", "mass", number)
        for number, low in enumerate(lows)
    ]
    wide, numbers = CELL * len(columns), heads * len(found["layers"]) <= NUMBERED
    highest = (
        max(math.log(max(layer["keys"], 2)) for text in measured for layer in text["layers"]) * 1.04
    )
    trained = next(
        text for text in found["arms"][0]["measured"] if text["length"] == found["known"]
    )
    panels = [("as trained", trained, None)]  # name, text of a map or None, arm of curves or None
    for one in found["arms"]:
        panels += [(arm_name(one), None, one)] * (len(one["measured"]) > 1)
        panels += [
            (arm_name(one), text, None) for text in one["measured"][-1:] if text is not trained
        ]
    across = MARGIN + sum(CURVE + GUTTER if one else wide + BETWEEN for _, _, one in panels)
    methods = found["encoding"] + (
        "" if found["trained_scale"] == "none" else f" trained with {found['trained_scale']}"
    )
    frame = Frame(
        f"Attention of {methods}, head by head ({found['run']})",
        across,
        ABOVE + len(found["layers"]) * (tall + 14) + BELOW,
    )
    for number, kind in enumerate(found["layers"]):
        left, top, last = MARGIN, ABOVE + number * (tall + 14), number == len(found["layers"]) - 1
        for place, (name, text, one) in enumerate(panels):
            axes = frame.axes(left, top, CURVE if one else wide, tall)
            left += CURVE + GUTTER if one else wide + BETWEEN
            if one:
                _curves(axes, one, number, train_len, highest, last)
            else:
                _map(
                    axes,
                    text["layers"][number],
                    columns,
                    train_len,
                    "{}" if place else "head {}",
                    numbers,
                    last,
                )
            if number == 0:
                shown = (
                    "entropy (nats)"
                    if one
                    else f"{text['length']} tokens, loss {text['nll']:.3f}: share of the weight (%)"
                )
                note(
                    axes,
                    name,
                    (0, 1),
                    (0, 19),
                    xycoords="axes fraction",
                    fontsize=9.5,
                    fontweight="bold",
                )
                note(
                    axes,
                    shown,
                    (0, 1),
                    (0, 7),
                    xycoords="axes fraction",
                    fontsize=8.2,
                    color="#222222",
                )
            if place == 0:
                lines = [f"layer {number + 1}"]
                if len({(one["kind"], one["window"]) for one in found["layers"]}) > 1:
                    lines += [kind["kind"]] + [f"window {kind['window']}"] * (
                        kind["window"] is not None
                    )
                style = {
                    "xycoords": "axes fraction",
                    "va": "top",
                    "ha": "right",
                    "fontsize": 8.5,
                    "linespacing": 1.3,
                }
                note(axes, "\n".join(lines), (0, 1), (-40, 1), **style)
    frame.caption(_attention_caption(found, any(one for *_, one in panels), sinks), up=2)
    return frame.figure


def _curves(axes, one: dict, number: int, train_len: int, highest: float, last: bool) -> None:
    lengths, layers = (
        [text["length"] for text in one["measured"]],
        [text["layers"][number] for text in one["measured"]],
    )
    octaves(axes, tick_lengths(lengths), train_len)
    axes.set(xlim=(min(lengths) / 1.15, max(lengths) * 1.15), ylim=(0, highest))
    axes.tick_params(labelsize=7.5, labelbottom=last)
    axes.plot(
        lengths,
        [math.log(layer["keys"]) for layer in layers],
        color=GREY,
        linewidth=1,
        linestyle=(0, (1.2, 1.4)),
        zorder=2,
    )
    ends = [(math.log(layers[-1]["keys"]), lengths[-1], "even", GREY)]
    heads = len(layers[0]["entropy"])
    for head in range(heads):
        colour = (
            OKABE_ITO[head]
            if heads <= len(OKABE_ITO)
            else colormaps["viridis"](0.95 * head / heads)
        )
        values, halves = (
            [layer[key][head] for layer in layers] for key in ("entropy", "entropy_half")
        )
        axes.plot(
            lengths, values, color=colour, marker="o", markersize=2.6, linewidth=1.2, zorder=3
        )
        if heads <= BARS and None not in halves:
            low, high = (
                [value + sign * half for value, half in zip(values, halves, strict=True)]
                for sign in (-1, 1)
            )
            axes.vlines(lengths, low, high, color=colour, linewidth=2.2, alpha=0.3, zorder=2)
        if heads <= LABELLED:
            ends.append((values[-1], lengths[-1], f"head {head + 1}", colour))
    end_labels(axes, ends)
    if last:
        axes.set_xlabel("length (tokens)", fontsize=FONT)


def _map(
    axes,
    layer: dict,
    columns: list[tuple[str, str, int]],
    train_len: int,
    row: str,
    numbers: bool,
    last: bool,
) -> None:
    heads, first = len(layer["entropy"]), sum(key != "mass" for _, key, _ in columns)
    shares = []  # of each column
    for _, key, number in columns:
        hidden = key == "mass" and not (number < len(layer["seen"]) and layer["seen"][number])
        shares.append(
            [math.nan] * heads
            if hidden
            else [row[number] for row in layer[key]]
            if key == "mass"
            else layer[key]
        )
    colours = LinearSegmentedColormap.from_list(
        "share", ["#ffffff", "#8fbfdf", OKABE_ITO[0], "#00263d"]
    ).with_extremes(bad=HIDDEN)
    norm = PowerNorm(0.6, 0, 1)
    height = axes.get_position().height * axes.figure.get_figheight() * 72 / heads
    known = np.ma.masked_invalid(np.array(shares, float).T)
    axes.pcolormesh(known, cmap=colours, norm=norm, edgecolor="white", linewidth=0.4 * (height > 6))
    for head, place in zip(*np.nonzero(known.filled(0) >= 0.005), strict=True):
        if numbers:
            ink = legible(colours(norm(known[head, place])), ("#1a1a1a", "#ffffff"))
            axes.text(
                place + 0.5,
                head + 0.53,
                f"{100 * known[head, place]:.0f}",
                ha="center",
                va="center",
                fontsize=6.8,
                color=ink,
            )
    axes.set(xlim=(0, len(columns)), ylim=(heads, 0))
    place = first + 1 + math.log2(train_len)
    if place < len(columns):
        axes.axvline(place, color=GREY, linewidth=1, linestyle=(0, (4, 3)))
    axes.axvline(first, color="black", linewidth=0.8)
    named = [head for head in range(heads) if height >= 7 or head in (0, heads - 1)]
    axes.set_yticks([head + 0.5 for head in named], [row.format(head + 1) for head in named])
    axes.set_xticks(
        [place + 0.5 for place in range(len(columns))],
        [label for label, *_ in columns] if last else [],
    )
    axes.tick_params(labelsize=7, color=GREY, length=2, pad=2)
    axes.spines[:].set_color(GREY)
    if last:
        axes.set_xlabel("distance of the key (tokens, at least)", fontsize=FONT)


def _attention_caption(found: dict, curves: bool, sinks: bool) -> list[str]:
    lines = [
        f"Means over {windows_read(found)}; the same at every length. Dashed: {found['train_len']}"
        " tokens, the training length."
    ]
    if curves:
        text = found["arms"][0]["measured"][0]
        barred = text["documents"] > 1 and len(text["layers"][0]["entropy"]) <= BARS
        bars = " Bars: 95 % intervals over documents." if barred else ""
        lines.append(
            "Entropy of a query's weights; dotted: as if all keys that it sees had equal"
            f" weight.{bars}"
        )
    columns = (
        "a column for the first token and for each range of distances to the other keys, grey where"
        " none is seen"
    )
    lines.append(
        f"Maps: a row for each head, {columns}." + " sink: the weight that no key gets." * sinks
    )
    if any(one["untested"] for one in found["arms"]):
        lines.append("* a pair its authors have not tested")
    return lines
