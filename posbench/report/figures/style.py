"""Style shared by the figures: colours, dashes, sizes, the scale of differences, and the writing of files."""

from __future__ import annotations

from pathlib import Path

from posbench.common.files import atomic_path

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
BLACK = OKABE_ITO[-1]
GAIN, FAIL = OKABE_ITO[2], OKABE_ITO[1]  # below the floor, above it
DASHES = ("-", (0, (5, 1.6)), (0, (1.2, 1.4)), (0, (6, 1.5, 1.2, 1.5)), (0, (3, 1.2)), (0, (8, 2, 1, 2, 1, 2)), (0, (2, 2.5)))
MARKERS = ("o", "D", "s", "^", "v", "P", "X")
GREY, FONT = "#5a5a5a", 8.5
FEW, ENOUGH = 6, 3  # at most so many curves share one panel; at least so many methods for a heat map and a plot of differences
BEND, BROKEN = 0.1, 4.0  # nats/token: start of the logarithmic part of the scale, and a difference at which a model knows nothing
TICKS = (0, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 4, 8, 16)


def save(figure, stem: Path) -> list[Path]:
    """Write a figure as png and svg, and return their paths. Equal figures give equal bytes."""
    import matplotlib

    written = []
    for suffix, extra in ((".png", {"dpi": 160, "metadata": {"Software": None}}), (".svg", {"metadata": {"Date": None}})):
        written.append(stem.with_name(stem.name + suffix))  # with_suffix would replace .v2 in rope.v2
        with atomic_path(written[-1]) as path, matplotlib.rc_context({"svg.hashsalt": "posbench"}):
            figure.savefig(path, bbox_inches="tight", pad_inches=0.15, facecolor="white", **extra)
    return written
