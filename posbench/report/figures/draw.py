"""Figures of a report, drawn from a CSV of points, of steps or of scores alone."""

from collections import Counter
from pathlib import Path

from posbench.report.context_loss import Step
from posbench.report.figures import accuracy, causes, context_loss, frontier, gain, heatmap, intervals, loss_curves, positions, steps
from posbench.report.figures.style import save
from posbench.report.points import Placed, Point, read_points, sections
from posbench.report.scores import Score


def draw(csv: Path | str, out_dir: Path | str, title: str, kind: type[Placed] = Point) -> list[dict[str, list[Path]]]:
    """Draw every section of a CSV of points, steps or scores. Returns {name: its png and svg} for each section, named as in `_figures`.

    The first section of points has `gain` and `frontier` too if an encoding was trained at several lengths, `gain` also if for several
    numbers of steps.
    The first section of a kind gives curve.png and curve.svg, further ones curve-2.png and so on. Equal input gives equal bytes.
    """
    records, drawn, counted = read_points(csv, kind), [], Counter()
    for section in sections(records):
        figures = _figures(section, title)
        first = next(iter(figures))
        counted[first] += 1
        number = f"-{counted[first]}" if counted[first] > 1 else ""
        drawn.append({name: save(figure, Path(out_dir) / (name + number)) for name, figure in figures.items() if figure})
    for name, of_all in (("gain", gain.figure), ("frontier", frontier.figure)) if drawn and kind is Point else ():
        if figure := of_all(records, title):
            drawn[0][name] = save(figure, Path(out_dir) / name)
    return drawn


def _figures(section: list, title: str) -> dict:
    """Figures of a section by name, None for one that would show nothing.

    `depth` needs depths, `map` several methods and lengths, `heatmap` and `differences` enough methods that have a floor.
    """
    first = section[0]
    if isinstance(first, Step):
        return {"context": context_loss.figure(section, title)}
    if isinstance(first, Score):
        figures = {"accuracy": accuracy.curves(section, title), "map": accuracy.methods_map(section, title)}
        return {**figures, "depth": accuracy.maps(section, title), "accuracy_steps": steps.scores(section, title)}
    if first.window:
        return {"position": positions.figure(section, title)}
    kinds = {"curve": loss_curves, "heatmap": heatmap, "differences": intervals, "steps": steps, "causes": causes}
    return {name: kind.figure(section, title) for name, kind in kinds.items()}
