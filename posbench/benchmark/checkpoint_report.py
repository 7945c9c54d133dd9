"""Figures of a checkpoint as a table and a picture."""

from __future__ import annotations

from pathlib import Path

from posbench.benchmark.checkpoint import PLAIN, THEIRS
from posbench.benchmark.measure import Figure
from posbench.report.figures.style import BLACK, GREY, OKABE_ITO, save

COLOURS = {PLAIN: BLACK, THEIRS: GREY}


def markdown(figures: list[Figure], path: str, machine: str) -> str:
    """Table with a line for each case at each length."""
    lines = [f"# Speed and memory of `{path}`", "", machine, ""]
    lines += ["| tokens in the window | | tokens/s | time, `none` = 1 | time, `transformers` = 1 | MiB |"]
    lines += ["| ---: | :--- | ---: | ---: | ---: | ---: |"]
    measured = [one for one in figures if one.ratio is not None]
    for one in measured:
        of_theirs = "" if one.of_theirs is None else f"{one.of_theirs:.2f}"
        marks = " (one pass)" if one.note else ""
        cells = [f"{one.length:,}", one.case + marks, f"{one.tokens_per_second:,.0f}", f"{one.ratio:.2f}", of_theirs, f"{one.mib:,.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "Times are ratios within the same rounds: below 1 is faster. MiB: tensors that live at once in a pass, weights aside."]
    reasons: dict[str, list[str]] = {}
    for one in figures:
        if one.ratio is None:
            reasons.setdefault(f"{one.case} ({one.note.rstrip('.')})", []).append(f"{one.length:,}")
    if reasons:
        lines += ["", "Not measured:", ""]
        lines += [f"- {case} at {', '.join(lengths)} tokens" for case, lengths in reasons.items()]
    return "\n".join(lines) + "\n"


def draw(figures: list[Figure], path: str, stem: Path) -> list[Path]:
    """Draw tokens per second and memory of every case by length, as png and svg. Returns their paths."""
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(10, 4.2), layout="constrained")
    speed, memory = canvas.subplots(1, 2)
    measured = [one for one in figures if one.ratio is not None]
    cases, lengths = list(dict.fromkeys(one.case for one in measured)), sorted({one.length for one in measured})
    others = iter(OKABE_ITO[:-1] * len(cases))
    for case in cases:
        mine = [one for one in measured if one.case == case]
        colour = COLOURS.get(case) or next(others)
        style = {"color": colour, "marker": "o", "markersize": 4, "linewidth": 1.2, "linestyle": "--" if case == THEIRS else "-"}
        speed.plot([one.length for one in mine], [one.tokens_per_second for one in mine], label=case, **style)
        memory.plot([one.length for one in mine], [one.mib for one in mine], **style)
    for axes, title in ((speed, "Tokens per second"), (memory, "Memory of one window beside the weights, MiB")):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.minorticks_off()
        axes.grid(color="#dddddd", linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=7.5, length=0)
        axes.set_xlabel("tokens in the window", fontsize=8)
        axes.set_title(title, fontsize=9, loc="left")
    canvas.legend(loc="outside right upper", fontsize=8, frameon=False)
    canvas.suptitle(Path(path).name, fontsize=9, x=0.01, ha="left")
    return save(canvas, stem)
