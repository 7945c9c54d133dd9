"""Command of scripts/explore.py: words to reports, and these to one page."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from posbench.common.errors import ConfigError, RunError, did_you_mean
from posbench.common.quantities import plural
from posbench.config.command_line import read_options
from posbench.config.names import CONFIGS_FOLDER, with_command_names
from posbench.results.search import Results, find_results, is_evidence, shortest_endings
from posbench.results.sweep_names import runs_of_sweeps

if TYPE_CHECKING:
    from posbench.report.report import Report

EXPLORE_OPTIONS = {"out": "explore.html", "title": ""}
USUAL_RESULTS = "results/runs"
REPORTED_FOLDER = CONFIGS_FOLDER.parent / "results" / "reported"


@dataclass
class NamedResults:
    """Results of one word: eval files, their lengths where these are chosen, CSVs and evidence."""

    paths: Sequence[Path] = ()
    lengths: dict[Path, Sequence[int]] = field(default_factory=dict)
    csvs: Sequence[Path] = ()
    evidence: Sequence[Path] = ()


def explore_command(words: list[str]) -> None:
    """Write the page that the words ask for, and print its path."""
    from posbench.common.files import write_atomic
    from posbench.report.explore import explore_page

    names = [word for word in words if word.partition("=")[0] not in EXPLORE_OPTIONS]
    chosen = read_options([word for word in words if word not in names], EXPLORE_OPTIONS)
    if not names:
        raise ConfigError(
            "There is nothing to explore: name folders of runs or reports, CSVs, or experiments"
            " such as headline."
        )
    out = Path(chosen["out"])
    if out.suffix.lower() != ".html":
        raise ConfigError(f"out={out} is no page: give it the ending .html.")
    title = chosen["title"] or _page_title(names)
    reports, notes = collected_reports(
        {name: named_results(name) for name in dict.fromkeys(names)}, title
    )
    text = explore_page(title, reports, notes)
    write_atomic(out, text)
    print(f"{out} ({len(text.encode()) / 1e6:.1f} MB): open it in a browser")


def _page_title(names: Sequence[str]) -> str:
    """Title such as "reported/demo, headline"; of more than four names the first three."""
    short = ["/".join(Path(name).parts[-2:]) for name in names]
    if len(short) >= 5:
        short = [*short[:3], f"and {len(short) - 3} others"]
    return ", ".join(short)


def named_results(word: str) -> NamedResults:
    """Results that a word names. Raises ConfigError if it names none."""
    experiments = {path.stem for path in (CONFIGS_FOLDER / "experiment").glob("*.yaml")}
    committed = {path.name for path in REPORTED_FOLDER.glob("*") if is_evidence(path)}
    if Path(word).exists():
        return _results_of_path(word)
    if word not in experiments | committed:
        sweeps = runs_of_sweeps(Path(USUAL_RESULTS))
        if word in sweeps:
            return NamedResults(Results(runs=sweeps[word], csvs=[], evidence=[]).eval_files())
        names = sorted({*experiments, *committed, *sweeps})
        return _results_of_path(word, suggestions=names)  # a glob, or an error
    # An experiment: its own runs first, else the report of it that is committed.
    lengths = (
        lengths_of_experiment(word) if word in experiments and Path(USUAL_RESULTS).is_dir() else {}
    )
    if any(path.exists() for path in lengths):
        return NamedResults(paths=list(lengths), lengths=lengths)
    if word in committed:
        return NamedResults(evidence=[REPORTED_FOLDER / word])
    if (REPORTED_FOLDER / word).is_dir():  # a committed page may have CSVs, but no evidence
        names = sorted(experiments | committed)
        return _results_of_path(str(REPORTED_FOLDER / word), suggestions=names)
    command = with_command_names(f"python scripts/run.py experiment={word}")
    raise ConfigError(
        f"Nothing of experiment {word} is in results/runs yet: run '{command}' first, or name a"
        " folder."
    )


def _results_of_path(word: str, suggestions: Sequence[str] = ()) -> NamedResults:
    """Results of a path or a glob. Raises ConfigError, with a near name, if there are none."""
    try:
        results = find_results([word])
    except ConfigError as error:
        near = did_you_mean(word, suggestions)
        raise ConfigError(
            f"{word} is no folder of runs or of a report, no CSV, no experiment and no name of a"
            f" sweep{near}: give one of these."
        ) from error
    return NamedResults(results.eval_files(), csvs=results.csvs, evidence=results.evidence)


def lengths_of_experiment(name: str) -> dict[Path, Sequence[int]]:
    """{eval file: its lengths} of an experiment in results/runs, whether the files are there or
    not.
    """
    import hydra

    from posbench.config.compose import Composer, raw_configs_of_jobs
    from posbench.config.schema import check_config
    from posbench.sweep.jobs import plan_existing

    word = f"experiment={name}"
    with hydra.initialize_config_dir(
        str(CONFIGS_FOLDER.resolve()), job_name="report", version_base="1.3"
    ):
        composer = Composer("report")
        configs = raw_configs_of_jobs(composer.values([word]), [word], composer)
        # The second is a note on what dtype=auto was taken for.
        jobs, _ = plan_existing([check_config(config) for config in configs])
    return {cell.path: cell.evaluate.lengths for job in jobs for cell in job.cells}


def collected_reports(
    parts: dict[str, NamedResults], title: str
) -> tuple[dict[str, "Report"], list[str]]:
    """One report of everything under the name "" and no note, or {name: report} of each part and a
    note with the reason.

    Each part has a report where the same training is in two of them, or where together they are
    no report.
    """
    if len(parts) == 1:
        return {"": _report_of_parts(list(parts.values()), title)}, []
    reports = {name: _report_of_parts([part], title) for name, part in parts.items()}
    run_ids = [_measured_runs(report) for report in reports.values()]
    n_reports = Counter(itertools.chain.from_iterable(run_ids))  # that each training is in
    repeated = sum(count > 1 for count in n_reports.values())
    if repeated:
        verb = "are" if repeated > 1 else "is"
        reason = f"{plural(repeated, 'training')} {verb} in more than one of them"
    else:
        try:
            return {"": _report_of_parts(list(parts.values()), title)}, []
        except RunError as error:
            reason = str(error)
    short_names = shortest_endings([Path(name) for name in reports])
    shortened = {short_names[Path(name)]: report for name, report in reports.items()}
    note = f"Each of {', '.join(short_names.values())} has lines of its own: {reason}"
    return shortened, [note]


def _measured_runs(report: "Report") -> set[str]:
    """Ids of the runs of a report, but those of a CSV alone."""
    return {
        evaluation.first["run_id"] for evaluation in report.evaluations if not evaluation.rows_alone
    }


def _report_of_parts(parts: Sequence[NamedResults], title: str) -> "Report":
    """One report of all parts."""
    from posbench.report.report import collect_report

    lengths: dict[Path, Sequence[int]] = {}
    for part in parts:
        lengths |= part.lengths
    return collect_report(
        paths=[path for part in parts for path in part.paths],
        title=title,
        command=with_command_names("python scripts/run.py"),
        csvs=[path for part in parts for path in part.csvs],
        evidence=[path for part in parts for path in part.evidence],
        skip_damaged=True,
        lengths=lengths,
    )
