"""The benchmarks' figures as tables and pictures: of every method, and of a checkpoint."""

from pathlib import Path

from matplotlib.colors import LogNorm
from matplotlib.figure import Figure as Canvas

from posbench.benchmark.checkpoint import PLAIN, THEIRS
from posbench.benchmark.measure import BASE, LAUNCHED, LLAMA, Figure
from posbench.report.figures.lines import spread
from posbench.report.figures.style import BLACK, GREY, OKABE_ITO, save

BLUE = OKABE_ITO[0]
COLOURS = {PLAIN: BLACK, THEIRS: GREY}


def speed_table(figures: list[Figure], machine: str) -> str:
    """Table of training speed, evaluation time at each length, and memory of every case."""
    lengths = sorted({one.length for one in figures if one.kind == "evaluation"})
    train = {one.case: one for one in figures if one.kind == "training"}
    tested = {(one.case, one.length): one for one in figures if one.kind == "evaluation"}
    lines = [f"# Speed and memory beside plain attention (`{BASE}`)", "", machine, ""]
    lines += ["| | training: tokens/s | of rope's | " + " | ".join(f"time at {length}" for length in lengths) + " | MiB at each length |"]
    lines += ["| :--- | ---: | ---: |" + " ---: |" * len(lengths) + " :--- |"]
    for case in dict.fromkeys(one.case for one in figures if one.kind in ("training", "evaluation")):
        step = train.get(case)
        cells = [f"{step.tokens_per_second:,.0f}", f"{1 / step.ratio:.2f}"] if step else ["", ""]
        found = [tested.get((case, length)) for length in lengths]
        cells += ["" if one is None else one.note if one.ratio is None else f"{one.ratio:.2f}" for one in found]
        cells.append(" ".join("-" if one is None or one.mib is None else f"{one.mib:.1f}" for one in found))
        lines.append(f"| {case} | " + " | ".join(cells) + " |")
    lines += ["", "Time: of one evaluation pass over 8,192 tokens, as a ratio to the base case in the same rounds (below 1 is faster)."]
    lines += ["MiB: tensors that live at once while one window of each length is read, weights aside."]
    lines += _beside_transformers(figures)
    return "\n".join(lines) + "\n"


def _beside_transformers(figures: list[Figure]) -> list[str]:
    """Table of training steps by vocabulary and length, beside transformers' in the same rounds."""
    steps = {(int(one.kind.split()[1]), one.length, one.case): one for one in figures if one.kind.startswith("trained ")}
    if not steps:
        return []
    lines = ["", f"## A training step beside {LLAMA}", ""]
    launched = any(case == LAUNCHED for *_, case in steps)  # on a GPU, where a step is a graph
    heads = ["vocabulary", "tokens of a sequence", "ms", "theirs", "times as fast", "MiB", "theirs", *["without a graph, ms"] * launched]
    lines += [f"| {' | '.join(heads)} |", "| ---: " * len(heads) + "|"]
    for (vocab, length, case), ours in steps.items():
        if case == BASE:
            theirs = steps[vocab, length, LLAMA]
            cells = f"{1e3 * ours.seconds:.0f} | {1e3 * theirs.seconds:.0f} | {theirs.ratio:.2f} | {ours.mib:.0f} | {theirs.mib:.0f}"
            lines.append(f"| {vocab:,} | {length} | {cells} |" + f" {1e3 * steps[vocab, length, LAUNCHED].seconds:.1f} |" * launched)
    return [*lines, "", "Steps of 2,048 tokens; theirs with torch.optim.Muon and cross_entropy, of the same shape, in the same rounds."]


def draw(figures: list[Figure], stem: Path) -> list[Path]:
    """Draw bars of training speed beside a heat map of evaluation time, as png and svg. Returns their paths."""
    train = sorted((one for one in figures if one.kind == "training"), key=lambda one: one.ratio)
    tested = {(one.case, one.length): one.ratio for one in figures if one.kind == "evaluation" and one.ratio is not None}
    cases, lengths = list(dict.fromkeys(case for case, _ in tested)), sorted({length for _, length in tested})
    canvas = Canvas(figsize=(11, 1.2 + 0.21 * max(len(cases), len(train))), layout="constrained")
    grid = canvas.add_gridspec(2, 2, width_ratios=(1, 1.25), height_ratios=(len(train), max(6, len(cases) - len(train))))
    bars, memory, heat = canvas.add_subplot(grid[0, 0]), canvas.add_subplot(grid[1, 0]), canvas.add_subplot(grid[:, 1])
    ends = _memory(memory, figures)
    bars.barh([one.case for one in train], [1 / one.ratio for one in train], color=BLUE, height=0.7)
    bars.axvline(1, color=GREY, linewidth=0.8, linestyle="--")
    for i, one in enumerate(train):
        bars.text(1 / one.ratio - 0.01, i, f"{1 / one.ratio:.2f}", va="center", ha="right", fontsize=7, color="white")
    bars.set_title("Training speed, rope = 1", fontsize=9, loc="left")
    ratios = [[tested.get((case, length), float("nan")) for length in lengths] for case in cases]
    heat.imshow(ratios, aspect="auto", cmap="RdBu_r", norm=LogNorm(1 / 8, 8))
    for i, line in enumerate(ratios):
        for j, ratio in enumerate(line):
            if ratio == ratio:
                heat.text(j, i, f"{ratio:.2f}", ha="center", va="center", fontsize=6.5, color="white" if not 0.3 < ratio < 3.3 else "black")
    heat.set_xticks(range(len(lengths)), [str(length) for length in lengths])
    heat.set_yticks(range(len(cases)), cases)
    heat.set_xlabel("tokens in the window", fontsize=8)
    heat.set_title("Evaluation time, rope = 1", fontsize=9, loc="left")
    for axes in (bars, memory, heat):
        axes.tick_params(labelsize=7.5, length=0)
        axes.spines[:].set_visible(False)
    bars.set_ylim(len(train) - 0.5, -0.5)
    canvas.draw_without_rendering()  # places the axes, in whose points names are kept apart
    _names(memory, ends)
    return save(canvas, stem)


