"""Folder of a report: rows.csv, curve.csv and other numbers, evidence, tables, figures and a page;
and the check of one.
"""

import contextlib
import io
import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from posbench.common.csv_records import to_csv
from posbench.common.files import read_bytes, write_atomic
from posbench.evaluation.registry import find_protocol
from posbench.report.explore import explore_page
from posbench.report.figures.registry import OVERALL_KIND, figures_of, kind_of, report_figures
from posbench.report.figures.style import write_figure
from posbench.report.figures.uncertainty import INTERVAL
from posbench.report.frame import RECORD_TYPES
from posbench.report.html_page import report_html
from posbench.report.ranks import MethodRank
from posbench.report.records import CurvePoint, SectionKey
from posbench.report.report import Report, collect_report
from posbench.report.seed_marks import MARK_PATTERN
from posbench.report.step_points import VALIDATION
from posbench.results.consistency import row_faults
from posbench.results.evidence import write_evidence
from posbench.results.hashes import (
    HASHES,
    MISSING,
    altered_files,
    has_hashes,
    hashes_of,
    write_hashes,
)
from posbench.results.run_metadata import Training, training_records
from posbench.runs.rows import write_csv

EXPLORE, PAGE, RANKS = "explore.html", "report.html", "ranks.csv"
FILES_OF_EVERY_REPORT = {  # files of every report
    *("rows.csv", "sums.npz", "documents.csv", "configs.jsonl"),
    *("curve.csv", "trainings.csv", "table.md", "table.tex"),
}
FILES_OF_SOME_REPORTS = {"context.csv", "accuracy.csv", "position.csv", f"{VALIDATION}.csv", RANKS}
RETIRED_FIGURES = ("causes",)  # a figure of earlier versions


def texts_by_file(report: Report) -> dict[str, str]:
    """Files of numbers and tables by name, without rows.csv and the evidence."""
    names = {  # {run_id: label of its encoding}, without those of extension and scale_attention
        evaluation.first["run_id"]: report.label(evaluation.first)[0]
        for evaluation in report.evaluations
    }
    texts = {
        "trainings.csv": to_csv(training_records(report.origins.values(), names), Training),
        "curve.csv": to_csv(itertools.chain(*report.sections), CurvePoint),
        "table.md": report.markdown(),
        "table.tex": report.latex(),
    }
    if report.ranks:
        texts[RANKS] = to_csv(report.ranks, MethodRank)
    of_some = {
        "position": report.stretches.values(),
        "context": report.contexts,
        "accuracy": report.scores,
        VALIDATION: report.validations,
    }
    for name, sections in of_some.items():
        if sections:
            texts[f"{name}.csv"] = to_csv(itertools.chain(*sections), RECORD_TYPES[name])
    return texts


def write_report(report: Report, out_dir: Path | str, bars: str = INTERVAL) -> list[Path]:
    """Write a report's rows, curve, tables, figures and page into `out_dir`, delete an older
    report's figures, and return the files. `bars` of figures are a word of `uncertainty.BARS`.

    The last one is the list of their hashes, without which nothing vouches for a report that was
    not written to its end."""
    import matplotlib

    out_dir = Path(out_dir)
    with contextlib.suppress(OSError):  # writing the first file says what cannot be written
        (out_dir / HASHES).unlink()  # it vouches for the older report
    texts = texts_by_file(report)
    write_csv(report.rows, out_dir / "rows.csv")
    evidence = write_evidence(out_dir, report.evaluations, report.origins)
    for name, text in texts.items():
        write_atomic(out_dir / name, text)
    drawn = []
    with matplotlib.rc_context({"text.parse_math": False}):  # dollar signs in names are text
        for sections in (report.contexts, report.scores, report.sections, report.validations):
            drawn += draw_sections(sections, out_dir, report.title, bars)
    written = [out_dir / name for name in ("rows.csv", *texts)] + evidence
    for figures in drawn:
        written += itertools.chain(*figures.values())
    if (out_dir / PAGE).exists():  # else pictures there are not those of a report
        _delete_older(out_dir, written)
    write_atomic(out_dir / EXPLORE, explore_page(report.title, {"": report}))
    write_atomic(out_dir / PAGE, report_html(report, drawn))
    written += [out_dir / EXPLORE, out_dir / PAGE]
    return [*written, write_hashes(out_dir, (path.name for path in written))]


def _delete_older(out_dir: Path, written: Collection[Path]) -> None:
    """Delete the figures and numbers of an older report that the new one does not have."""
    for path in out_dir.iterdir():
        if path not in written and _may_be_lacking(path.name):
            path.unlink()


def _may_be_lacking(name: str) -> bool:
    """True for a file that some reports have and others lack, such as heatmap-2.svg."""
    image = re.fullmatch(r"(\w+)(-\d+)?\.(png|svg)", name)
    if image is None:
        return name in FILES_OF_SOME_REPORTS
    return image[1] in (*RETIRED_FIGURES, *(figure.name for figure in report_figures()))


def rewrite_hashes(folder: Path) -> None:
    """Write the list of hashes of a folder's files of a report again, if it is not that: for
    committed folders, whose files are chosen.
    """
    names = sorted(path.name for path in folder.iterdir())
    contents = {
        name: read_bytes(folder / name)
        for name in names
        if name in FILES_OF_EVERY_REPORT or _may_be_lacking(name)  # of the report, no others
    }
    text = hashes_of(contents)
    if not has_hashes(folder) or read_bytes(folder / HASHES) != text:
        write_atomic(folder / HASHES, text)


