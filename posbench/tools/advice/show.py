"""Output of an advice, from the content of advice.json: text for 80 characters, figure and page."""

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from posbench.common.layout import aligned, wrapped
from posbench.common.quantities import plural
from posbench.report.figures.lines import Line, Mark, Panel, draw_panels
from posbench.report.figures.palette import Pen
from posbench.report.figures.style import (
    DASHES,
    FONT_SIZE,
    GREY,
    MARKERS,
    OKABE_ITO,
    set_up_difference_y,
    set_up_octaves_x,
)
from posbench.report.html_parts import Grid, template
from posbench.tools.advice.decide import CONFIRMED, REFUTED, UNDECIDED
from posbench.tools.advice.plan import CUT, UNCHANGED

FEW_DOCUMENTS = 6  # test documents up to which their number is pointed out
MOST_NAMED = 5  # options that one sentence names at most
VERDICT_SENTENCES = {
    CONFIRMED: "Confirmed by the test documents",
    UNDECIDED: "Undecided, the intervals of the test documents do not tell",
    REFUTED: "Refuted by the test documents",
}
NEXT_BEST_SENTENCES = {
    CONFIRMED: "Better than the next best, {}: {}.",
    UNDECIDED: "Not told apart from the next best, {}: {}.",
    REFUTED: "On the test documents the next best, {}, is better: {}.",
}
REFERENCES = {UNCHANGED: "the model as it is", CUT: "the cut text"}
LINE_LOOKS = tuple(zip(OKABE_ITO, DASHES, MARKERS, strict=True))
CAPTION = (
    "Nats per token with 95 % intervals over documents, on the test documents. Left: up to the"
    " training length (dashed) the loss minus that of the model as it is, beyond it minus that of"
    " the text cut to its last training length of tokens; below 0 the longer text helps. Right:"
    " what a fixed factor costs within the training length. Scales are linear to 0.1 and"
    " logarithmic beyond."
)
Bounds = Sequence[float | None]  # difference, low, high


class FigureLine(NamedTuple):
    """Line of the figure: its name, and [(x, difference)]."""

    name: str
    points: list[tuple[float, Bounds]]


def advice_text(content: dict) -> str:
    """Whole text: the question, the table of the options, an answer for each use, the settings."""
    question = "\n".join(map(wrapped, introduction(content)))
    answers = map(wrapped, all_answers(content))
    return "\n\n".join([question, option_table(content), *answers, *setting_lines(content)])


def introduction(content: dict) -> list[str]:
    """Sentences on the model, the text and the numbers."""
    train_len = f"{content['train_len']:,}"
    texts = content["texts"]
    n_documents = texts["test"]["documents"]
    sentences = [
        f"{content['model']}: trained to {train_len} tokens, asked for {content['target']:,}.",
        (
            f"Chosen on {_size_in_words(texts['validation'])} of validation, judged on"
            f" {_size_in_words(texts['test'])} of test ({content['data']})."
        ),
        (
            f"Differences in nats per token with 95 % intervals over documents: up to {train_len}"
            " tokens to the model as it is (the cost), beyond to the text cut to its last"
            f" {train_len} tokens (below 0: a gain)."
        ),
    ]
    # Of one document there is no interval, as stands behind each difference.
    if 1 < n_documents <= FEW_DOCUMENTS:
        sentences.append(
            f"So few documents as {n_documents} leave wide intervals: a larger budget= gives more"
            " of them, as far as the text has them."
        )
    return sentences


def _size_in_words(size: dict) -> str:
    """Such as "12 documents (1,024 targets)"."""
    return f"{plural(size['documents'], 'document')} ({size['targets']:,} targets)"


def option_table(content: dict) -> str:
    """Table of the options on the test documents, without the text that they are compared to."""
    lengths = [*content["short"], content["target"]]
    rows = [["", *(f"{length:,}" for length in lengths), "usable to"]]
    for option in content["options"]:
        if option["name"] != CUT:
            differences = {point["length"]: point["difference"] for point in option["points"]}
            cells = [with_half_width(differences.get(length)) for length in lengths]
            rows.append([option["name"], *cells, usable_in_words(option["usable"], content)])
    return aligned(rows)