def _memory(axes, figures: list[Figure]) -> list[tuple[str, int, float]]:
    """Draw a line for each case: MiB of tensors that live while one window is read, by its length.

    Returns the last point of the base and of each case far above it: (case, length, MiB).
    """
    lines: dict[str, list[tuple[int, float]]] = {}
    for one in figures:
        if one.kind == "evaluation" and one.mib:
            lines.setdefault(one.case, []).append((one.length, one.mib))
    base, ends = dict(lines[BASE]), []
    for case, points in lines.items():
        length, mib = points[-1]
        apart = case == BASE or mib > 1.35 * base[length]
        width, zorder = (1.6, 3) if apart else (0.5, 2)
        axes.plot(*zip(*points, strict=True), color=BLUE if case == BASE else GREY, linewidth=width, zorder=zorder)
        if apart:
            ends.append((case, length, mib))
    _octaves(axes, "Memory of one window, MiB", {length: str(length) for length in sorted(base)}, "g")
    axes.margins(x=0.14)
    return ends


def _names(axes, ends: list[tuple[str, int, float]]) -> None:
    """Write the name of each line beside its end, without overlap."""
    points = 72 / axes.figure.dpi
    at = [axes.transData.transform((length, mib))[1] * points for _, length, mib in ends]
    bottom, top = (edge * points for edge in axes.bbox.intervaly)
    for (case, length, mib), own, put in zip(ends, at, spread(at, 8.0, bottom, top), strict=True):
        axes.annotate(case, (length, mib), xytext=(5, put - own), textcoords="offset points", fontsize=7, va="center")


def _octaves(axes, title: str, ticks: dict[int, str], form: str) -> None:
    """Set up axes of octaves over the length, with `ticks` there and numbers of the format `form` beside them."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(list(ticks), ticks.values())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:{form}}")
    axes.minorticks_off()
    axes.set_xlabel("tokens in the window", fontsize=8)
    axes.set_title(title, fontsize=9, loc="left")


def checkpoint_markdown(figures: list[Figure], path: str, machine: str) -> str:
    """Table with a line for each case at each length."""
    lines = [f"# Speed and memory of `{path}`", "", machine, ""]
    lines += ["| tokens in the window | | tokens/s | time, `none` = 1 | time, `transformers` = 1 | MiB |"]
    lines += ["| ---: | :--- | ---: | ---: | ---: | ---: |"]
    measured = [one for one in figures if one.ratio is not None]
    for one in measured:
        of_theirs = "" if one.of_theirs is None else f"{one.of_theirs:.2f}"
        marks = f"{', a token after it' * (one.kind == 'token')}{' (one pass)' * bool(one.note)}"
        cells = [
            f"{one.length:,}",
            one.case + marks,
            f"{one.tokens_per_second:,.{int(one.kind == 'token')}f}",
            f"{one.ratio:.2f}",
            of_theirs,
            f"{one.mib:,.0f}",
        ]
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


def draw_checkpoint(figures: list[Figure], path: str, stem: Path) -> list[Path]:
    """Draw tokens per second and memory of every case by length, as png and svg. Returns their paths."""
    canvas = Canvas(figsize=(10, 4.2), layout="constrained")
    speed, memory = canvas.subplots(1, 2)
    measured = [one for one in figures if one.ratio is not None and one.kind == "checkpoint"]
    cases, lengths = list(dict.fromkeys(one.case for one in measured)), sorted({one.length for one in measured})
    others = iter(OKABE_ITO[:-1] * len(cases))
    for case in cases:
        mine = [one for one in measured if one.case == case]
        colour = COLOURS.get(case) or next(others)
        style = {"color": colour, "marker": "o", "markersize": 4, "linewidth": 1.2, "linestyle": "--" if case == THEIRS else "-"}
        speed.plot([one.length for one in mine], [one.tokens_per_second for one in mine], label=case, **style)
        memory.plot([one.length for one in mine], [one.mib for one in mine], **style)
    for axes, title in ((speed, "Tokens per second"), (memory, "Memory of one window beside the weights, MiB")):
        _octaves(axes, title, {length: f"{length:,}" for length in lengths}, ",.0f")
        axes.grid(color="#dddddd", linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=7.5, length=0)
    canvas.legend(loc="outside right upper", fontsize=8, frameon=False)
    canvas.suptitle(Path(path).name, fontsize=9, x=0.01, ha="left")
    return save(canvas, stem)
