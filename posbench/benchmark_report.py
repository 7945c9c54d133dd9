"""The benchmark's figures as a table and a picture."""

from __future__ import annotations

from pathlib import Path

from posbench.benchmark import BASE, Figure
from posbench.files import atomic_path

BLUE, GREY = "#0072B2", "#5a5a5a"


def markdown(figures: list[Figure], machine: str) -> str:
    """Training speed, evaluation time at each length and memory of every case."""
    lengths = sorted({one.length for one in figures if one.kind == "evaluation"})
    train = {one.case: one for one in figures if one.kind == "training"}
    tested = {(one.case, one.length): one for one in figures if one.kind == "evaluation"}
    lines = [f"# Speed and memory beside plain attention (`{BASE}`)", "", machine, ""]
    lines += ["| | training: tokens/s | of rope's | " + " | ".join(f"time at {length}" for length in lengths) + " | MiB at each length |"]
    lines += ["| :--- | ---: | ---: |" + " ---: |" * len(lengths) + " :--- |"]
    for case in dict.fromkeys(one.case for one in figures):
        step = train.get(case)
        cells = [f"{step.tokens_per_second:,.0f}", f"{1 / step.ratio:.2f}"] if step else ["", ""]
        found = [tested.get((case, length)) for length in lengths]
        cells += ["" if one is None else one.note if one.ratio is None else f"{one.ratio:.2f}" for one in found]
        cells.append(" ".join("-" if one is None or one.mib is None else f"{one.mib:.1f}" for one in found))
        lines.append(f"| {case} | " + " | ".join(cells) + " |")
    lines += ["", "Time: of one evaluation pass over 8,192 tokens, as a ratio to the base case in the same rounds (below 1 is faster)."]
    lines += ["MiB: tensors that live at once while one window of each length is read, weights aside."]
    return "\n".join(lines) + "\n"


def draw(figures: list[Figure], stem: Path) -> list[Path]:
    """Bars of training speed beside a map of evaluation time, as png and svg."""
    import matplotlib
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure as Canvas

    train = sorted((one for one in figures if one.kind == "training"), key=lambda one: one.ratio)
    tested = {(one.case, one.length): one.ratio for one in figures if one.kind == "evaluation" and one.ratio is not None}
    cases, lengths = list(dict.fromkeys(case for case, _ in tested)), sorted({length for _, length in tested})
    canvas = Canvas(figsize=(11, 1.2 + 0.21 * max(len(cases), len(train))), layout="constrained")
    bars, heat = canvas.subplots(1, 2, width_ratios=(1, 1.25))
    bars.barh([one.case for one in train], [1 / one.ratio for one in train], color=BLUE, height=0.7)
    bars.invert_yaxis()
    bars.axvline(1, color=GREY, linewidth=0.8, linestyle="--")
    for i, one in enumerate(train):
        bars.text(1 / one.ratio + 0.01, i, f"{1 / one.ratio:.2f}", va="center", fontsize=7)
    bars.set_title("Training speed, rope = 1", fontsize=9, loc="left")
    grid = [[tested.get((case, length), float("nan")) for length in lengths] for case in cases]
    heat.imshow(grid, aspect="auto", cmap="RdBu_r", norm=LogNorm(1 / 8, 8))
    for i, line in enumerate(grid):
        for j, ratio in enumerate(line):
            if ratio == ratio:
                heat.text(j, i, f"{ratio:.2f}", ha="center", va="center", fontsize=6.5, color="white" if not 0.3 < ratio < 3.3 else "black")
    heat.set_xticks(range(len(lengths)), [str(length) for length in lengths])
    heat.set_yticks(range(len(cases)), cases)
    heat.set_xlabel("tokens in the window", fontsize=8)
    heat.set_title("Evaluation time, rope = 1", fontsize=9, loc="left")
    for axes in (bars, heat):
        axes.tick_params(labelsize=7.5, length=0)
        for side in axes.spines.values():
            side.set_visible(False)
    bars.set_ylim(len(train) - 0.4, -0.6)
    for suffix, extra in ((".png", {"dpi": 150}), (".svg", {"metadata": {"Date": None}})):
        with atomic_path(stem.with_suffix(suffix)) as path, matplotlib.rc_context({"svg.hashsalt": "posbench"}):
            canvas.savefig(path, facecolor="white", **extra)
    return [stem.with_suffix(".png"), stem.with_suffix(".svg")]
