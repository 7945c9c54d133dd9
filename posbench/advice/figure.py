"""Figure of an advice, from the content of advice.json: differences by length of each option, and the cost of each factor."""

import itertools

from posbench.advice.show import shown
from posbench.report.figures.style import DASHES, FONT, GREY, MARKERS, OKABE_ITO, Frame, differences, octaves

WIDTH, HEIGHT, LEFT, LEGEND, GAP = 290, 190, 40, 96, 56  # points
APART = 0.05  # octaves between the marks of two lines
LOOKS = tuple(zip(OKABE_ITO, DASHES, MARKERS, strict=True))
Line = tuple[str, list[tuple[float, list[float | None]]]]  # name, [(x, [difference, low, high])]
CAPTION = (
    "Nats per token with 95 % intervals over documents, on the test documents. Left: up to the training length (dashed) the loss minus "
    "that of the model as it is, beyond it minus that of the text cut to its last training length of tokens; below 0 the longer text "
    "helps. Right: what a fixed factor costs within the training length. Scales are linear to 0.1 and logarithmic beyond."
)


def figure(content: dict):
    """Left: what each option changes, by length. Right, if fixed factors were measured: their cost, by factor."""
    right = factors(content)
    frame = Frame(
        f"{content['model']}: what each option changes", LEFT + WIDTH + LEGEND + (GAP + WIDTH + LEGEND) * bool(right), HEIGHT + 96
    )
    axes = frame.axes(LEFT, 24, WIDTH, HEIGHT)
    left = [(option["name"], [(point["length"], point["difference"]) for point in option["points"]]) for option in shown(content)]
    octaves(axes, sorted({at for _, points in left for at, _ in points}), content["train_len"])
    _panel(axes, left, "tokens of text")
    if right:
        axes = frame.axes(LEFT + WIDTH + LEGEND + GAP, 24, WIDTH, HEIGHT)
        places = sorted({at for _, points in right for at, _ in points})
        octaves(axes, places, 1)
        axes.set_xticks(places, [f"{place:g}" for place in places])
        _panel(axes, right, "factor")
    frame.caption([CAPTION], up=30)
    return frame.figure


def factors(content: dict) -> list[Line]:
    """The fixed factors of a family at one short length; factor 1 is the model as it is and costs nothing."""
    found, own = [], sorted(content["factors"], key=lambda one: (one["family"], one["factor"]))
    for family, group in itertools.groupby(own, lambda one: one["family"]):
        group = list(group)
        for length in content["short"]:
            costs = [(one["factor"], point["difference"]) for one in group for point in one["points"] if point["length"] == length]
            found.append((f"{family} at {length:,}", [(1.0, [0.0, 0.0, 0.0]), *costs]))
    return found


def _panel(axes, lines: list[Line], label: str) -> None:
    known = [value for _, points in lines for _, bounds in points for value in bounds if value is not None]
    differences(axes, known)
    axes.axhline(0, color=GREY, linewidth=0.8)
    for index, (name, points) in enumerate(lines):
        shift = 2 ** (APART * (index - (len(lines) - 1) / 2))
        told = [(at * shift, bounds) for at, bounds in points if bounds[0] is not None]
        colour, dash, marker = LOOKS[index % len(LOOKS)]
        style = {"color": colour, "linestyle": dash, "marker": marker, "markersize": 4, "linewidth": 1.4}
        axes.plot([at for at, _ in told], [one[0] for _, one in told], label=name, **style)
        bars = [(at, one[1], one[2]) for at, one in told if None not in one]
        if bars:
            axes.vlines(*zip(*bars, strict=True), color=colour, linewidth=2.4, alpha=0.35)
    axes.set_xlabel(label, fontsize=FONT)
    axes.legend(fontsize=FONT - 0.5, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=2.6)
