"""Output of an identification: text for a terminal, a CSV and a figure, from the content of identify.json alone."""

import csv
import io
import textwrap
from collections.abc import Mapping, Sequence

from posbench.common.files import finite
from posbench.identify.compare import IS, NONE, ROUNDING, UNTOLD, Comparison, SettingVerdict
from posbench.identify.plan import Candidate
from posbench.report.figures.lines import width
from posbench.report.figures.style import FONT, GREY, MARKERS, OKABE_ITO, Frame, note

TERMINAL, MOST_NAMED, MOST_LENGTHS = 80, 4, 3
ROW, ACROSS = 14, 300  # points
AS_WRITTEN = ("pi", "ntk", "yarn", "llama3", "dynamic_ntk", "own")  # right where that was asked for
COLUMNS = ("candidate", "words", "length", "n_targets", "difference", "low", "high", "rms", "correlation")
CAPTION = (
    "Root mean square of the differences of single tokens' losses between the engine and each candidate, which posbench computed from the "
    f"weights. The dashed line, {ROUNDING:g} nats, is above what rounding does within the training length."
)


def identify_content(
    about: dict,
    verdict: SettingVerdict,
    compared: Mapping[str, Sequence[Comparison]],
    equal: Mapping[str, Sequence[Candidate]],
    left_out: dict,
) -> dict:
    """Content of identify.json: every number of the comparison, None for one that is not finite. `about` has the engine and the weights."""
    found = []
    for name in verdict.order:
        points = [
            {
                "length": one.length,
                "n_targets": one.mean.n_targets,
                "mean": [one.mean.value, *one.mean.interval()],
                "rms": one.rms,
                "correlation": one.correlation,
            }
            for one in compared[name]
        ]
        same = {one.name: one.words for one in equal[name][1:]}
        found.append({"name": name, "words": equal[name][0].words, "same": same, "rms": verdict.rms[name], "points": points})
    about |= {"kind": verdict.kind, "best": verdict.best, "untold": verdict.untold, "why": verdict.why}
    about |= {"rms_within": verdict.within, "explained": verdict.explained, "candidates": found, "left_out": left_out}
    about["verdict"] = verdict_sentence(about)
    return finite(about)


def verdict_sentence(made: dict) -> str:
    """The verdict in words, with the numbers behind it."""
    best, *others = made["candidates"]
    if made["kind"] == NONE:
        count = sum(1 + len(one["same"]) for one in made["candidates"])
        nearest = f"The nearest is {best['words']}, at {best['rms']:#.3g} nats rms for each token"
        return f"None of {count} candidates: {made['why']}. {nearest}."
    if made["kind"] == UNTOLD:
        words = [one["words"] for one in others if one["name"] in made["untold"]]
        more = [f"{len(words) - MOST_NAMED} more"] if len(words) > MOST_NAMED else []
        apart = " from ".join([best["words"], " or ".join([*words[:MOST_NAMED], *more])])
        return f"Cannot tell {apart} by these texts: let the engine read longer ones, or more of them. {_evidence(best)}."
    said, same = f"This engine runs {best['words']}{' as written' * (best['name'] in AS_WRITTEN)}", ", ".join(best["same"])
    if best["name"] == "none" and same:
        said = f"This engine's losses are those of {best['words']}, the same at these lengths as {same}: let it read longer texts"
    elif best["name"] == "none":
        said = f"This engine ignores the setting: its losses are those of {best['words']}"
    elif same:
        said += f" (at these lengths the same as {same})"
    return f"{said}. {_evidence(best)}; the next, {others[0]['words']}, by {others[0]['rms']:#.3g} rms."


def _evidence(best: dict) -> str:
    """Distance of the best candidate at the longest length."""
    point = best["points"][-1]
    mean = f"{point['mean'][0]:+.4f} nats in the mean and {point['rms']:#.3g} rms for each token"
    return f"At {point['length']:,} tokens its losses differ from posbench's by {mean}"


