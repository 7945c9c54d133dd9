"""Advice as one HTML page, from the content of advice.json alone: answers, curves, settings and the tables behind them."""

from __future__ import annotations

from markupsafe import Markup

from posbench.report import advice_text as words
from posbench.report.html import Grid, template

Cell = float | str | None


def page(content: dict, drawing: Markup) -> str:
    """HTML of the whole page. Equal content gives equal text."""
    told = {"results": _results(content), "factors": _factors(content), "search": _search(content)}
    said = {"asked": words.question(content), "answers": words.answers(content)}
    return template("advice.html").render(content=content, drawing=drawing, **said, **told)


def _results(content: dict) -> Grid:
    lengths = sorted({point["length"] for option in content["options"] for point in option["points"]})
    rows = []
    for option in content["options"]:
        points = {point["length"]: point for point in option["points"]}
        told = [f"{_loss(points[n]['nll'])} ({_difference(points[n])})" if n in points else "-" for n in lengths]
        rows.append([option["name"], *told, "" if option["name"] == words.CUT else words.reach(option["usable"], content)])
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
    return words.interval(point["difference"]).replace("+-", "\u00b1")


def _loss(value: Cell) -> str:
    return value if isinstance(value, str) else "not finite" if value is None else f"{value:.3f}"
