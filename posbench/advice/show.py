"""Advice for a terminal of 80 characters and as an HTML page, from the content of advice.json alone."""

import textwrap
from collections.abc import Sequence

from markupsafe import Markup

from posbench.advice.decide import CUT, PLAIN
from posbench.advice.verdicts import CONFIRMED, REFUTED, UNDECIDED
from posbench.report.html import Grid, template

WIDTH = 80
FEW = 6  # test documents up to which their number is pointed out
NAMED = 5  # options that one sentence names at most
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
COMPARED = {PLAIN: "the model as it is", CUT: "the cut text"}
Bounds = Sequence[float | None]


def terminal(content: dict) -> str:
    """Whole text: what was asked, the table of the options, an answer for each use, what to set."""
    said = map(wrapped, answers(content))
    return "\n\n".join(["\n".join(map(wrapped, question(content))), table(content), *said, *notes(content)])


def question(content: dict) -> list[str]:
    """Sentences on the model, the text and what the numbers are."""
    texts, train_len = content["texts"], f"{content['train_len']:,}"
    judged = texts["test"]["documents"]
    few = f"So few documents as {judged} leave wide intervals: a larger budget= gives more of them, as far as the text has them."
    return [
        f"{content['model']}: trained to {train_len} tokens, asked for {content['target']:,}.",
        f"Chosen on {_texts(texts['validation'])} of validation, judged on {_texts(texts['test'])} of test ({content['data']}).",
        "Differences in nats per token with 95 % intervals over documents: up to "
        f"{train_len} tokens to the model as it is (the cost), beyond to the text cut to its last {train_len} tokens (below 0: a gain).",
        *([few] if 1 < judged <= FEW else []),
    ]


def _texts(counted: dict) -> str:
    return f"{counted['documents']} document{'s' * (counted['documents'] != 1)} ({counted['targets']:,} targets)"


def table(content: dict) -> str:
    """Table of the options on the test documents, without the cut text, to which they are compared."""
    lengths, rows = [*content["short"], content["target"]], []
    for option in shown(content):
        known = {point["length"]: point["difference"] for point in option["points"]}
        rows.append([option["name"], *(interval(known.get(length)) for length in lengths), reach(option["usable"], content)])
    rows = [["", *(f"{length:,}" for length in lengths), "usable to"], *rows]
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    padded = [[row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))] for row in rows]
    return "\n".join("  ".join(row).rstrip() for row in padded)


def shown(content: dict) -> list[dict]:
    """Options with numbers of their own."""
    return [option for option in content["options"] if option["name"] != CUT]


def interval(bounds: Bounds | None) -> str:
    """A difference with half of its interval: -0.051 +-0.012; 0 where nothing changes."""
    if bounds is None:
        return "-"
    value, low, high = bounds
    if value is None:
        return "not finite"
    if value == low == high == 0:
        return "0"
    return f"{value:+.3f}" + (f" +-{(high - low) / 2:.3f}" if low is not None and high is not None else "")


def within(bounds: Bounds) -> str:
    """A difference with its interval in brackets, for a sentence."""
    value, low, high = bounds
    if value is None:
        return "not finite"
    return f"{value:+.3f} " + (f"[{low:+.3f}, {high:+.3f}]" if low is not None and high is not None else "(one document: no interval)")


def reach(usable: dict, content: dict) -> str:
    """Usable length in words: what is sure, and what is possible if that is more."""
    surely, perhaps = (f"{usable[key]:,}" if usable[key] else None for key in ("surely", "perhaps"))
    if surely == perhaps:
        return surely or f"below {min(content['short']):,}"
    return f"{surely or '?'}-{perhaps}"


def answers(content: dict) -> list[str]:
    """Sentences for each use. What is best for long texts and costs short ones nothing is said once."""
    found = content["answers"]
    same = all(found["both"][key] == found["long"][key] for key in ("choice", "advised", "verdict", "next_best"))
    told = [answer(content, use) for use in ("short", "long")]
    return [*told, "Both: the same as for long texts." if same and not found["both"]["costs"] else answer(content, "both")]


