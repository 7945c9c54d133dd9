"""Command of scripts/reproduce.py: rerun reported results and compare them with committed rows.

Two rows with the same posbench.runs.rows.row_key are equal bit for bit if all columns but the
volatile ones agree. They are reproduced if the losses differ by at most the experiment's tolerance:
another processor, thread count or version of torch rounds differently, and training amplifies this.
Far above its floor a model is broken and its loss varies more with the rounding, so the tolerance
grows with the distance from the floor. The mean of few tokens also moves by more than that of many.
The tolerance is of losses alone; the largest difference of accuracy is shown beside them.
"""

import math
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.common.files import write_json
from posbench.config.compose import Request
from posbench.config.names import with_command_names
from posbench.report.references import reference_kind
from posbench.results.evaluation import load_evaluation
from posbench.results.evidence import pooled_evaluations
from posbench.results.search import find_results
from posbench.runs.rows import read_csv, read_eval, row_key, same_values
from posbench.sweep.jobs import Job, plan_existing
from posbench.sweep.launch import launch
from posbench.sweep.ledger import failure_lines
from posbench.tools.run.command import show_plan

MISSES_SHOWN = 10  # misses that are listed, worst first
COMPARED_FILE = "compared.json"  # result of the last comparison; exists only after a complete rerun
TOLERANCE_KINDS = {"nll", "share", "token"}


@dataclass(frozen=True)
class RowPair:
    """Reported row and its rerun, None if the rerun lacks it. `allowed` is in nats/token."""

    reported: dict
    rerun: dict | None
    allowed: float

    @property
    def distance(self) -> float:
        """Absolute difference of the losses in nats/token; infinite if only one of them exists."""
        if self.rerun is None:
            return math.inf
        reported = self.reported["nll"]
        again = self.rerun["nll"]
        if reported == again:  # None too: neither loss is finite
            return 0.0
        if reported is None or again is None:
            return math.inf
        return abs(reported - again)

    @property
    def missed(self) -> bool:
        """True if the losses differ by more than is allowed."""
        return self.distance > self.allowed

    @property
    def accuracy_change(self) -> float | None:
        """Accuracy of the rerun minus the reported one; None where one of them is missing."""
        if self.rerun is None or None in (self.reported["accuracy"], self.rerun["accuracy"]):
            return None
        return self.rerun["accuracy"] - self.reported["accuracy"]


def pair_rows(
    reported: Sequence[dict],
    rerun_rows: Iterable[dict],
    nll: float,
    share: float = 0.0,
    token: float = 0.0,
) -> list[RowPair]:
    """Pair every reported row with its rerun.

    Allowed are `nll` nats/token, `share` of the distance above the floor, and `token` for a single
    token, which shrinks with the root of their number.
    """
    reruns = {row_key(row): row for row in rerun_rows}
    floors = {_key_of_floor(row): row["nll"] for row in reported if reference_kind(row) == "floor"}
    pairs = []
    for row in reported:
        allowed = nll + token / math.sqrt(row["n_targets"])
        floor = floors.get(_key_of_floor(row))
        if floor is not None and row["nll"] is not None:
            allowed += share * max(0.0, row["nll"] - floor)
        pairs.append(RowPair(row, reruns.get(row_key(row)), allowed))
    return pairs


def _key_of_floor(row: dict) -> tuple:
    """Key that a row shares with its floor.

    It includes the text, since one training may be evaluated on several.
    """
    return tuple(row[name] for name in ("run_id", "protocol", "n_targets", "n_units", "n_bytes"))