def with_half_width(bounds: Bounds | None) -> str:
    """A difference with half of its interval; 0 where nothing changes.

    >>> with_half_width([-0.051, -0.063, -0.039]), with_half_width(None)
    ('-0.051 +-0.012', '-')
    """
    if bounds is None:
        return "-"
    value, low, high = bounds
    if value is None:
        return "not finite"
    if value == low == high == 0:
        return "0"
    if low is None or high is None:
        return f"{value:+z.3f}"
    return f"{value:+z.3f} +-{(high - low) / 2:.3f}"


def with_interval(bounds: Bounds) -> str:
    """A difference with its interval in brackets, for a sentence.

    None stands for a number that is not finite, which json lacks; z writes no -0.000.
    >>> with_interval([-0.051, -0.063, -0.039])
    '-0.051 [-0.063, -0.039]'
    """
    value, low, high = bounds
    if value is None:
        return "not finite"
    if low is None or high is None:
        return f"{value:+z.3f} (one document: no interval)"
    return f"{value:+z.3f} [{low:+z.3f}, {high:+z.3f}]"


def usable_in_words(usable: dict, content: dict) -> str:
    """Usable length in words: "128", or "128-256" if more than the sure length is possible."""
    surely = f"{usable['surely']:,}" if usable["surely"] else None
    perhaps = f"{usable['perhaps']:,}" if usable["perhaps"] else None
    if surely == perhaps:
        return surely or f"below {min(content['short']):,}"
    return f"{surely or '?'}-{perhaps}"


def all_answers(content: dict) -> list[str]:
    """Sentences for each use.

    The answer for long texts is not repeated where it costs short ones nothing.
    """
    long = content["answers"]["long"]
    both = content["answers"]["both"]
    keys = ("choice", "advised", "verdict", "next_best")
    if not both["costs"] and all(both[key] == long[key] for key in keys):
        for_both = "Both: the same as for long texts."
    else:
        for_both = answer_sentences(content, "both")
    return [answer_sentences(content, "short"), answer_sentences(content, "long"), for_both]


def answer_sentences(content: dict, use: str) -> str:
    """Sentences for one use: the choice, its verdict and the intervals behind it."""
    answer = content["answers"][use]
    choice = answer["choice"]
    advised = answer["advised"]
    sentences = [f"{_use_heading(content, use)}: {advice_in_words(advised, content)}."]
    if advised != choice:
        sentences.append(f"Validation documents chose: {advice_in_words(choice, content)}.")
    differences = _reference_differences(answer)
    evidence = f": {differences}" if differences else ""
    sentences.append(f"{VERDICT_SENTENCES[answer['verdict']]}{evidence}.")
    # A choice for long texts alone may cost anything on short ones, and a reference costs nothing.
    if use == "both" and choice not in REFERENCES:
        sentences.append(_cost_sentence(content, answer))
    next_best = answer["next_best"]
    # Differences to the references, and those of a reference, are among the evidence above.
    if next_best not in (None, *REFERENCES) and choice not in REFERENCES:
        difference = with_interval(answer["against"][next_best])
        sentences.append(NEXT_BEST_SENTENCES[answer["over_next"]].format(next_best, difference))
    if near := _untold_options(answer):
        sentences.append(f"Validation documents do not tell {choice} apart from {near}.")
    # only in the answer for long texts, and None if there is nothing beside the answer to tell
    if best_served := answer.get("served"):
        sentences.append(
            f"The best that engines serve is {best_served['choice']}:"
            f" {_reference_differences(best_served)}."
        )
    return " ".join(sentences)


def _use_heading(content: dict, use: str) -> str:
    """Words for a use with its lengths, which begin its answer."""
    headings = {
        "short": f"Short texts (to {content['train_len']:,} tokens)",
        "long": f"Long texts ({content['target']:,} tokens)",
        "both": "Both",
    }
    return headings[use]


