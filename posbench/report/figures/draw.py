"""Figures of a report, drawn from its points, steps and scores."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from posbench.report.figures import accuracy, differences, loss_curves, trainings, within_windows
from posbench.report.figures.style import save
from posbench.report.records import ContextPoint, CurvePoint, Score, SectionKey

FIGURES = {  # of a section by its kind; None where one would show nothing
    "context": {"context": within_windows.by_context},
    "accuracy": {
        "accuracy": accuracy.figure, "map": accuracy.methods_map, "depth": accuracy.maps, "accuracy_steps": trainings.accuracy_steps,
    },
    "position": {"position": within_windows.by_position},
    "curve": {
        "curve": loss_curves.figure, "heatmap": differences.heatmap, "differences": differences.intervals, "steps": trainings.steps,
    },
}  # fmt: skip


def draw(sections: Sequence[Sequence[SectionKey]], out_dir: Path | str, title: str) -> list[dict[str, list[Path]]]:
    """Draw every section of points, steps or scores. Returns {name: its png and svg} for each section, named as in FIGURES.

    The first section of points has `gain` and `frontier` too if an encoding was trained at several lengths, `gain` also if for several
    numbers of steps.
    The first section of a kind gives curve.png and curve.svg, further ones curve-2.png and so on. Equal input gives equal bytes.
    """
    drawn, counted = [], Counter()
    for section in sections:
        kind = {ContextPoint: "context", Score: "accuracy"}.get(type(section[0])) or ("position" if section[0].window else "curve")
        counted[kind] += 1
        number = f"-{counted[kind]}" if counted[kind] > 1 else ""
        made = {name: figure(section, title) for name, figure in FIGURES[kind].items()}
        drawn.append({name: save(figure, Path(out_dir) / (name + number)) for name, figure in made.items() if figure})
    points = [one for section in sections for one in section if isinstance(one, CurvePoint)]
    for name, of_all in (("gain", trainings.gain), ("frontier", trainings.frontier)):
        if points and (figure := of_all(points, title)):
            drawn[0][name] = save(figure, Path(out_dir) / name)
    return drawn