def identify_text(made: dict) -> str:
    """Whole text: what was compared, the verdict, the table of the candidates, those left out."""
    left_out = [_wrapped(f"left out: {name}: {why}") for name, why in made["left_out"].items()]
    return "\n\n".join([_wrapped(made["asked"]), _wrapped(made["verdict"]), candidate_table(made), *left_out])


def _wrapped(said: str) -> str:
    return textwrap.fill(said, TERMINAL, break_long_words=False, break_on_hyphens=False)


def candidate_table(made: dict) -> str:
    """Table of the candidates, the nearest first: rms at a few lengths, mean difference and correlation at the longest."""
    every = made["lengths"]
    lengths = every if len(every) <= MOST_LENGTHS else [every[0], *every[1 - MOST_LENGTHS :]]
    rows = [["nats/token", *(f"rms {length}" for length in lengths), f"mean {every[-1]}", "corr."]]
    for one in made["candidates"]:
        points = {point["length"]: point for point in one["points"]}
        last = points[every[-1]]
        value, low, high = last["mean"]
        half = f" +-{(high - low) / 2:.4f}" if low is not None and high is not None else ""
        correlation = "-" if last["correlation"] is None else f"{last['correlation']:.3f}"
        rows.append([one["name"], *(f"{points[length]['rms']:.4f}" for length in lengths), f"{value:+.4f}{half}", correlation])
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join([row[0].ljust(wide[0]), *map(str.rjust, row[1:], wide[1:])]).rstrip() for row in rows)


def candidate_csv(made: dict) -> str:
    """A row for each candidate and length."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in made["candidates"]:
        for point in one["points"]:
            numbers = [point["length"], point["n_targets"], *point["mean"], point["rms"], point["correlation"]]
            writer.writerow([one["name"], one["words"], *("" if number is None else repr(number) for number in numbers)])
    return lines.getvalue()


def candidate_figure(made: dict):
    """Rms of every candidate on a logarithmic axis, a mark for each length, the nearest on top."""
    rows, lengths = made["candidates"], made["lengths"]
    margin = max(width(one["words"], FONT, "bold") for one in rows) + 12
    frame = Frame(f"{made['name']}: the setting that it runs", margin + ACROSS, 24 + ROW * len(rows) + 62)
    axes = frame.axes(margin, 24, ACROSS, ROW * len(rows))
    known = sorted({point["rms"] for one in rows for point in one["points"]})
    zero = next((rms for rms in known if rms), 1.0) / 2 if not known[0] else 0.0  # place of 0
    for index, length in enumerate(lengths):
        places = [next(point["rms"] for point in one["points"] if point["length"] == length) or zero for one in rows]
        look = {"marker": MARKERS[index % len(MARKERS)], "color": OKABE_ITO[index % len(OKABE_ITO)]}
        axes.plot(places, range(len(rows)), linestyle="", markersize=4.5, label=f"{length:,} tokens", **look)
    axes.set_xscale("log")
    for axis in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        axis(lambda value, _: ("0" if value <= zero else f"{value:g}") if f"{value:e}"[0] in "125" else "")
    axes.set(ylim=(len(rows) - 0.5, -0.5), yticks=[])
    axes.axvline(ROUNDING, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    axes.grid(axis="y", visible=False)
    axes.tick_params(which="both", labelsize=FONT, color=GREY)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel("rms of differences, nats per token", fontsize=FONT)
    for index, one in enumerate(rows):
        axes.axhline(index, color="#e6e6e6", linewidth=0.6, zorder=0)
        bold = {"fontweight": "bold"} if made["kind"] == IS and one["name"] == made["best"] else {}
        note(axes, one["words"], (0, index), (-margin + 4, 0), xycoords=("axes fraction", "data"), va="center", fontsize=FONT, **bold)
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=len(lengths), frameon=False, fontsize=FONT, borderaxespad=0.2, handletextpad=0.1
    )
    frame.caption([made["verdict"], CAPTION], up=26, least=90)
    return frame.figure