def comparison_lines(pairs: list[RowPair]) -> list[str]:
    """Lines that summarize a comparison; the misses last, worst first."""
    n_equal = sum(
        pair.rerun is not None and same_values(pair.reported, pair.rerun) for pair in pairs
    )
    missed = sorted((pair for pair in pairs if pair.missed), key=lambda pair: -pair.distance)
    n_within = len(pairs) - len(missed)
    all_equal = n_equal == len(pairs)
    how = "all of them bit for bit" if all_equal else f"{n_equal} of them bit for bit"
    lines = [f"{n_within} of {len(pairs)} reported rows reproduced, {how}"]
    finite = [pair for pair in pairs if math.isfinite(pair.distance)]
    if finite and not all_equal:
        worst = max(finite, key=lambda pair: pair.distance)
        lines.append(
            f"largest difference {worst.distance:.3g} nats/token (allowed {worst.allowed:.3g}):"
            f" {_row_in_words(worst.reported)}"
        )
    lines += _accuracy_lines(pairs)
    for pair in missed[:MISSES_SHOWN]:
        now = "missing" if pair.rerun is None else f"{pair.rerun['nll']}"
        lines.append(
            f"missed: {_row_in_words(pair.reported)}: reported {pair.reported['nll']}, now {now},"
            f" allowed {pair.allowed:.3g}"
        )
    if len(missed) > MISSES_SHOWN:
        lines.append(f"... and {len(missed) - MISSES_SHOWN} more")
    return lines


def _accuracy_lines(pairs: list[RowPair]) -> list[str]:
    """One line about the accuracies, [] where no row has one or all are equal.

    They are shown and not judged: the tolerance is that of losses."""
    changed = [pair for pair in pairs if pair.accuracy_change]
    if not changed:
        return []
    worst = max(changed, key=lambda pair: abs(pair.accuracy_change))
    return [
        f"largest difference of accuracy {100 * worst.accuracy_change:+.1f} percentage points (not"
        f" judged): {_row_in_words(worst.reported)}"
    ]


def _row_in_words(row: dict) -> str:
    """Words that tell a row from all others: run, protocol, methods, length and position."""
    method = f"{row['encoding']} {row['extension']} + {row['scale_attention']}"
    words = f"{row['run_id']} {row['protocol']} {method}, length {row['length']}"
    return words if row["position"] is None else f"{words} position {row['position']}"


@dataclass(frozen=True)
class Reported:
    """Committed rows of an experiment, its tolerance, and the folder of its reruns."""

    folder: Path
    rows: list[dict]
    tolerance: dict[str, float]
    rerun_dir: Path

    @classmethod
    def of(cls, request: Request) -> "Reported":
        """The experiment of a request. Raises ConfigError unless it names a reported one."""
        experiment = request.experiment
        raw = request.raw_configs[0]
        tolerance = experiment.get("tolerance") or {}
        name = experiment.get("name")  # None of experiment=none
        if not tolerance and name:
            again = with_command_names(f"python scripts/run.py experiment={name}")
            raise ConfigError(
                f"experiment={name} has no tolerance in its yaml, by which a rerun could be judged:"
                f" make its rows again with '{again}', or name one that has, such as"
                " experiment=demo."
            )
        if "nll" not in tolerance or not set(tolerance) <= TOLERANCE_KINDS:
            raise ConfigError(
                "experiment=NAME must be a reported one, whose yaml gives a tolerance (nll, and if"
                " wanted share and token): such as experiment=demo."
            )
        folder = Path(raw["report_dir"] or f"results/reported/{experiment['name']}")
        if not (folder / "rows.csv").exists():
            raise ConfigError(
                f"{folder}/rows.csv does not exist: run this in its folder's parent, or give its"
                " folder as report_dir=DIR."
            )
        # Not in the folder of runs itself: reported runs that it holds would not run again, and a
        # second comparison deletes those of the first.
        rerun_dir = Path(raw["results_dir"]).parent / "reproduced" / experiment["name"]
        return cls(folder, read_csv(folder / "rows.csv"), tolerance, rerun_dir)

    def rows_of(self, jobs: list[Job]) -> list[dict]:
        """Reported rows of the lengths that jobs evaluate."""
        planned = set()
        for job in jobs:
            for cell in job.cells:
                planned |= {(cell.eval_id, length) for length in cell.evaluate.lengths}
        return [row for row in self.rows if (row["eval_id"], row["length"]) in planned]


