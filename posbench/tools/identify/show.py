"""Output of an identification, from the content of identify.json: text, a CSV and a figure."""

from collections.abc import Mapping, Sequence

from posbench.common.files import nan_as_none
from posbench.common.layout import aligned, wrapped
from posbench.report.figures.lines import text_width
from posbench.report.figures.style import FONT_SIZE, GREY, MARKERS, OKABE_ITO, Frame, write_note
from posbench.tools.identify.compare import (
    CANNOT_TELL,
    IDENTIFIED,
    MOST_ROUNDING,
    NONE_OF_THEM,
    Verdict,
)
from posbench.tools.identify.plan import Candidate

MOST_NAMED = 4  # candidates that a sentence names
MOST_LENGTHS = 3  # columns of the table
# Points of the figure.
ROW_HEIGHT = 14
PLOT_WIDTH = 300
HEAD_HEIGHT = 24
BELOW_HEIGHT = 62
NAME_MARGIN = 12  # beside the longest name
NAME_OFFSET = 4  # of names from the left edge
CAPTION_HEIGHT = 26  # of the first line of the caption
CAPTION_CHARACTERS = 90  # of a line of the caption, at least
# Candidates that do what a setting says, with the factor asked for: without a mistake, if that
# method was asked for. The sentence of the others names the mistake.
RIGHT_WHEN_ASKED = (
    "pi",
    "ntk",
    "yarn",
    "llama3",
    "dynamic_ntk",
    "own",
)
CSV_COLUMNS = (
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
    f" candidate, which posbench computed from the weights. The dashed line, {MOST_ROUNDING:g}"
    " nats, is above what rounding does within the training length."
)


def identify_content(
    about: dict,
    verdict: Verdict,
    points: Mapping[str, list[dict]],
    equal: Mapping[str, Sequence[Candidate]],
) -> dict:
    """Content of identify.json: every number of the comparison, None for one that is not finite.

    `about` has the engine and the weights, `points` are of `compare_losses`; `equal` has the
    candidates with those of the same losses.
    """
    candidates = []
    for name, rms in verdict.rms.items():
        first, *same = equal[name]
        candidates.append(
            {
                "name": name,
                "words": first.words,
                "same": {candidate.name: candidate.words for candidate in same},
                "rms": rms,
                "points": points[name],
            }
        )
    content = nan_as_none({**about, **verdict.in_json, "candidates": candidates})
    return {**content, "verdict": verdict_sentence(content)}


def verdict_sentence(content: dict) -> str:
    """The verdict in words, with the numbers behind it."""
    best, *others = content["candidates"]
    if content["kind"] == NONE_OF_THEM:
        count = sum(1 + len(candidate["same"]) for candidate in content["candidates"])
        nearest = f"The nearest is {best['words']}, at {best['rms']:#.3g} nats rms for each token"
        return f"None of {count} candidates: {content['why']}. {nearest}."
    if content["kind"] == CANNOT_TELL:
        return (
            f"Cannot tell {best['words']} from {_untold_words(content)} by these texts: let the"
            f" engine read longer ones, or more of them. {_evidence_sentence(best)}."
        )
    runner_up = others[0]
    return (
        f"{_identified_sentence(best)}. {_evidence_sentence(best)}; the next,"
        f" {runner_up['words']}, by {runner_up['points'][-1]['rms']:#.3g} rms."
    )


def _untold_words(content: dict) -> str:
    """Candidates that are not told from the best, such as "YaRN with factor 4 or 3 more"."""
    words = []
    for candidate in content["candidates"][1:]:
        if candidate["name"] in content["untold"]:
            words.append(candidate["words"])
    if len(words) > MOST_NAMED:
        words = [*words[:MOST_NAMED], f"{len(words) - MOST_NAMED} more"]
    return " or ".join(words)


def _identified_sentence(best: dict) -> str:
    """Sentence on the one candidate that the engine runs, without its full stop."""
    same = ", ".join(best["same"])
    if best["name"] == "none":
        if same:
            return (
                f"This engine's losses are those of {best['words']}, the same at these lengths as"
                f" {same}: let it read longer texts"
            )
        return f"This engine ignores the setting: its losses are those of {best['words']}"
    sentence = f"This engine runs {best['words']}"
    if best["name"] in RIGHT_WHEN_ASKED:
        sentence += " as written"
    if same:
        sentence += f" (at these lengths the same as {same})"
    return sentence


def _evidence_sentence(best: dict) -> str:
    """Distance of the best candidate at the longest length."""
    point = best["points"][-1]
    mean = f"{point['mean'][0]:+z.4f} nats in the mean and {point['rms']:#.3g} rms for each token"
    return f"At {point['length']:,} tokens its losses differ from posbench's by {mean}"


def identify_text(content: dict) -> str:
    """Whole text: what was compared, the verdict, the table of the candidates, those left out."""
    parts = [wrapped(content["asked"]), wrapped(content["verdict"]), candidate_table(content)]
    for name, reason in content["left_out"].items():
        parts.append(wrapped(f"left out: {name}: {reason}"))
    return "\n\n".join(parts)


