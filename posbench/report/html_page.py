"""Report as one HTML page: figures, tables that sort, the source of each number, and the
differences between trainings.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from posbench.report.html_parts import LACKING, NUMBER, Grid, anchored, link, svg, template
from posbench.report.method_words import source_suffix
from posbench.report.records import SectionKey, grouped
from posbench.report.references import reference
from posbench.report.table_formats import METHOD, Table
from posbench.report.tables import number
from posbench.results.bundle import shown_folder
from posbench.results.evaluation import Evaluation
from posbench.results.run_metadata import ABSENT, differing, training_settings

if TYPE_CHECKING:
    from posbench.report.report import Report

KINDS = ("context", "tasks", "section")  # of parts, in their order
FIGURES = {
    "context": "Loss by context", "accuracy": "Accuracy by length", "map": "Accuracy by method and length",
    "depth": "Accuracy by length and depth", "curve": "Loss by length", "position": "Loss by position",
    "heatmap": "Methods and lengths", "differences": "Intervals", "gain": "Loss by G and training length",
    "steps": "Loss by steps of fine-tuning", "accuracy_steps": "Accuracy by steps of fine-tuning",
    "floors": "Loss and floor by steps of training", "frontier": "Loss at one length by training length",
}  # fmt: skip
COLOURS = (
    "colours: green below {}, orange above it, grey where zero lies inside the interval; the deeper"
    " the further"
)


def page(report: "Report", drawn: Iterable[Mapping[str, Sequence[Path]]]) -> str:
    """HTML of the whole page, equal for equal input. `drawn`: the figures of each part, {key of
    FIGURES: png and svg}.
    """
    sources, parts = Sources(report), []
    headed = [
        head
        for kind in KINDS
        for head in headings([part.points for part in report.parts if part.kind == kind])
    ]
    for part, figures, heading in zip(report.parts, drawn, headed, strict=True):
        kind, anchor = part.kind, f"{part.kind}-{sum(one['kind'] == part.kind for one in parts)}"
        wide = kind == "section" and part.points[0].window
        known = kind == "section" and any(
            (one.change_half_width if wide else one.half_width) is not None for one in part.points
        )
        colour = [COLOURS.format("the loss without extension" if wide else "the floor")] * known
        parts.append({
            "kind": kind,
            "anchor": anchor,
            "heading": f"Inside the window: {heading}" if kind == "context" else heading,
            "figures": {
                name: svg(path.read_text(encoding="utf-8"), f"{anchor}-{name}-", f"{FIGURES[name]}: {report.title}")
                for name, (_, path) in figures.items()
            },
            "tables": [sources.results(table, part.evaluations) for table in part.tables],
            "lines": [_signs(line) for line in [*part.lines, *colour, "seeds: each leads to its training"]],
            "evaluations": sources.evaluations(part.evaluations),
        })  # fmt: skip
    readable = [origin for origin in report.origins.values() if origin.config]
    found = differing([training_settings(origin) for origin in readable])
    names = [link(origin.path.name, sources.anchors[origin.path]) for origin in readable]
    told = {
        "trainings": sources.trainings(),
        "readable": readable,
        "differences": differences(names, found),
        "absent": ABSENT,
    }
    return template("page.html").render(
        report=report, titles=FIGURES, parts=parts, differing=found, **told
    )


def headings(found: Sequence[Sequence[SectionKey]]) -> list[str]:
    """Headings of the sections: protocol, training length and corpus, and what else differs between
    sections alike in these.
    """
    short = [
        f"{section[0].protocol}, trained at {section[0].train_len}, {section[0].data}"
        for section in found
    ]
    settings = [section[0].behind.setting for section in found]
    parts = [
        [section[0].tokenizer, *getattr(one, "parts", [one or "no setting"])]
        for section, one in zip(found, settings, strict=True)
    ]
    result = []
    for text, own in zip(short, parts, strict=True):
        alike = [other for head, other in zip(short, parts, strict=True) if head == text]
        telling = [part for part in own if not all(part in other for other in alike)]
        result.append(": ".join([text, ", ".join(telling)] if telling else [text]))
    return result


class Sources:
    """Trainings and evaluations behind a report, and the links from each number to them."""

    def __init__(self, report: "Report", anchor: str = "run"):
        self.report = report
        self.anchors = {path: f"{anchor}-{index}" for index, path in enumerate(report.origins)}

    def results(self, table: Table, own: list[Evaluation]) -> Grid:
        """Table of the report, with a link to each training behind a row."""
        links: dict[tuple, dict[Markup, None]] = defaultdict(dict)
        for evaluation in own:
            encoding, *rest = self.report.label(evaluation.first)
            method = (encoding + source_suffix(evaluation.source), *rest)[: table.names]
            links[method][link(evaluation.first["seed"], self.anchors[evaluation.origin])] = None
        rows = []
        for row in table.rows:
            method = tuple(cell.text for cell in row[: table.names])
            rows.append(
                [
                    *(replace(cell, interval=_signs(cell.interval)) for cell in row),
                    Markup(" ").join(links[method]),
                ]
            )
        return Grid(
            [*table.columns, "seeds"], rows, range(table.names, len(table.columns)), table.title
        )

    def evaluations(self, own: list[Evaluation]) -> Grid:
        rows = []
        for evaluation in own:
            first, found = evaluation.first, self.report.references.gains.get(evaluation.key)
            kind = {"floor": " (the floor)", "half": " (half the window, for G)"}.get(
                reference(first), ""
            )
            encoding, extension, scale = self.report.label(first)
            training = link(first["run_id"], self.anchors[evaluation.origin])
            commits = ", ".join(
                dict.fromkeys(row["commit"] or "outside git" for row in evaluation.rows)
            )
            gain, gate = (
                (number(found.value), "ok" if found.lower > 0 else "failed")
                if found
                else ("-", "unknown")
            )
            lengths = ", ".join(map(str, dict.fromkeys(row["length"] for row in evaluation.rows)))
            names = (encoding, extension + kind, scale)
            rows.append(
                [*names, first["seed"], training, first["eval_id"], commits, gain, gate, lengths]
            )
        columns = [
            *METHOD,
            "seed",
            "training",
            "evaluation",
            "commit of the evaluation",
            "G",
            "gate",
            "lengths",
        ]
        return Grid(columns, rows, numeric=(3, 7))

    def trainings(self) -> Grid:
        rows, evaluations = [], grouped(self.report.evaluations, lambda one: one.origin)
        for path, origin in self.report.origins.items():
            said = origin.provenance
            changed = f" + changes {said['dirty_diff']}" if said.get("dirty_diff") else ""
            commit = str(said.get("commit") or "unknown")[:12] + changed
            machine = ", ".join(
                str(said[name]) for name in ("device", "processor", "platform") if said.get(name)
            )
            versions = (
                said.get("threads", "-"),
                origin.versions.get("torch", "-"),
                origin.fingerprint[:16] or "unknown",
            )
            about = (
                commit,
                machine or "unknown",
                *versions,
                said.get("n_parameters", "-"),
                said.get("started", "-"),
                shown_folder(path),
            )
            seeds = dict.fromkeys(str(one.first["seed"]) for one in evaluations.get(path, ()))
            rows.append([anchored(path.name, self.anchors[path]), ", ".join(seeds), *about])
        columns = [
            "training",
            "seed",
            "commit",
            "machine",
            "threads",
            "torch",
            "data fingerprint",
            "parameters",
            "started",
            "folder",
        ]
        return Grid(columns, rows, numeric=(1, 4, 7))


def differences(names: Sequence[Markup], found: Mapping[str, Sequence[str]]) -> Grid:
    """Table of {key: its value in each of the trainings `names`}. The more numerous of keys and
    trainings are its rows.
    """
    columns, rows = (
        ["training", *found],
        [list(row) for row in zip(names, *found.values(), strict=True)],
    )
    if len(found) > len(names):
        columns, rows = ["key", *names], [[key, *values] for key, values in found.items()]
    numeric = [
        index
        for index in range(1, len(columns))
        if all(NUMBER.match(row[index]) or row[index] in LACKING for row in rows)
    ]
    return Grid(columns, rows, numeric)


def _signs(text: str) -> str:
    return text.replace("+-", "\u00b1")