def _cost_sentence(content: dict, answer: dict) -> str:
    """Sentence on the cost of a choice in short texts."""
    costs = []
    for length, difference in answer["costs"].items():
        costs.append(f"{with_interval(difference)} at {int(length):,} tokens")
    # Without costs its losses up to the training length are those of the model as it is.
    if not costs:
        return f"It costs nothing up to {content['train_len']:,} tokens."
    return f"{answer['choice']} costs {', '.join(costs)}; {content['tolerance']:g} is tolerated."


def _untold_options(answer: dict) -> str:
    """Options not told from the choice by validation: "pi (+0.002), ntk (+0.004) and 1 more".

    The numbers are their losses minus the choice's, in nats per token. References and the next best
    are named elsewhere.
    """
    untold = []
    for name, (difference, _low, _high) in answer.get("near", {}).items():
        if name not in (*REFERENCES, answer["next_best"]):
            untold.append(f"{name} ({difference:+z.3f})")
    more = f" and {len(untold) - MOST_NAMED} more" if len(untold) > MOST_NAMED else ""
    return ", ".join(untold[:MOST_NAMED]) + more


def _reference_differences(answer: dict) -> str:
    """Differences of an answer's choice to the two options without a setting.

    If the choice is one of these two, also that to the next best, the only other entry of
    `against`, since its verdict counts that too.
    """
    differences = []
    for name, bounds in answer["against"].items():
        if name in REFERENCES or answer["choice"] in REFERENCES:
            differences.append(f"{with_interval(bounds)} to {REFERENCES.get(name, name)}")
    return ", ".join(differences)


def advice_in_words(name: str, content: dict) -> str:
    """An option as a thing to do."""
    if name == UNCHANGED:
        return "leave the model as it is"
    if name == CUT:
        train_len = f"{content['train_len']:,}"
        return f"leave the model as it is and cut the text to its last {train_len} tokens"
    return name  # a setting, such as "yarn x4"


def setting_lines(content: dict) -> list[str]:
    """Settings of the options that are advised, and the options that were left out."""
    parts = []
    for name, setting in content["settings"].items():
        lines = [f"To set {name}:"]
        if setting["rope_parameters"]:
            lines.append(f"  rope_parameters: {setting['json']}")
            for engine, words in setting["engines"].items():
                cannot = "" if words["serves"] else "cannot: "
                lines.append(f"  {engine}: {cannot}{words['words']}")
            lines += [f"  {line}" for line in setting["files"]]
        else:
            lines.append(wrapped(setting["reason"], "  "))
        parts.append("\n".join(lines))
    left_out = content["left_out"].items()
    if left_out:
        parts.append("\n".join(wrapped(f"left out: {name}: {why}") for name, why in left_out))
    return parts


def advice_page(content: dict, drawing: Markup) -> str:
    """HTML of the whole page. Equal content gives equal text."""
    return template("advice.html").render(
        content=content,
        drawing=drawing,
        asked=introduction(content),
        answers=all_answers(content),
        results=_results_grid(content),
        factors=_factors_grid(content),
        search=_search_grid(content),
    )


def _results_grid(content: dict) -> Grid:
    """Loss and difference of every option at every length."""
    options = content["options"]
    lengths = sorted({point["length"] for option in options for point in option["points"]})
    rows = []
    for option in options:
        cells = dict.fromkeys(lengths, "-")
        for point in option["points"]:
            cells[point["length"]] = f"{_loss_cell(point['nll'])} ({_difference_cell(point)})"
        # No usable length for the cut text, which others are compared with.
        usable = "" if option["name"] == CUT else usable_in_words(option["usable"], content)
        rows.append([option["name"], *cells.values(), usable])
    columns = ["option", *(f"{length:,}" for length in lengths), "usable to"]
    return Grid(columns, rows, numeric=range(1, len(lengths) + 1))