def answer(content: dict, use: str) -> str:
    """Sentences for one use: the choice, its verdict and the intervals behind it."""
    found, train_len = content["answers"][use], f"{content['train_len']:,}"
    heads = {"short": f"Short texts (to {train_len} tokens)", "long": f"Long texts ({content['target']:,} tokens)", "both": "Both"}
    free = found["choice"] in (PLAIN, CUT)
    against = [f"{within(one)} to {COMPARED[name]}" for name, one in found["against"].items() if name in COMPARED]
    verdict = f"{VERDICTS[found['verdict']]}{': ' * bool(against)}{', '.join(against)}."
    chosen = [] if found["advised"] == found["choice"] else [f"Validation documents chose: {to_do(found['choice'], content)}."]
    said = [f"{heads[use]}: {to_do(found['advised'], content)}.", *chosen, verdict]
    if use == "both" and not free:
        costs = [f"{within(one)} at {int(length):,} tokens" for length, one in found["costs"].items()]
        costly = f"{found['choice']} costs {', '.join(costs)}; {content['tolerance']:g} is tolerated."
        said.append(costly if costs else f"It costs nothing up to {train_len} tokens.")
    if found["next_best"] not in (None, PLAIN, CUT):
        said.append(OVER_NEXT[found["over_next"]].format(found["next_best"], within(found["against"][found["next_best"]])))
    near = {name: one for name, one in found.get("near", {}).items() if name not in (PLAIN, CUT, found["next_best"])}
    if near:
        named = ", ".join(f"{name} ({one[0]:+.3f})" for name, one in list(near.items())[:NAMED])
        more = f" and {len(near) - NAMED} more" if len(near) > NAMED else ""
        said.append(f"Validation documents do not tell {found['choice']} apart from {named}{more}.")
    if served := found.get("served"):
        told = [f"{within(one)} to {COMPARED[name]}" for name, one in served["against"].items() if name in COMPARED]
        said.append(f"The best that engines serve is {served['choice']}: {', '.join(told)}.")
    return " ".join(said)


def to_do(name: str, content: dict) -> str:
    """An option as a thing to do."""
    cut = f"leave the model as it is and cut the text to its last {content['train_len']:,} tokens"
    return {PLAIN: "leave the model as it is", CUT: cut}.get(name, name)


def notes(content: dict) -> list[str]:
    """Settings of the options that are advised, and the options that were left out."""
    parts = []
    for name, one in content["settings"].items():
        lines = [f"To set {name}:"]
        if one["rope_parameters"]:
            lines.append(f"  rope_parameters: {one['json']}")
            lines += [f"  {engine}: {'' if told['serves'] else 'cannot: '}{told['words']}" for engine, told in one["engines"].items()]
            lines += [f"  {line}" for line in one["files"]]
        else:
            lines.append(wrapped(one["reason"], "  "))
        parts.append("\n".join(lines))
    if content["left_out"]:
        parts.append("\n".join(wrapped(f"left out: {name}: {why}") for name, why in content["left_out"].items()))
    return parts


def wrapped(text: str, indent: str = "") -> str:
    """Text in lines of at most 80 characters."""
    return "\n".join(textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False))


def page(content: dict, drawing: Markup) -> str:
    """HTML of the whole page. Equal content gives equal text."""
    grids = {"results": _results(content), "factors": _factors(content), "search": _search(content)}
    return template("advice.html").render(content=content, drawing=drawing, asked=question(content), answers=answers(content), **grids)


def _results(content: dict) -> Grid:
    lengths = sorted({point["length"] for option in content["options"] for point in option["points"]})
    rows = []
    for option in content["options"]:
        points = {point["length"]: point for point in option["points"]}
        told = [f"{_loss(points[n]['nll'])} ({_difference(points[n])})" if n in points else "-" for n in lengths]
        rows.append([option["name"], *told, "" if option["name"] == CUT else reach(option["usable"], content)])
    return Grid(["option", *(f"{length:,}" for length in lengths), "usable to"], rows, range(1, len(lengths) + 1))


def _factors(content: dict) -> Grid:
    found = sorted(content["factors"], key=lambda one: (one["family"], one["factor"]))
    rows = [[one["family"], f"{one['factor']:g}", *map(_difference, one["points"])] for one in found]
    return Grid(["method", "factor", *(f"cost at {length:,}" for length in content["short"])], rows, range(1, 2 + len(content["short"])))


def _search(content: dict) -> Grid:
    lengths = sorted({int(length) for one in content["search"] for length in one["nll"]})
    rows = [[one["name"], *(_loss(one["nll"].get(str(length), "-")) for length in lengths)] for one in content["search"]]
    return Grid(["option", *(f"{length:,}" for length in lengths)], rows, range(1, len(lengths) + 1))


def _difference(point: dict) -> str:
    return interval(point["difference"]).replace("+-", "\u00b1")


def _loss(value: float | str | None) -> str:
    return value if isinstance(value, str) else "not finite" if value is None else f"{value:.3f}"
