"""Folder of a report: rows.csv, curve.csv and other numbers, evidence, tables, figures and a page;
and the check of one.
"""

import contextlib
import io
import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from posbench.common.csv_records import to_csv
from posbench.common.files import read_bytes, write_atomic
from posbench.evaluation.registry import find_protocol
from posbench.report.explore import explore_page
from posbench.report.figures import accuracy, differences, loss_curves, within_windows
from posbench.report.figures.style import save
from posbench.report.figures.trainings import accuracy_steps, floors, frontier, gain, steps
from posbench.report.frame import RECORDS
from posbench.report.html_page import page
from posbench.report.ranks import MethodRank
from posbench.report.records import ContextPoint, CurvePoint, Score, SectionKey
from posbench.report.report import Report, collect
from posbench.report.seed_marks import MARK
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
from posbench.results.run_metadata import Training, trainings
from posbench.runs.rows import write_csv

EXPLORE, PAGE, RANKS = "explore.html", "report.html", "ranks.csv"
NUMBERS = {
    "rows.csv",
    "sums.npz",
    "documents.csv",
    "configs.jsonl",
    "curve.csv",
    "trainings.csv",
    "table.md",
    "table.tex",
}
DRAWN = re.compile(
    r"(context|accuracy|accuracy_steps|map|depth|curve|position|heatmap|differences|gain|floors|steps|frontier|causes)(-\d+)?\.(png|svg)"
    r"|(context|accuracy|position|ranks)\.csv"
)
FIGURES = {  # of a section by its kind; None where one would show nothing
    "context": {"context": within_windows.by_context},
    "accuracy": {
        "accuracy": accuracy.figure, "map": accuracy.methods_map, "depth": accuracy.maps, "accuracy_steps": accuracy_steps,
    },
    "position": {"position": within_windows.by_position},
    "curve": {
        "curve": loss_curves.figure, "heatmap": differences.heatmap, "differences": differences.intervals, "steps": steps,
    },
}  # fmt: skip


def texts_of(report: Report) -> dict[str, str]:
    """Files of numbers and tables by name, without rows.csv and the evidence."""
    names = {
        evaluation.first["run_id"]: report.label(evaluation.first)[0]
        for evaluation in report.evaluations
    }
    texts = {
        "trainings.csv": to_csv(trainings(report.origins.values(), names), Training),
        "curve.csv": to_csv(itertools.chain(*report.sections), CurvePoint),
        "table.md": report.markdown(),
        "table.tex": report.latex(),
    }
    others = {
        "position": report.stretches.values(),
        "context": report.contexts,
        "accuracy": report.scores,
    }
    if report.ranks:
        texts[RANKS] = to_csv(report.ranks, MethodRank)
    return texts | {
        f"{name}.csv": to_csv(itertools.chain(*own), RECORDS[name])
        for name, own in others.items()
        if own
    }


def write(report: Report, out_dir: Path | str) -> list[Path]:
    """Write a report's rows, curve, tables, figures and page into `out_dir`, delete an older
    report's figures, and return the files.

    The last one is the list of their hashes, without which nothing vouches for a report that was
    not written to its end."""
    import matplotlib

    out_dir = Path(out_dir)
    with contextlib.suppress(OSError):  # what cannot be written is said by the first file
        (out_dir / HASHES).unlink()  # which vouches for the older report
    texts = texts_of(report)
    write_csv(report.rows, out_dir / "rows.csv")
    evidence = write_evidence(out_dir, report.evaluations, report.origins)
    for name, text in texts.items():
        write_atomic(out_dir / name, text)
    with matplotlib.rc_context(
        {"text.parse_math": False}
    ):  # print dollar signs in names as they are
        drawn = [
            one
            for part in (report.contexts, report.scores, report.sections)
            for one in draw(part, out_dir, report.title)
        ]
    figures = [path for section in drawn for pair in section.values() for path in pair]
    written = [out_dir / name for name in ("rows.csv", *texts)] + evidence + figures
    if (
        out_dir / PAGE
    ).exists():  # the folder holds an older report, whose other figures are out of date
        for path in out_dir.iterdir():
            if DRAWN.fullmatch(path.name) and path not in written:
                path.unlink()
    write_atomic(out_dir / EXPLORE, explore_page(report.title, {"": report}))
    write_atomic(out_dir / PAGE, page(report, drawn))
    written += [out_dir / EXPLORE, out_dir / PAGE]
    return [*written, write_hashes(out_dir, (path.name for path in written))]


