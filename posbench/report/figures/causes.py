"""Figure of the two causes of failure beyond the training length: {distances as trained, never seen} x {keys as in training, many more}.

It is drawn where plain attention, ReRoPE and random keys at both distances were measured on the same trainings: a panel for each training
and scale, in each of them four lines of the loss minus the floor.
"""

from collections import defaultdict

from posbench.report.figures.annotations import end_labels, line_name, measured, of_intervals, width
from posbench.report.figures.style import FAIL, FONT, OKABE_ITO, Frame, differences, octaves
from posbench.report.points import Point, span, two_seeds

COLUMNS, PANEL_WIDTH, PANEL_HEIGHT = 3, 190, 170  # points
LEFT, BETWEEN, ABOVE, UNDER, BELOW = 44, 30, 30, 36, 30
BESIDE = 0.12  # octaves between the intervals of two lines
SEEN, NEW, MANY, FEW = OKABE_ITO[0], FAIL, "-", (0, (5, 1.6))
ARMS = {  # extension: its name in the figure, colour, dash
    "none": ("new distances, many keys", NEW, MANY),
    "random_keys": ("new distances, few keys", NEW, FEW),
    "rerope": ("trained distances, many keys", SEEN, MANY),
    "random_keys clamp=true": ("trained distances, few keys", SEEN, FEW),
}
Panel = tuple[str, str]  # encoding, scale


def figure(section: list[Point], title: str):
    """Figure of one section; None if no panel has all four lines beyond the training length."""
    cells = panels(section)
    if not cells:
        return None
    columns = min(COLUMNS, len(cells))
    gutter = 14 + max(width(name) for name, _, _ in ARMS.values())
    tall, wide = ABOVE + PANEL_HEIGHT + UNDER, PANEL_WIDTH + BETWEEN
    frame = Frame(title, LEFT + columns * wide + gutter, -(-len(cells) // columns) * tall + BELOW)
    shown = [point for arms in cells.values() for own in arms.values() for point in own]
    ends = [point.difference + sign * (point.half_width or 0.0) for point in shown for sign in (1, -1)]
    for index, (panel, arms) in enumerate(cells.items()):
        row, column = divmod(index, columns)
        axes = frame.axes(LEFT + column * wide, row * tall + ABOVE, PANEL_WIDTH, PANEL_HEIGHT)
        _panel(axes, arms, ends, named=column == columns - 1 or index == len(cells) - 1)
        axes.set_title(line_name(*panel), fontsize=FONT, loc="left", pad=6, color="#222222")
        if index >= len(cells) - columns:
            axes.set_xlabel("length (tokens)", fontsize=FONT)
    frame.caption(_said(shown), up=4)
    return frame.figure


def panels(section: list[Point]) -> dict[Panel, dict[str, list[Point]]]:
    """{(encoding, scale): {extension of ARMS: its points by length}}, by training, for panels that have all four at a longer length."""
    found: dict[Panel, dict[str, list[Point]]] = defaultdict(lambda: defaultdict(list))
    for point in sorted(section, key=lambda point: point.length):
        if point.extension in ARMS and point.difference is not None and not point.source:
            found[point.encoding, point.scale_attention][point.extension].append(point)
    whole = {
        panel: {arm: arms[arm] for arm in ARMS}
        for panel, arms in found.items()
        if len(arms) == len(ARMS) and all(own[-1].length > own[-1].train_len for own in arms.values())
    }
    trainings = list(dict.fromkeys(_training(panel)[0] for panel in whole))  # as in the tables
    order = {panel: (trainings.index(training), *scales) for panel in whole for training, *scales in [_training(panel)]}
    return {panel: whole[panel] for panel in sorted(whole, key=order.get)}


def _training(panel: Panel) -> tuple[str, str, str]:
    """The training of a panel without a scale in it, the scale in it, and the scale after it; "" for none."""
    encoding, scale = panel
    before, _, after = encoding.partition(" trained with ")
    trained, _, others = after.partition("} ") if "{" in after else after.partition(" ")
    return f"{before} {others}".strip(), trained, scale if scale != "none" else ""


def _panel(axes, arms: dict[str, list[Point]], shown: list[float], named: bool) -> None:
    differences(axes, shown)
    lengths = sorted({point.length for own in arms.values() for point in own})
    octaves(axes, lengths, arms["none"][0].train_len)
    axes.set_xlim(lengths[0] / 1.3, lengths[-1] * 1.3)
    axes.axhline(0, color="black", linewidth=0.9, zorder=1)
    ends = []
    for index, (arm, own) in enumerate(arms.items()):
        name, colour, dash = ARMS[arm]
        at = [point.length * 2 ** (BESIDE * (index - 1.5)) for point in own]
        face = colour if dash == MANY else "white"
        style = {"color": colour, "linestyle": dash, "linewidth": 1.4, "marker": "o", "markersize": 4.4, "markerfacecolor": face}
        axes.plot(at, [point.difference for point in own], zorder=3, **style)
        for place, point in zip(at, own, strict=True):
            if point.half_width:
                low, high = point.difference - point.half_width, point.difference + point.half_width
                axes.vlines([place], low, high, color=colour, linewidth=2.4, alpha=0.35, zorder=2)
        ends.append((own[-1].difference, at[-1], name, colour))
    if named:
        end_labels(axes, ends)


def _said(shown: list[Point]) -> list[str]:
    bars, first = of_intervals(shown), shown[0]
    return [
        "Loss minus the floor (nats/token); below 0 a method gains from the longer text. Few keys: about as many as in training; who sees "
        "few reads less of the text. Scale: linear to 0.1, logarithmic beyond." + (f" Bars: {bars}." if bars else ""),
        f"Trained at {first.train_len} tokens (dashed). " + measured(shown, f"{span(point.n_targets for point in shown)} targets"),
        *(f"{said[0].upper()}{said[1:]}." for said in two_seeds(shown)),
    ]
