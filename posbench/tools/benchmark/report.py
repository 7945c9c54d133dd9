"""The benchmarks' figures as tables, and those of every method as a picture."""

from collections.abc import Iterable
from pathlib import Path

from matplotlib.colors import LogNorm
from matplotlib.figure import Figure as Canvas

from posbench.report.figures.lines import end_labels
from posbench.report.figures.style import GREY, OKABE_ITO, save
from posbench.report.table_formats import markdown_row
from posbench.tools.benchmark.measure import BASE, LLAMA, Figure

BLUE = OKABE_ITO[0]


def _table(align: str, heads: Iterable[str], rows: Iterable[list[str]]) -> list[str]:
    """Lines of a Markdown table; `align` has < for a column of words and > for one of numbers."""
    head, *lines = map(
        markdown_row, (heads, [":---" if side == "<" else "---:" for side in align], *rows)
    )
    return [head.replace("|  |", "| |"), *lines]


def speed_table(figures: list[Figure], machine: str) -> str:
    """Table of training speed, evaluation time at each length, and memory of every case."""
    lengths = sorted({one.length for one in figures if one.kind == "evaluation"})
    train = {one.case: one for one in figures if one.kind == "training"}
    tested = {(one.case, one.length): one for one in figures if one.kind == "evaluation"}
    rows = []
    for case in dict.fromkeys(
        one.case for one in figures if one.kind in ("training", "evaluation")
    ):
        step, found = train.get(case), [tested.get((case, length)) for length in lengths]
        speed = [f"{step.tokens_per_second:,.0f}", f"{1 / step.ratio:.2f}"] if step else ["", ""]
        times = ["" if one is None else f"{one.ratio:.2f}" for one in found]
        rows.append(
            [
                case,
                *speed,
                *times,
                " ".join("-" if one is None else f"{one.mib:.1f}" for one in found),
            ]
        )
    heads = [
        "",
        "training: tokens/s",
        "of rope's",
        *(f"time at {length}" for length in lengths),
        "MiB at each length",
    ]
    lines = [f"# Speed and memory beside plain attention (`{BASE}`)", "", machine, ""]
    lines += _table("<>>" + ">" * len(lengths) + "<", heads, rows)
    lines += [
        "",
        (
            "Time: of one evaluation pass over 8,192 tokens, as a ratio to the base case in the"
            " same rounds (below 1 is faster)."
        ),
    ]
    lines += [
        "MiB: tensors that live at once while one window of each length is read, weights aside."
    ]
    return "\n".join([*lines, *_beside_transformers(figures)]) + "\n"


def _beside_transformers(figures: list[Figure]) -> list[str]:
    steps = {
        (int(one.kind.split()[1]), one.length, one.case): one
        for one in figures
        if one.kind.startswith("trained ")
    }
    if not steps:
        return []
    rows = []
    for (vocab, length, case), ours in steps.items():
        if case == BASE:
            theirs = steps[vocab, length, LLAMA]
            times = [f"{1e3 * one.seconds:.0f}" for one in (ours, theirs)]
            rows.append(
                [
                    f"{vocab:,}",
                    str(length),
                    *times,
                    f"{theirs.ratio:.2f}",
                    f"{ours.mib:.0f}",
                    f"{theirs.mib:.0f}",
                ]
            )
    heads = ["vocabulary", "tokens of a sequence", "ms", "theirs", "times as fast", "MiB", "theirs"]
    said = (
        "Steps of 2,048 tokens; theirs with torch.optim.Muon and cross_entropy, of the same shape,"
        " in the same rounds."
    )
    return [
        "",
        f"## A training step beside {LLAMA}",
        "",
        *_table(">" * len(heads), heads, rows),
        "",
        said,
    ]


def checkpoint_markdown(figures: list[Figure], path: str, machine: str) -> str:
    """Table with a line for each case at each length."""
    rows, reasons = [], {}
    for one in figures:
        if one.ratio is None:
            reasons.setdefault(f"{one.case} ({one.note.rstrip('.')})", []).append(f"{one.length:,}")
            continue
        marks = f"{', a token after it' * (one.kind == 'token')}{' (one pass)' * bool(one.note)}"
        speed, of_theirs = (
            f"{one.tokens_per_second:,.{int(one.kind == 'token')}f}",
            "" if one.of_theirs is None else f"{one.of_theirs:.2f}",
        )
        rows.append(
            [
                f"{one.length:,}",
                one.case + marks,
                speed,
                f"{one.ratio:.2f}",
                of_theirs,
                f"{one.mib:,.0f}",
            ]
        )
    heads = [
        "tokens in the window",
        "",
        "tokens/s",
        "time, `none` = 1",
        "time, `transformers` = 1",
        "MiB",
    ]
    lines = [f"# Speed and memory of `{path}`", "", machine, "", *_table("><>>>>", heads, rows)]
    lines += [
        "",
        (
            "Times are ratios within the same rounds: below 1 is faster. MiB: tensors that live at"
            " once in a pass, weights aside."
        ),
    ]
    lines += ["", "Not measured:", ""] if reasons else []
    lines += [f"- {case} at {', '.join(lengths)} tokens" for case, lengths in reasons.items()]
    return "\n".join(lines) + "\n"