def list_again(folder: Path) -> None:
    """Write the list of hashes of a folder's files of a report again, if it is not that: for
    committed folders, whose files are chosen.
    """
    names = [
        path.name
        for path in sorted(folder.iterdir())
        if path.name in NUMBERS or DRAWN.fullmatch(path.name)
    ]
    text = hashes_of({name: read_bytes(folder / name) for name in names})
    if not has_hashes(folder) or read_bytes(folder / HASHES) != text:
        write_atomic(folder / HASHES, text)


def draw(
    sections: Sequence[Sequence[SectionKey]], out_dir: Path | str, title: str
) -> list[dict[str, list[Path]]]:
    """Draw every section of points, steps or scores. Returns {name: its png and svg} for each
    section, named as in FIGURES.

    The first section of points has `gain` and `frontier` too if an encoding was trained at several
    lengths, `gain` also if for several numbers of steps, and then `floors`. The first section of a
    kind gives curve.png and curve.svg, further ones curve-2.png and so on. Equal input gives equal
    bytes."""
    drawn, counted = [], Counter()
    for section in sections:
        kind = {ContextPoint: "context", Score: "accuracy"}.get(type(section[0])) or (
            "position" if section[0].window else "curve"
        )
        counted[kind] += 1
        number = f"-{counted[kind]}" if counted[kind] > 1 else ""
        made = {name: figure(section, title) for name, figure in FIGURES[kind].items()}
        drawn.append(
            {
                name: save(figure, Path(out_dir) / (name + number))
                for name, figure in made.items()
                if figure
            }
        )
    points = [one for section in sections for one in section if isinstance(one, CurvePoint)]
    for name, of_all in (("gain", gain), ("floors", floors), ("frontier", frontier)):
        if points and (figure := of_all(points, title)):
            drawn[0][name] = save(figure, Path(out_dir) / name)
    return drawn


def disagreements(folder: Path, report: Report | None = None) -> list[str]:
    """Faults of a folder of evidence, in words: its files are those that the report wrote, and each
    table is what rows and sums give.

    Raises RunError if rows, sums, documents and configurations do not hold together
    (posbench/results/consistency.py)."""
    report = report or collect([], "again", "report.py", evidence=[folder])
    found = [f"{name} {fault}" for name, fault in altered_files(folder).items() if fault != MISSING]
    report = replace(report, ranked=(folder / RANKS).is_file())
    for one in report.evaluations:
        paired = getattr(
            find_protocol(one.first["protocol"]), "paired", True
        )  # tokens of the scripts weigh unequally
        for row in one.rows:
            nll, correct = one.sums(row, "nll"), one.sums(row, "correct")
            found += row_faults(row, nll, correct)
            if nll is None and paired and not one.further(row):
                found.append(f"{row['run_id']} {row['protocol']} {row['length']}: nll without sums")
    for name, text in texts_of(report).items():
        kept = (
            read_bytes(folder / name).decode(errors="replace")
            if (folder / name).is_file() and name != "table.tex"
            else ""
        )
        if name.endswith(".csv") and not _alike(text, kept):
            found.append(f"{name} is not what rows and sums give")
        lines, before = (
            set(map(_without_marks, table.splitlines()))
            for table in (text.partition("\n")[2], kept)
        )
        said = {
            line for line in before if line.startswith(("|", "- ", "**"))
        }  # all but the title and notes, which may be more
        if name == "table.md" and not said <= lines <= {*before, ""}:
            found.append("table.md is not what rows and sums give")
    return found


def _without_marks(line: str) -> str:
    """Line of table.md without what versions write otherwise: seeds of a mean, a resolved beta,
    half of G's interval or its error.
    """
    if re.match(r"- \[(seeds? |\d+ seed)", line):
        return ""
    line = re.sub(r",? ?beta=\S+ \(null; \S+ is published\)", "", MARK.sub("", line))
    return re.sub(r"^(- G .* bring \S+) \+- \S+ nats/token(?: \(s\.e\.\))?", r"\1 nats/token", line)


def _alike(one: str, other: str) -> bool:
    """True if two CSVs have the same lines in any order, numbers to 1e-9. A file of before a column
    came has none of it.
    """
    import pandas

    try:
        tables = [pandas.read_csv(io.StringIO(text)) for text in (one, other)]
        columns = [*tables[1].columns]
        pandas.testing.assert_frame_equal(
            *(table[columns].sort_values(columns, ignore_index=True) for table in tables),
            rtol=1e-9,
            atol=1e-9,
            check_dtype=False,
        )
    except (AssertionError, KeyError, ValueError):  # pandas' errors for damage are ValueErrors
        return False
    return True
