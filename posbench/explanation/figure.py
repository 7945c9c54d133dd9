"""Figure of an explanation: for each kind of layer how much slower its pairs turn, and how often they turn in training."""

import numpy as np

from posbench.explanation.show import READERS, Explanation, states
from posbench.report.figures.style import FONT, GREY, OKABE_ITO, Frame, ruled

LOOKS = {
    "#": ("kept", OKABE_ITO[0]),
    "+": ("slower", OKABE_ITO[4]),
    "-": ("slower by the factor", OKABE_ITO[1]),
    "<": ("faster", OKABE_ITO[2]),
}
PANEL, GAP, LEFT = (300, 180), 64, 52  # points


def explanation_figure(explanation: Explanation):
    """A row of two panels for each kind of layer with RoPE."""
    kinds = explanation.setting.turning
    height = len(kinds) * (PANEL[1] + GAP)
    title = f"{explanation.setting.name} as {READERS[explanation.reader]} reads it"
    frame = Frame(title, 2 * PANEL[0] + GAP + LEFT + 10, height + 12)
    for row, kind in enumerate(kinds):
        ratio, turned = explanation.slower(kind), explanation.turns(kind)
        marks, pairs = np.array(list(states(ratio))), np.arange(len(ratio))
        top = 26 + row * (PANEL[1] + GAP)
        left, right = (frame.axes(LEFT + at * (PANEL[0] + GAP), top, *PANEL) for at in (0, 1))
        for mark, (name, colour) in LOOKS.items():
            if (mine := marks == mark).any():
                left.plot(pairs[mine], ratio[mine], "o", markersize=4, color=colour, label=f"{name}: {mine.sum()}")
                right.plot(pairs[mine], turned[mine], "o", markersize=4, color=colour)
        left.set_ylim(0.94 * min(1, ratio.min()), 1.08 * max(1.5, ratio.max()))
        left.legend(fontsize=FONT, frameon=False)
        left.set_ylabel("times slower than base alone", fontsize=FONT)
        right.set_ylabel(f"turns in {kind.rope.original:,.10g} tokens", fontsize=FONT)
        right.set_yscale("log")
        right.axhline(1, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
        for axes in (left, right):
            ruled(axes)
            axes.set_title(f"{kind.name}, {len(kind.layers)} layers", fontsize=FONT + 1, loc="left")
            axes.set_xlabel("pair of channels", fontsize=FONT)
        if ratio.max() / ratio.min() > 16:
            left.set_yscale("log", base=2)
    amplitudes = ", ".join(f"{kind.name} {kind.rope.amplitude**2:.4g}" for kind in kinds)
    frame.caption([f"Factor on the logits: {amplitudes}. Dashed: one turn in the training length."], up=4)
    return frame.figure
