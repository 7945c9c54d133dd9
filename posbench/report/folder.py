"""Folder of a report: rows.csv, curve.csv and other numbers, evidence, tables, figures and a page."""

import itertools
import re
from pathlib import Path

from posbench.common.csv_records import to_csv
from posbench.common.files import write_atomic
from posbench.report.explore import explore_page
from posbench.report.figures.draw import draw
from posbench.report.page import page
from posbench.report.records import ContextPoint, CurvePoint, Score
from posbench.report.report import Report
from posbench.runs.evidence import write_evidence
from posbench.runs.rows import write_csv
from posbench.runs.run_metadata import Training, trainings

EXPLORE, PAGE = "explore.html", "report.html"
DRAWN = re.compile(
    r"(context|accuracy|accuracy_steps|map|depth|curve|position|heatmap|differences|gain|steps|frontier|causes)(-\d+)?\.(png|svg)"
    r"|(context|accuracy|position)\.csv"
)


def texts_of(report: Report) -> dict[str, str]:
    """Files of numbers and tables by name, without rows.csv and the evidence."""
    names = {evaluation.first["run_id"]: report.label(evaluation.first)[0] for evaluation in report.evaluations}
    texts = {
        "trainings.csv": to_csv(trainings(report.origins.values(), names), Training),
        "curve.csv": to_csv(itertools.chain(*report.sections), CurvePoint),
        "table.md": report.markdown(),
        "table.tex": report.latex(),
    }
    if report.stretches:
        texts["position.csv"] = to_csv(itertools.chain(*report.stretches.values()), CurvePoint)
    if report.contexts:
        texts["context.csv"] = to_csv(itertools.chain(*report.contexts), ContextPoint)
    if report.scores:
        texts["accuracy.csv"] = to_csv(itertools.chain(*report.scores), Score)
    return texts


def write(report: Report, out_dir: Path | str) -> list[Path]:
    """Write a report's rows, curve, tables, figures and page into `out_dir`, delete an older report's figures, and return the files."""
    import matplotlib

    out_dir = Path(out_dir)
    texts = texts_of(report)
    write_csv(report.rows, out_dir / "rows.csv")
    evidence = write_evidence(out_dir, report.evaluations, report.origins)
    for name, text in texts.items():
        write_atomic(out_dir / name, text)
    with matplotlib.rc_context({"text.parse_math": False}):  # print dollar signs in names as they are
        drawn = [one for part in (report.contexts, report.scores, report.sections) for one in draw(part, out_dir, report.title)]
    figures = [path for section in drawn for pair in section.values() for path in pair]
    written = [out_dir / name for name in ("rows.csv", *texts)] + evidence + figures
    if (out_dir / PAGE).exists():  # the folder holds an older report, whose other figures are out of date
        for path in out_dir.iterdir():
            if DRAWN.fullmatch(path.name) and path not in written:
                path.unlink()
    write_atomic(out_dir / EXPLORE, explore_page(report.title, {"": report}))
    write_atomic(out_dir / PAGE, page(report, drawn))
    return [*written, out_dir / EXPLORE, out_dir / PAGE]