def draw(figures: list[Figure], stem: Path) -> list[Path]:
    """Draw bars of training speed beside a heat map of evaluation time, as png and svg. Returns
    their paths.
    """
    train = sorted((one for one in figures if one.kind == "training"), key=lambda one: one.ratio)
    tested = {(one.case, one.length): one.ratio for one in figures if one.kind == "evaluation"}
    cases, lengths = (
        list(dict.fromkeys(case for case, _ in tested)),
        sorted({length for _, length in tested}),
    )
    canvas = Canvas(figsize=(11, 1.2 + 0.21 * max(len(cases), len(train))), layout="constrained")
    grid = canvas.add_gridspec(
        2, 2, width_ratios=(1, 1.25), height_ratios=(len(train), max(6, len(cases) - len(train)))
    )
    bars, memory, heat = (
        canvas.add_subplot(grid[0, 0]),
        canvas.add_subplot(grid[1, 0]),
        canvas.add_subplot(grid[:, 1]),
    )
    ends = _memory(memory, figures)
    bars.barh([one.case for one in train], [1 / one.ratio for one in train], color=BLUE, height=0.7)
    bars.axvline(1, color=GREY, linewidth=0.8, linestyle="--")
    for i, one in enumerate(train):
        bars.text(
            1 / one.ratio - 0.01,
            i,
            f"{1 / one.ratio:.2f}",
            va="center",
            ha="right",
            fontsize=7,
            color="white",
        )
    bars.set_title("Training speed, rope = 1", fontsize=9, loc="left")
    ratios = [[tested.get((case, length), float("nan")) for length in lengths] for case in cases]
    heat.imshow(ratios, aspect="auto", cmap="RdBu_r", norm=LogNorm(1 / 8, 8))
    for i, line in enumerate(ratios):
        for j, ratio in enumerate(line):
            if ratio == ratio:
                heat.text(
                    j,
                    i,
                    f"{ratio:.2f}",
                    ha="center",
                    va="center",
                    fontsize=6.5,
                    color="white" if not 0.3 < ratio < 3.3 else "black",
                )
    heat.set_xticks(range(len(lengths)), [str(length) for length in lengths])
    heat.set_yticks(range(len(cases)), cases)
    heat.set_xlabel("tokens in the window", fontsize=8)
    heat.set_title("Evaluation time, rope = 1", fontsize=9, loc="left")
    for axes in (bars, memory, heat):
        axes.tick_params(labelsize=7.5, length=0)
        axes.spines[:].set_visible(False)
    bars.set_ylim(len(train) - 0.5, -0.5)
    canvas.draw_without_rendering()  # places the axes, in whose points names are kept apart
    end_labels(memory, ends)
    return save(canvas, stem)


def _memory(axes, figures: list[Figure]) -> list[tuple[float, int, str, str]]:
    """Draw a line for each case. Returns the last point of the base and of each case far above it,
    for `end_labels`.
    """
    lines: dict[str, dict[int, float]] = {}
    for one in figures:
        if one.kind == "evaluation":
            lines.setdefault(one.case, {})[one.length] = one.mib
    base, ends = lines[BASE], []
    for case, points in lines.items():
        length, mib = max(points.items())
        apart, colour = case == BASE or mib > 1.35 * base[length], BLUE if case == BASE else GREY
        axes.plot(
            *zip(*points.items(), strict=True),
            color=colour,
            linewidth=1.6 if apart else 0.5,
            zorder=3 if apart else 2,
        )
        ends += [(mib, length, case, colour)] if apart else []
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(list(base), map(str, base))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.minorticks_off()
    axes.set_xlabel("tokens in the window", fontsize=8)
    axes.set_title("Memory of one window, MiB", fontsize=9, loc="left")
    return ends
