"""Figures of a report, drawn from its points, steps and scores."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from posbench.report.figures import accuracy, differences, loss_curves, trainings, within_windows
from posbench.report.figures.style import save
from posbench.report.records import ContextPoint, CurvePoint, Score, SectionKey


def draw(sections: Sequence[Sequence[SectionKey]], out_dir: Path | str, title: str) -> list[dict[str, list[Path]]]:
    """Draw every section of points, steps or scores. Returns {name: its png and svg} for each section, named as in `_figures`.

    The first section of points has `gain` and `frontier` too if an encoding was trained at several lengths, `gain` also if for several
    numbers of steps.
    The first section of a kind gives curve.png and curve.svg, further ones curve-2.png and so on. Equal input gives equal bytes.
    """
    drawn, counted = [], Counter()
    for section in sections:
        figures = _figures(section, title)
        first = next(iter(figures))
        counted[first] += 1
        number = f"-{counted[first]}" if counted[first] > 1 else ""
        drawn.append({name: save(figure, Path(out_dir) / (name + number)) for name, figure in figures.items() if figure})
    points = [one for section in sections for one in section if isinstance(one, CurvePoint)]
    for name, of_all in (("gain", trainings.gain), ("frontier", trainings.frontier)):
        if points and (figure := of_all(points, title)):
            drawn[0][name] = save(figure, Path(out_dir) / name)
    return drawn


def _figures(section: Sequence, title: str) -> dict:
    """Figures of a section by name, None for one that would show nothing.

    `depth` needs depths, `map` several methods and lengths, `heatmap` and `differences` enough methods that have a floor.
    """
    first = section[0]
    if isinstance(first, ContextPoint):
        return {"context": within_windows.by_context(section, title)}
    if isinstance(first, Score):
        figures = {"accuracy": accuracy.figure(section, title), "map": accuracy.methods_map(section, title)}
        return {**figures, "depth": accuracy.maps(section, title), "accuracy_steps": trainings.accuracy_steps(section, title)}
    if first.window:
        return {"position": within_windows.by_position(section, title)}
    kinds = {"curve": loss_curves.figure, "heatmap": differences.heatmap, "differences": differences.intervals, "steps": trainings.steps}
    return {name: figure(section, title) for name, figure in kinds.items()}