def draw_sections(
    sections: Sequence[Sequence[SectionKey]],
    out_dir: Path | str,
    title: str,
    bars: str = INTERVAL,
) -> list[dict[str, list[Path]]]:
    """Draw every section of points, steps or scores. Returns {name: its png and svg} for each
    section.

    The first section of points has those of OVERALL_KIND too. The first section of a kind gives
    curve.png and curve.svg, further ones curve-2.png and so on. Equal input gives equal bytes."""
    drawn = []
    counts = Counter()
    for section in sections:
        kind = kind_of(section)
        counts[kind] += 1
        ending = f"-{counts[kind]}" if counts[kind] > 1 else ""
        drawn.append(_draw_kind(kind, section, Path(out_dir), title, bars, ending))
    points = [point for section in sections for point in section if isinstance(point, CurvePoint)]
    if points:  # a call has sections of one kind, so all of these are of points
        drawn[0] |= _draw_kind(OVERALL_KIND, points, Path(out_dir), title, bars)
    return drawn


def _draw_kind(
    kind: str,
    records: Sequence[SectionKey],
    out_dir: Path,
    title: str,
    bars: str,
    ending: str = "",
) -> dict[str, list[Path]]:
    """{name: png and svg} of the figures of a kind that show something."""
    files = {}
    for report_figure in figures_of(kind):
        figure = report_figure.drawn(records, title, bars)
        if figure:
            name = report_figure.name
            files[name] = write_figure(figure, out_dir / f"{name}{ending}")
    return files


def disagreements(folder: Path, report: Report | None = None) -> list[str]:
    """Faults of a folder of evidence, in words: its files are those that the report wrote, and each
    table is what rows and sums give.

    Raises RunError if rows, sums, documents and configurations do not hold together
    (posbench/results/consistency.py)."""
    report = report or collect_report([], title="", command="report.py", evidence=[folder])
    # A folder of an earlier version has no ranks, which is no fault.
    report = replace(report, ranked=(folder / RANKS).is_file())
    altered = altered_files(folder).items()
    return [
        # A committed folder lacks some files on purpose; that evidence is missing is an error.
        *(f"{name} {fault}" for name, fault in altered if fault != MISSING),
        *_faults_of_rows(report),
        *_faults_of_tables(folder, report),
    ]


def _faults_of_rows(report: Report) -> Iterator[str]:
    """Rows that do not follow from their sums, or lack them."""
    for evaluation in report.evaluations:
        protocol = find_protocol(evaluation.first["protocol"])
        # False for the papers' scripts: they weigh tokens unequally, so no sums give their means.
        paired = getattr(protocol, "paired", True)
        for row in evaluation.rows:
            nll = evaluation.sums(row, "nll")
            yield from row_faults(row, nll, evaluation.sums(row, "correct"))
            if nll is None and paired and not evaluation.lacks_stored_losses(row):
                yield f"{row['run_id']} {row['protocol']} {row['length']}: nll without sums"


def _faults_of_tables(folder: Path, report: Report) -> Iterator[str]:
    """Tables of a folder that are not what rows and sums give; table.tex is left out."""
    for name, text in texts_by_file(report).items():
        path = folder / name
        stored = read_bytes(path).decode(errors="replace") if path.is_file() else ""
        if name.endswith(".csv") and not _same_csv(text, stored):
            yield f"{name} is not what rows and sums give"
        if name == "table.md" and not _same_tables(text, stored):
            yield f"{name} is not what rows and sums give"


def _same_tables(text: str, stored: str) -> bool:
    """True if two texts of table.md have the same lines, all but the title and notes."""
    lines = set(map(_without_marks, text.partition("\n")[2].splitlines()))
    stored_lines = set(map(_without_marks, stored.splitlines()))
    of_tables = {line for line in stored_lines if line.startswith(("|", "- ", "**"))}
    return of_tables <= lines <= {*stored_lines, ""}


def _without_marks(line: str) -> str:
    """Line of table.md without what versions write otherwise: seeds of a mean, a resolved beta,
    half of G's interval or its error.
    """
    if re.match(r"- \[(seeds? |\d+ seed)", line):  # a line that explains marks of seeds
        return ""
    line = re.sub(r",? ?beta=\S+ \(null; \S+ is published\)", "", MARK_PATTERN.sub("", line))
    return re.sub(r"^(- G .* bring \S+) \+- \S+ nats/token(?: \(s\.e\.\))?", r"\1 nats/token", line)


def _same_csv(text: str, stored: str) -> bool:
    """True if two CSVs have the same lines in any order, numbers to 1e-9. A stored one may lack
    columns that came later.
    """
    import pandas

    try:
        stored_table = pandas.read_csv(io.StringIO(stored))
        columns = list(stored_table.columns)
        table = pandas.read_csv(io.StringIO(text))[columns]
        pandas.testing.assert_frame_equal(
            table.sort_values(columns, ignore_index=True),
            stored_table.sort_values(columns, ignore_index=True),
            rtol=1e-9,
            atol=1e-9,
            check_dtype=False,
        )
    except (AssertionError, KeyError, ValueError):  # pandas' errors for damage are ValueErrors
        return False
    return True
