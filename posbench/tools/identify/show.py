"""Output of an identification: text for a terminal, a CSV and a figure, from the content of
identify.json alone.
"""

from collections.abc import Mapping, Sequence

from posbench.common.files import finite
from posbench.common.layout import aligned, wrapped
from posbench.report.figures.lines import width
from posbench.report.figures.style import FONT, GREY, MARKERS, OKABE_ITO, Frame, note
from posbench.tools.identify.compare import IS, NONE, ROUNDING, UNTOLD
from posbench.tools.identify.plan import Candidate

MOST_NAMED, MOST_LENGTHS = 4, 3
ROW, ACROSS = 14, 300  # points
AS_WRITTEN = ("pi", "ntk", "yarn", "llama3", "dynamic_ntk", "own")  # right where that was asked for
COLUMNS = (
    "candidate",
    "words",
    "length",
    "n_targets",
    "difference",
    "low",
    "high",
    "rms",
    "correlation",
)
CAPTION = (
    "Root mean square of the differences of single tokens' losses between the engine and each"
    f" candidate, which posbench computed from the weights. The dashed line, {ROUNDING:g} nats, is"
    " above what rounding does within the training length."
)


def identify_content(
    about: dict,
    judged: dict,
    rms: Mapping[str, float],
    points: Mapping[str, list[dict]],
    equal: Mapping[str, Sequence[Candidate]],
) -> dict:
    """Content of identify.json: every number of the comparison, None for one that is not finite.
    `about` has the engine and the weights.

    `judged` and `rms` are of `judge_setting`, `points` of `compare_losses`; `equal` has the
    candidates with those of the same losses."""
    found = []
    for name, value in rms.items():
        first, *same = equal[name]
        told = {"name": name, "words": first.words, "same": {one.name: one.words for one in same}}
        found.append({**told, "rms": value, "points": points[name]})
    made = finite({**about, **judged, "candidates": found})
    return {**made, "verdict": verdict_sentence(made)}


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
        return (
            f"Cannot tell {apart} by these texts: let the engine read longer ones, or more of them."
            f" {_evidence(best)}."
        )
    said, same = (
        f"This engine runs {best['words']}{' as written' * (best['name'] in AS_WRITTEN)}",
        ", ".join(best["same"]),
    )
    if best["name"] == "none" and same:
        said = (
            f"This engine's losses are those of {best['words']}, the same at these lengths as"
            f" {same}: let it read longer texts"
        )
    elif best["name"] == "none":
        said = f"This engine ignores the setting: its losses are those of {best['words']}"
    elif same:
        said += f" (at these lengths the same as {same})"
    return (
        f"{said}. {_evidence(best)}; the next, {others[0]['words']}, by"
        f" {others[0]['points'][-1]['rms']:#.3g} rms."
    )


def _evidence(best: dict) -> str:
    """Distance of the best candidate at the longest length."""
    point = best["points"][-1]
    mean = f"{point['mean'][0]:+z.4f} nats in the mean and {point['rms']:#.3g} rms for each token"
    return f"At {point['length']:,} tokens its losses differ from posbench's by {mean}"


def identify_text(made: dict) -> str:
    """Whole text: what was compared, the verdict, the table of the candidates, those left out."""
    left_out = [wrapped(f"left out: {name}: {why}") for name, why in made["left_out"].items()]
    return "\n\n".join(
        [wrapped(made["asked"]), wrapped(made["verdict"]), candidate_table(made), *left_out]
    )


def candidate_table(made: dict) -> str:
    """Table of the candidates, the nearest first: rms at a few lengths, mean difference and
    correlation at the longest.
    """
    every = made["lengths"]
    lengths = every if len(every) <= MOST_LENGTHS else [every[0], *every[1 - MOST_LENGTHS :]]
    rows = [["nats/token", *(f"rms {length}" for length in lengths), f"mean {every[-1]}", "corr."]]
    for one in made["candidates"]:
        points = {point["length"]: point for point in one["points"]}
        last = points[every[-1]]
        value, low, high = last["mean"]
        half = f" +-{(high - low) / 2:.4f}" if low is not None and high is not None else ""
        correlation = "-" if last["correlation"] is None else f"{last['correlation']:.3f}"
        rows.append(
            [
                one["name"],
                *(f"{points[length]['rms']:.4f}" for length in lengths),
                f"{value:+z.4f}{half}",
                correlation,
            ]
        )
    return aligned(rows)


def candidate_csv(made: dict) -> str:
    """A row for each candidate and length."""
    import pandas

    rows = [
        [
            one["name"],
            one["words"],
            point["length"],
            point["n_targets"],
            *point["mean"],
            point["rms"],
            point["correlation"],
        ]
        for one in made["candidates"]
        for point in one["points"]
    ]
    return pandas.DataFrame(rows, columns=COLUMNS).to_csv(index=False)


def candidate_figure(made: dict):
    """Rms of every candidate on a logarithmic axis, a mark for each length, the nearest on top."""
    rows, lengths = made["candidates"], made["lengths"]
    margin = max(width(one["words"], FONT, "bold") for one in rows) + 12
    frame = Frame(
        f"{made['name']}: the setting that it runs", margin + ACROSS, 24 + ROW * len(rows) + 62
    )
    axes = frame.axes(margin, 24, ACROSS, ROW * len(rows))
    least = min(
        (point["rms"] for one in rows for point in one["points"] if point["rms"]), default=1.0
    )
    for index, length in enumerate(lengths):
        places = [
            next(point["rms"] for point in one["points"] if point["length"] == length)
            for one in rows
        ]
        look = {"marker": MARKERS[index % len(MARKERS)], "color": OKABE_ITO[index % len(OKABE_ITO)]}
        axes.plot(
            places,
            range(len(rows)),
            linestyle="",
            markersize=4.5,
            label=f"{length:,} tokens",
            **look,
        )
    axes.set_xscale("symlog", linthresh=least, linscale=0.3, subs=[2, 5])  # logarithmic, but for 0
    for axis in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        axis(lambda value, _: f"{value:g}")
    axes.set(ylim=(len(rows) - 0.5, -0.5), yticks=[])
    axes.axvline(ROUNDING, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    axes.grid(axis="y", visible=False)
    axes.tick_params(which="both", labelsize=FONT, color=GREY)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel("rms of differences, nats per token", fontsize=FONT)
    for index, one in enumerate(rows):
        axes.axhline(index, color="#e6e6e6", linewidth=0.6, zorder=0)
        bold = {"fontweight": "bold"} if made["kind"] == IS and one["name"] == made["best"] else {}
        note(
            axes,
            one["words"],
            (0, index),
            (-margin + 4, 0),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=FONT,
            **bold,
        )
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=len(lengths),
        frameon=False,
        fontsize=FONT,
        borderaxespad=0.2,
        handletextpad=0.1,
    )
    frame.caption([made["verdict"], CAPTION], up=26, least=90)
    return frame.figure