def candidate_table(content: dict) -> str:
    """Table of the candidates, the nearest first.

    Its columns are rms at a few lengths, and mean difference and correlation at the longest.
    """
    lengths = content["lengths"]
    longest = lengths[-1]
    if len(lengths) > MOST_LENGTHS:  # the shortest, and the longest ones
        lengths = [lengths[0], *lengths[1 - MOST_LENGTHS :]]
    rows = [["nats/token", *(f"rms {length}" for length in lengths), f"mean {longest}", "corr."]]
    for candidate in content["candidates"]:
        points = {point["length"]: point for point in candidate["points"]}
        last = points[longest]
        rms = [f"{points[length]['rms']:.4f}" for length in lengths]
        correlation = "-" if last["correlation"] is None else f"{last['correlation']:.3f}"
        rows.append([candidate["name"], *rms, _mean_with_half_width(last["mean"]), correlation])
    return aligned(rows)


def _mean_with_half_width(bounds: Sequence[float | None]) -> str:
    """Such as "-0.0123 +-0.0045" of [mean, low, high]."""
    mean, low, high = bounds
    if low is None or high is None:
        return f"{mean:+z.4f}"
    return f"{mean:+z.4f} +-{(high - low) / 2:.4f}"


def candidate_csv(content: dict) -> str:
    """A row for each candidate and length."""
    import pandas

    rows = []
    for candidate in content["candidates"]:
        for point in candidate["points"]:
            rows.append(
                [
                    candidate["name"],
                    candidate["words"],
                    point["length"],
                    point["n_targets"],
                    *point["mean"],
                    point["rms"],
                    point["correlation"],
                ]
            )
    return pandas.DataFrame(rows, columns=CSV_COLUMNS).to_csv(index=False)


def candidate_figure(content: dict):
    """Rms of every candidate on a logarithmic axis, a mark for each length, the nearest on top."""
    rows = content["candidates"]
    margin = max(text_width(row["words"], FONT_SIZE, "bold") for row in rows) + NAME_MARGIN
    height = ROW_HEIGHT * len(rows)
    title = f"{content['name']}: the setting that it runs"
    frame = Frame(title, margin + PLOT_WIDTH, HEAD_HEIGHT + height + BELOW_HEIGHT)
    axes = frame.axes(margin, HEAD_HEIGHT, PLOT_WIDTH, height)
    _draw_marks(axes, content)
    _draw_scales(axes, rows)
    for index, row in enumerate(rows):
        axes.axhline(index, color="#e6e6e6", linewidth=0.6, zorder=0)
        style = {"xycoords": ("axes fraction", "data"), "va": "center", "fontsize": FONT_SIZE}
        if content["kind"] == IDENTIFIED and row["name"] == content["best"]:
            style["fontweight"] = "bold"
        write_note(axes, row["words"], (0, index), (-margin + NAME_OFFSET, 0), **style)
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=len(content["lengths"]),
        frameon=False,
        fontsize=FONT_SIZE,
        borderaxespad=0.2,
        handletextpad=0.1,
    )
    frame.caption([content["verdict"], CAPTION], up=CAPTION_HEIGHT, least=CAPTION_CHARACTERS)
    return frame.figure


def _draw_marks(axes, content: dict) -> None:
    """Draw the rms of each candidate, a mark for each length in a colour of its own."""
    rows = content["candidates"]
    for index, length in enumerate(content["lengths"]):
        rms = []
        for row in rows:
            rms += [point["rms"] for point in row["points"] if point["length"] == length]
        axes.plot(
            rms,
            range(len(rows)),
            linestyle="",
            marker=MARKERS[index % len(MARKERS)],
            color=OKABE_ITO[index % len(OKABE_ITO)],
            markersize=4.5,
            label=f"{length:,} tokens",
        )


def _draw_scales(axes, rows: Sequence[dict]) -> None:
    """A scale that is logarithmic but for 0, and the dashed line of rounding."""
    positive = [point["rms"] for row in rows for point in row["points"] if point["rms"]]
    # Linear from 0 to the smallest value, over 0.3 decades, so that 0 has a place of its own.
    axes.set_xscale("symlog", linthresh=min(positive, default=1.0), linscale=0.3, subs=[2, 5])
    axes.xaxis.set_major_formatter(_tick_label)
    axes.xaxis.set_minor_formatter(_tick_label)
    axes.set(ylim=(len(rows) - 0.5, -0.5), yticks=[])
    axes.axvline(MOST_ROUNDING, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    axes.grid(axis="y", visible=False)
    axes.tick_params(which="both", labelsize=FONT_SIZE, color=GREY)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel("rms of differences, nats per token", fontsize=FONT_SIZE)


def _tick_label(value: float, _: int) -> str:
    return f"{value:g}"
