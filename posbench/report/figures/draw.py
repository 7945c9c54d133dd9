"""Figures of a report, drawn from a CSV of curve points alone."""

from collections import Counter
from pathlib import Path

from posbench.report.figures import gain, heatmap, intervals, loss_curves, positions
from posbench.report.figures.style import save
from posbench.report.points import read_points, sections


def draw(points_csv: Path | str, out_dir: Path | str, title: str) -> list[dict[str, list[Path]]]:
    """Draw every section of `points_csv`. Returns {name: its png and svg} for each section.

    Names are `curve` (`position` for a protocol by position), and `heatmap` and `differences` if enough methods have a floor. The first
    section has `gain` too if an encoding was trained at several lengths.
    The first section gives curve.png and curve.svg, further ones curve-2.png and so on. Equal input gives equal bytes.
    """
    points, drawn, counted = read_points(points_csv), [], Counter()
    for curve in sections(points):
        kind = "position" if curve[0].window else "curve"
        counted[kind] += 1
        if curve[0].window:
            figures = {kind: positions.figure(curve, title)}
        else:
            figures = {kind: loss_curves.figure(curve, title)}
            figures |= {"heatmap": heatmap.figure(curve, title), "differences": intervals.figure(curve, title)}
        number = f"-{counted[kind]}" if counted[kind] > 1 else ""
        drawn.append({name: save(figure, Path(out_dir) / (name + number)) for name, figure in figures.items() if figure})
    if drawn and (figure := gain.figure(points, title)):
        drawn[0]["gain"] = save(figure, Path(out_dir) / "gain")
    return drawn