def reproduce(request: Request) -> int:
    """Run the cells of an experiment again and compare; exit code 1 on a miss.

    Words beside experiment= choose some of the cells. With runs= nothing is run: what is compared
    are rows of runs and of folders of evidence that were made elsewhere.
    """
    raw = request.raw_configs[0]
    if raw["run"]:
        # It would be taken for the rerun, and deleted by the next one.
        raise ConfigError(
            f"run={raw['run']} is made already, and nothing of it would run again: leave it out, or"
            f" compare it as runs={raw['run']}."
        )
    reported = Reported.of(request)
    # Of the formats that dtype=auto may mean, the one of the reported rows.
    jobs, format_note = plan_existing(
        [{**cell, "results_dir": str(reported.rerun_dir)} for cell in request.raw_configs],
        exist=lambda jobs: bool(reported.rows_of(jobs)),
    )
    rows = reported.rows_of(jobs)
    if not rows:
        raise ConfigError(
            f"{reported.folder}/rows.csv has none of the requested losses: the text, configuration"
            " or an argument differs here."
        )
    if raw["runs"] is not None:
        return _compare_runs(raw["runs"], rows, reported)
    if format_note:  # "" if this machine's format is theirs
        print(
            f"{format_note}: this rerun is made as they were, which takes longer than usual here",
            file=sys.stderr,
        )
    if raw["dry"]:
        return _show_plan(request, jobs, reported)
    return _rerun(request, jobs, rows, reported)


def _compare_runs(patterns: Sequence[str], rows: list[dict], reported: Reported) -> int:
    """Compare reported rows with those of runs and evidence. Returns the exit code."""
    results = find_results(patterns).without_csvs("does not say by which weights it was made")
    evaluations = [load_evaluation(path) for path in results.eval_files()]
    pooled, *_ = pooled_evaluations(evaluations, results.evidence)
    rerun_rows = [row for evaluation in pooled for row in evaluation.rows]
    pairs = pair_rows(rows, rerun_rows, **reported.tolerance)
    if all(pair.rerun is None for pair in pairs):
        raise ConfigError(
            f"runs={','.join(patterns)} holds none of the {len(pairs)} rows of"
            f" {reported.folder}/rows.csv that are asked for: a training with other settings is"
            " another one, and dtype=auto is fp32 on a CPU without AVX-512."
        )
    heading = f"{reported.folder}/rows.csv against {', '.join(patterns)}"
    print("\n".join([heading, *comparison_lines(pairs)]))
    return int(any(pair.missed for pair in pairs))


def _show_plan(request: Request, jobs: list[Job], reported: Reported) -> int:
    """Print the work of a rerun. Returns the exit code."""
    code = show_plan(request, jobs)
    compared = reported.rerun_dir / COMPARED_FILE
    if compared.exists():
        print(
            f"these were compared already ({compared}): without dry=true they are deleted and made"
            " again"
        )
    return code


def _rerun(request: Request, jobs: list[Job], rows: list[dict], reported: Reported) -> int:
    """Run the jobs from scratch, or go on with an unfinished rerun. Returns the exit code."""
    compared = reported.rerun_dir / COMPARED_FILE
    # Written last: the earlier rerun was finished, and this one begins from scratch.
    if compared.exists():
        for job in jobs:
            trained: Job | None = job
            while trained:  # a fine-tuned training, then those that it began from
                shutil.rmtree(trained.run.path, ignore_errors=True)
                trained = trained.parent
        compared.unlink()
    options = {"n_jobs": request.raw_configs[0]["jobs"], **request.launcher}
    results = launch(jobs, options, shlex.join(sys.orig_argv))
    failed = any(result.failures for result in results)
    if failed:
        print("\n".join(failure_lines(results)), file=sys.stderr)
    rerun_rows = []
    for job in jobs:
        for cell in job.cells:
            if cell.path.exists():
                rerun_rows += read_eval(cell.path)
    pairs = pair_rows(rows, rerun_rows, **reported.tolerance)
    missed = any(pair.missed for pair in pairs)
    lines = [
        f"{reported.folder}/rows.csv against {reported.rerun_dir}, {len(jobs)} of its trainings",
        *comparison_lines(pairs),
    ]
    print("\n".join(lines))
    commits = sorted({str(row["commit"]) for row in rerun_rows})
    write_json(compared, {"lines": lines, "missed": missed, "commit": commits})
    return int(missed or failed)