def _factors_grid(content: dict) -> Grid:
    """Cost of every fixed factor at short lengths."""
    costs = [f"cost at {length:,}" for length in content["short"]]
    rows = []
    for option in content["factors"]:
        cells = map(_difference_cell, option["points"])
        rows.append([option["family"], f"{option['factor']:g}", *cells])
    return Grid(["method", "factor", *costs], rows, numeric=range(1, 2 + len(costs)))


def _search_grid(content: dict) -> Grid:
    """Validation loss of every option at every length."""
    lengths = sorted({int(length) for option in content["search"] for length in option["nll"]})
    rows = []
    for option in content["search"]:
        # "-": not measured at this length
        cells = [_loss_cell(option["nll"].get(str(length), "-")) for length in lengths]
        rows.append([option["name"], *cells])
    columns = ["option", *(f"{length:,}" for length in lengths)]
    return Grid(columns, rows, numeric=range(1, len(columns)))


def _difference_cell(point: dict) -> str:
    """Cell of a difference with half of its interval, with the sign that HTML has for it."""
    return with_half_width(point["difference"]).replace("+-", "\u00b1")


def _loss_cell(value: float | str | None) -> str:
    """Cell of a loss; a text, for one that was not measured, stays."""
    if isinstance(value, str):
        return value
    return "not finite" if value is None else f"{value:.3f}"


def advice_figure(content: dict):
    """Changes by each option against the length, beside the costs of fixed factors, if any."""
    changes = []
    for option in content["options"]:
        if option["name"] != CUT:
            points = [(point["length"], point["difference"]) for point in option["points"]]
            changes.append(FigureLine(option["name"], points))
    panels = [_panel_of(changes, "tokens of text", dashed_at=content["train_len"])]
    if costs := factor_lines(content):
        panels.append(_panel_of(costs, "factor", dashed_at=1))  # factor 1: the model as it is
    title = f"What each setting changes in {_short_name(content['model'])}"
    return draw_panels(title, [panels], [CAPTION])


def _short_name(model: str) -> str:
    """Name of a checkpoint without its folder, wheel and ending.

    "wheel@1.2:Model.Q4_1.gguf" -> "Model.Q4_1".
    """
    return re.split(r"[/:]", model.rstrip("/"))[-1].removesuffix(".gguf")


def factor_lines(content: dict) -> list[FigureLine]:
    """Costs of the fixed factors of each family at each short length, by factor.

    Factor 1 is the model as it is and costs nothing.
    """
    lines = []
    for family, group in itertools.groupby(content["factors"], lambda option: option["family"]):
        options = list(group)
        for length in content["short"]:
            points = [(1.0, [0.0, 0.0, 0.0])]
            for option in options:
                for point in option["points"]:
                    if point["length"] == length:
                        points.append((option["factor"], point["difference"]))
            lines.append(FigureLine(f"{family} at {length:,}", points))
    return lines


def _panel_of(lines: list[FigureLine], label: str, dashed_at: int) -> Panel:
    """Panel of lines over lengths or factors, with a dashed line at one of these."""
    xs = sorted({place for line in lines for place, _ in line.points})
    values = []
    drawn_lines = []
    for line, (colour, dash, marker) in zip(lines, itertools.cycle(LINE_LOOKS), strict=False):
        marks = []
        for place, bounds in line.points:
            values += [value for value in bounds if value is not None]
            difference, low, high = bounds
            if difference is not None:  # None: not finite
                marks.append(Mark(place, difference, low, high))
        if marks:
            drawn_lines.append(Line(line.name, marks, Pen(colour, dash, marker)))

    def scales(axes) -> None:
        set_up_octaves_x(axes, xs, dashed_at)
        axes.set_xticks(xs, list(map(_tick_label, xs)))
        set_up_difference_y(axes, values)
        axes.axhline(0, color=GREY, linewidth=0.8)
        axes.set_xlabel(label, fontsize=FONT_SIZE)

    return Panel("", drawn_lines, scales)


def _tick_label(place: float) -> str:
    """Label of a length, which is whole, or of a factor."""
    return f"{place:.6g}" if isinstance(place, float) else str(place)
