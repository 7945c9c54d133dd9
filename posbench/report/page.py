"""Report as one HTML page: figures, tables that sort, the source of each number, and the differences between trainings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from posbench.report import context_loss as context
from posbench.report.context_loss import Step
from posbench.report.html import LACKING, NUMBER, Markup, document, escape, items, link, svg, table
from posbench.report.points import Placed, Point, section_of
from posbench.report.references import gains, ladders, reference
from posbench.report.tables import METHOD, Table, file, number, tables
from posbench.runs.evaluation import Evaluation
from posbench.runs.origins import ABSENT, Origin, differing, settings

if TYPE_CHECKING:
    from posbench.report.report import Report


FIGURES = {
    "context": "Loss by context", "curve": "Loss by length", "position": "Loss by position",
    "heatmap": "Methods and lengths", "differences": "Intervals",
}  # fmt: skip


def page(report: Report, figures: Sequence[Mapping[str, Sequence[Path]]], inside: Sequence[Sequence[Path]] = ()) -> str:
    """HTML of the whole page. `figures` comes from figures.draw for the report's sections, `inside` from figures.context_loss.

    Equal input gives equal text.
    """
    anchors = {path: f"run-{index}" for index, path in enumerate(report.origins)}
    known = gains(report.evaluations)
    heads, inner = headings(report.sections), [f"Inside the window: {text}" for text in headings(report.contexts)]
    contents = [_entry(f"context-{index}", text, ["context"]) for index, text in enumerate(inner)]
    contents += [_entry(f"section-{index}", text, figures[index]) for index, text in enumerate(heads)]
    contents += [f"<li>{link('trainings', 'Trainings')}</li>", f"<li>{link('differences', 'What tells them apart')}</li>"]
    parts = [f"<h1>{escape(report.title)}</h1>", _summary(report), f"<nav><ul>{''.join(contents)}</ul></nav>"]
    for index, section in enumerate(report.contexts):
        parts.append(_inside(report, section, inner[index], inside[index], index, anchors, known))
    for index, curve in enumerate(report.sections):
        parts.append(_section(report, curve, heads[index], figures[index], index, anchors, known))
    return document(report.title, "\n".join([*parts, _trainings(report, anchors), _differences(report, anchors)]))


def _entry(anchor: str, text: str, figures: Iterable[str]) -> str:
    """Entry of a section in the table of contents, with its figures and tables."""
    inner = [*((f"{anchor}-{kind}", FIGURES[kind]) for kind in figures), (f"{anchor}-tables", "Tables")]
    return f"<li>{link(anchor, text)}<ul>{''.join(f'<li>{link(*place)}</li>' for place in inner)}</ul></li>"


def _summary(report: Report) -> str:
    counts = [(len(report.origins), "training"), (len(report.evaluations), "evaluation"), (len(report.rows), "row")]
    said = ", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts)
    return f'<p class="said">{said}. A click on the head of a column sorts by it.</p>\n{items(report.notes)}'


def headings(found: Sequence[Sequence[Placed]]) -> list[str]:
    """Headings of the sections: protocol, training length and corpus, and what else differs between sections alike in these."""
    short = [f"{section[0].protocol}, trained at {section[0].train_len}, {section[0].data}" for section in found]
    parts = [[section[0].tokenizer, *(section[0].setting or "no setting").split(", ")] for section in found]
    result = []
    for text, own in zip(short, parts, strict=True):
        alike = [other for head, other in zip(short, parts, strict=True) if head == text]
        telling = [part for part in own if not all(part in other for other in alike)]
        result.append(": ".join([text, ", ".join(telling)] if telling else [text]))
    return result


def _inside(
    report: Report, section: list[Step], heading: str, figure: Sequence[Path], index: int, anchors: dict[Path, str], known: dict
) -> str:
    """Figure and table of loss against context, and the evaluations behind them."""
    behind: dict[tuple, list[Evaluation]] = {}
    own: list[Evaluation] = []
    for ladder in ladders(report.evaluations).values():
        first = ladder[min(ladder)]
        if section_of(first) == section[0].section:
            behind.setdefault((report.label(first.first)[0] + file(first.source),), []).append(first)
            own += [ladder[tokens] for tokens in sorted(ladder)]
    shown = context.table(section)
    parts = [f'<h2 id="context-{index}">{escape(heading)}</h2>']
    parts += [
        _drawn("context", f"context-{index}-context", figure, f"c{index}-", report.title),
        f'<span id="context-{index}-tables"></span>',
    ]
    parts += [f"<h3>{escape(shown.title)}</h3>", _results(shown, behind, anchors), _said(context.below(section))]
    return "\n".join([*parts, _sources(own, report.label, anchors, known)])


def _drawn(kind: str, anchor: str, figure: Sequence[Path], prefix: str, title: str) -> str:
    text = svg(figure[1].read_text(encoding="utf-8"), prefix, f"{FIGURES[kind]}: {title}")
    return f'<h3 id="{anchor}">{FIGURES[kind]}</h3>\n<div class="wide">{text}</div>'


def _said(lines: Iterable[str]) -> str:
    return items(map(_signs, [*lines, "seeds: each leads to its training"]))


def _section(report: Report, curve: list[Point], heading: str, figures: Mapping, index: int, anchors: dict[Path, str], known: dict) -> str:
    """Figures and tables of a section, the lines below them, and the evaluations behind them."""
    own = [evaluation for evaluation in report.evaluations if section_of(evaluation) == curve[0].section]
    behind: dict[tuple, list[Evaluation]] = {}
    for evaluation in own:
        encoding, *rest = report.label(evaluation.first)
        behind.setdefault((encoding + file(evaluation.source), *rest), []).append(evaluation)
    parts = [f'<h2 id="section-{index}">{escape(heading)}</h2>']
    parts += [_drawn(kind, f"section-{index}-{kind}", pair, f"f{index}-{kind}-", report.title) for kind, pair in figures.items()]
    parts.append(f'<span id="section-{index}-tables"></span>')
    for shown in tables(curve):
        parts += [f"<h3>{escape(shown.title)}</h3>", _results(shown, behind, anchors)]
    colours = ["colours: green below the floor, orange above it, grey where zero lies inside the interval; the deeper the further"]
    parts.append(_said(report.below(curve) + colours * any(point.half_width is not None for point in curve)))
    return "\n".join([*parts, _sources(own, report.label, anchors, known)])


def _results(shown: Table, behind: dict[tuple, list[Evaluation]], anchors: dict[Path, str]) -> Markup:
    rows = []
    for row in shown.rows:
        method = tuple(cell.removesuffix(" *") for cell in row[: shown.names])
        links = [link(anchors[evaluation.origin], evaluation.first["seed"]) for evaluation in behind.get(method, [])]
        rows.append([*map(_signs, row), Markup(" ".join(links))])
    return table([*shown.columns, "seeds"], rows, numeric=range(shown.names, len(shown.columns)), tinted=True)


def _signs(text: str) -> str:
    return text.replace("+-", "\u00b1")


def _sources(own: list[Evaluation], label, anchors: dict[Path, str], known: dict) -> Markup:
    rows = []
    for evaluation in own:
        first, found = evaluation.first, known.get(evaluation.key)
        gate = "unknown" if found is None else "ok" if found.ok else "failed"
        kind = {"floor": " (the floor)", "half": " (half the window, for G)"}.get(reference(first), "")
        encoding, extension, scale = label(first)
        lengths = ", ".join(map(str, dict.fromkeys(row["length"] for row in evaluation.rows)))
        commits = ", ".join(dict.fromkeys(row["commit"] or "outside git" for row in evaluation.rows))
        training = link(anchors[evaluation.origin], first["run_id"])
        values = (encoding, extension + kind, scale, first["seed"], training, first["eval_id"])
        rows.append([*values, commits, number(found.value) if found else "-", gate, lengths])
    columns = [*METHOD, "seed", "training", "evaluation", "commit of the evaluation", "G", "gate", "lengths"]
    return Markup(f"<details><summary>Where each number comes from</summary>\n{table(columns, rows, numeric=(3, 7))}\n</details>")


def _trainings(report: Report, anchors: dict[Path, str]) -> str:
    """Table with the provenance of every training."""
    seeds: dict[Path, dict[str, None]] = {}
    for evaluation in report.evaluations:
        seeds.setdefault(evaluation.origin, {})[str(evaluation.first["seed"])] = None
    columns = ["training", "seed", "commit", "machine", "threads", "torch", "data fingerprint", "parameters", "started", "folder"]
    rows = []
    for path, origin in report.origins.items():
        said = origin.provenance
        changed = f" + changes {said['dirty_diff']}" if said.get("dirty_diff") else ""
        machine = ", ".join(str(said[name]) for name in ("device", "platform") if said.get(name))
        name, commit = Markup(f'<span id="{anchors[path]}">{escape(path.name)}</span>'), str(said.get("commit") or "unknown")[:12] + changed
        values = (
            said.get("threads", "-"),
            origin.versions.get("torch", "-"),
            origin.fingerprint[:16] or "unknown",
            said.get("n_parameters", "-"),
        )
        rows.append([name, ", ".join(seeds[path]), commit, machine or "unknown", *values, said.get("started", "-"), path])
    shown = table(columns, rows, numeric=(1, 4, 7))
    return (
        f'<h2 id="trainings">Trainings</h2>\n<p class="said">As their provenance.json says; - and unknown where it does not.</p>\n{shown}'
    )


def _differences(report: Report, anchors: dict[Path, str]) -> str:
    """Table of the configuration keys that differ between trainings. The more numerous of keys and trainings are its rows."""
    heading = '<h2 id="differences">What tells the trainings apart</h2>\n'
    origins: list[Origin] = [origin for origin in report.origins.values() if origin.config]
    unread = len(report.origins) - len(origins)
    missing = f'<p class="said">{unread} of {len(report.origins)} trainings have no config.yaml that can be read.</p>\n' if unread else ""
    found = differing([settings(origin) for origin in origins])
    if len(origins) < 2 or not found:
        only = (
            "There is one configuration to read." if len(origins) == 1 else "Nothing: their configurations are the same." if origins else ""
        )
        return f"{heading}{missing}<p>{only}</p>"
    said = (
        f'<p class="said">{len(found)} keys of the configurations differ; those that are the same in all are left out, and so are '
        f"those that say where files lie or what was evaluated. {escape(ABSENT)}: the configuration has no such key.</p>\n"
    )
    names = [link(anchors[origin.path], origin.path.name) for origin in origins]
    columns, rows = ["training", *found], [list(row) for row in zip(names, *found.values(), strict=True)]
    if len(found) > len(origins):
        columns, rows = ["key", *names], [[key, *values] for key, values in found.items()]
    numeric = [index for index in range(1, len(columns)) if all(NUMBER.match(row[index]) or row[index] in LACKING for row in rows)]
    return heading + missing + said + table(columns, rows, numeric)
