"""The explore page: one HTML file that draws what its reader chooses of a report's points, without network.

Observable Plot draws (templates/vendor: 0.6.17 with d3 7.9.2, ISC, unchanged from npm, 0.49 MB). Compared on one page of 48 lines: uPlot
(0.05 MB) draws on a canvas, so that SVG files, names for screen readers and panels would be ours to write; altair, bokeh and plotly take
32 to 84 MB installed or 1 to 5 MB a page. Plot makes SVG with panels, log and symlog axes, evaluates no text, and is kept by those of d3.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from markupsafe import Markup

from posbench.common.defuse import printable
from posbench.common.files import finite
from posbench.report.explore_data import content
from posbench.report.figures.style import DASHES, OKABE_ITO
from posbench.report.html import template
from posbench.report.page import Sources
from posbench.report.report import Report

TEMPLATES = files("posbench.report") / "templates"
LIBRARIES = ("d3", "plot")
OWN = ("crossed.js", "explore_points.js", "explore_choice.js", "explore_figure.js", "explore_page.js")  # each uses those before it
WIDTH = 1.6  # of a line, the unit of DASHES


def explore_page(title: str, reports: Mapping[str, Report], notes: Sequence[str] = ()) -> str:
    """HTML of the page of one report, named "", or of several, whose names tell their lines apart. Equal input gives equal text."""
    title = str(printable(title))
    shown = finite(content(title, reports, notes))
    shown["palette"] = {"colours": OKABE_ITO, "dashes": [_dash(one) for one in DASHES]}
    data = json.dumps(shown, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    vendored = [f"/*\n{_text(f'vendor/{name}.LICENSE')}*/\n{_text(f'vendor/{name}.min.js')}" for name in LIBRARIES]
    scripts = [Markup(text) for text in (*vendored, *map(_text, OWN))]
    trainings = [Sources(report, f"run-{number}").trainings() for number, report in enumerate(reports.values())]
    every = replace(trainings[0], rows=[row for one in trainings for row in one.rows])
    return template("explore.html").render(title=title, data=Markup(data), scripts=scripts, trainings=every)


def _dash(dash: object) -> str:
    return "none" if dash == "-" else ",".join(f"{WIDTH * part:g}" for part in dash[1])


def _text(name: str) -> str:
    return Path(str(TEMPLATES / name)).read_text(encoding="utf-8")
