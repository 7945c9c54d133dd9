"""Command of scripts/reproduce.py: rerun reported results from scratch and compare them with the
committed rows.

Two rows with the same posbench.runs.rows.key are equal bit for bit if all columns but the volatile
ones agree. They are reproduced if the losses differ by at most the experiment's tolerance: another
processor, thread count or version of torch rounds differently, and training amplifies this. Far
above its floor a model is broken and its loss varies more with the rounding, so the tolerance grows
with the distance from the floor. The mean of few tokens also moves by more than that of many."""

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
from posbench.report.references import reference
from posbench.results.evaluation import load_evaluation
from posbench.results.evidence import pool
from posbench.results.search import find_results
from posbench.runs.rows import agree, key, read_csv, read_eval
from posbench.sweep.jobs import Job, plan_existing
from posbench.sweep.launch import launch
from posbench.sweep.ledger import failure_lines
from posbench.tools.run.command import show_plan

MISSES_SHOWN = 10  # misses that are listed, worst first
COMPARED_FILE = "compared.json"  # result of the last comparison; exists only after a complete rerun


@dataclass(frozen=True)
class RowPair:
    """Reported row and its rerun, None if the rerun lacks it. `allowed` is in nats/token."""

    reported: dict
    again: dict | None
    allowed: float

    @property
    def distance(self) -> float:
        """Absolute difference of the losses in nats/token; infinite if only one of them exists."""
        one, two = self.reported["nll"], self.again["nll"] if self.again else float("inf")
        return 0.0 if one == two else float("inf") if one is None or two is None else abs(one - two)

    @property
    def missed(self) -> bool:
        return self.distance > self.allowed


def pair_rows(
    reported: Sequence[dict],
    again: Iterable[dict],
    nll: float,
    share: float = 0.0,
    token: float = 0.0,
) -> list[RowPair]:
    """Pair every reported row with its rerun.

    Allowed are `nll` nats/token, `share` of the distance above the floor, and `token` for a single
    token, which shrinks with the root of their number."""
    made = {key(row): row for row in again}
    floors = {_scored(row): row["nll"] for row in reported if reference(row) == "floor"}

    def allowed(row: dict) -> float:
        floor, few = floors.get(_scored(row)), token / math.sqrt(row["n_targets"])
        return (
            nll
            + few
            + (
                share * max(0.0, row["nll"] - floor)
                if floor is not None and row["nll"] is not None
                else 0.0
            )
        )

    return [RowPair(row, made.get(key(row)), allowed(row)) for row in reported]


def _scored(row: dict) -> tuple:
    """Key that a row shares with its floor. It includes the text, since one training may be
    evaluated on several.
    """
    return tuple(row[name] for name in ("run_id", "protocol", "n_targets", "n_units", "n_bytes"))


def comparison_lines(pairs: list[RowPair]) -> list[str]:
    """Lines that summarize a comparison; the misses last, worst first."""
    equal = sum(pair.again is not None and agree(pair.reported, pair.again) for pair in pairs)
    missed = sorted((pair for pair in pairs if pair.missed), key=lambda pair: -pair.distance)
    within = len(pairs) - len(missed)
    how = "all of them bit for bit" if equal == len(pairs) else f"{equal} of them bit for bit"
    lines = [f"{within} of {len(pairs)} reported rows reproduced, {how}"]
    finite = [pair for pair in pairs if pair.distance < float("inf")]
    if equal < len(pairs) and finite:
        worst = max(finite, key=lambda pair: pair.distance)
        lines.append(
            f"largest difference {worst.distance:.3g} nats/token (allowed {worst.allowed:.3g}):"
            f" {_row_in_words(worst.reported)}"
        )
    for pair in missed[:MISSES_SHOWN]:
        found = "missing" if pair.again is None else f"{pair.again['nll']}"
        lines.append(
            f"missed: {_row_in_words(pair.reported)}: reported {pair.reported['nll']}, now {found},"
            f" allowed {pair.allowed:.3g}"
        )
    return lines + (
        [f"... and {len(missed) - MISSES_SHOWN} more"] if len(missed) > MISSES_SHOWN else []
    )


def _row_in_words(row: dict) -> str:
    where = f" position {row['position']}" if row["position"] is not None else ""
    method = f"{row['encoding']} {row['extension']} + {row['scale_attention']}"
    return f"{row['run_id']} {row['protocol']} {method}, length {row['length']}{where}"


def reproduce(request: Request) -> int:
    """Run the cells of an experiment again and compare; exit code 1 on a miss. Words beside
    experiment= choose some of the cells.

    With runs= nothing is run: what is compared are rows of runs and of folders of evidence that
    were made elsewhere."""
    experiment, cfg = request.experiment, request.cfgs[0]
    tolerance = experiment.get("tolerance") or {}
    if "nll" not in tolerance or not set(tolerance) <= {"nll", "share", "token"}:
        raise ConfigError(
            "experiment=NAME must be a reported one, whose yaml gives a tolerance (nll, and if"
            " wanted share and token): such as experiment=demo."
        )
    folder = Path(cfg["report_dir"] or f"results/reported/{experiment['name']}")
    if not (folder / "rows.csv").exists():
        raise ConfigError(
            f"{folder}/rows.csv does not exist: run this in its folder's parent, or give its folder"
            " as report_dir=DIR."
        )
    known = read_csv(folder / "rows.csv")
    results = Path(
        cfg["results_dir"]
        if cfg["results_dir"] != "results/runs"
        else f"results/reproduced/{experiment['name']}"
    )

    def rows_of(jobs: list[Job]) -> list[dict]:
        asked = {
            (cell.eval_id, length)
            for job in jobs
            for cell in job.cells
            for length in cell.evaluate.lengths
        }
        return [row for row in known if (row["eval_id"], row["length"]) in asked]

    jobs, elsewhere = plan_existing(
        [{**one, "results_dir": str(results)} for one in request.cfgs],
        lambda jobs: bool(rows_of(jobs)),
    )
    reported = rows_of(jobs)
    if not reported:
        raise ConfigError(
            f"{folder}/rows.csv has none of the requested losses: the text, configuration or an"
            " argument differs here."
        )
    if elsewhere and cfg["runs"] is None:
        print(
            f"{elsewhere}: this rerun is made as they were, which takes longer than usual here",
            file=sys.stderr,
        )
    if cfg["runs"] is not None:
        named = find_results(cfg["runs"]).without_csvs("does not say by which weights it was made")
        pooled, *_ = pool([load_evaluation(path) for path in named.eval_files()], named.evidence)
        pairs = pair_rows(reported, [row for one in pooled for row in one.rows], **tolerance)
        if all(pair.again is None for pair in pairs):
            raise ConfigError(
                f"runs={','.join(cfg['runs'])} holds none of the {len(pairs)} rows of"
                f" {folder}/rows.csv that are asked for: a training with other settings is another"
                " one, and dtype=auto is fp32 on a CPU without AVX-512."
            )
        print(
            "\n".join(
                [f"{folder}/rows.csv against {', '.join(cfg['runs'])}", *comparison_lines(pairs)]
            )
        )
        return int(any(pair.missed for pair in pairs))
    if cfg["dry"]:
        code = show_plan(request, jobs)
        if (results / COMPARED_FILE).exists():
            print(
                f"these were compared already ({results / COMPARED_FILE}): without dry=true they"
                " are deleted and made again"
            )
        return code
    if (results / COMPARED_FILE).exists():  # else an unfinished attempt goes on
        for job in jobs:
            shutil.rmtree(job.run.path, ignore_errors=True)
        (results / COMPARED_FILE).unlink()
    outcomes = launch(jobs, {"n_jobs": cfg["jobs"], **request.launcher}, shlex.join(sys.orig_argv))
    if any(result.failures for result in outcomes):
        print("\n".join(failure_lines(outcomes)), file=sys.stderr)
    made = [
        row
        for job in jobs
        for cell in job.cells
        if cell.path.exists()
        for row in read_eval(cell.path)
    ]
    pairs = pair_rows(reported, made, **tolerance)
    said = [
        f"{folder}/rows.csv against {results}, {len(jobs)} of its trainings",
        *comparison_lines(pairs),
    ]
    print("\n".join(said))
    missed = any(pair.missed for pair in pairs)
    write_json(
        results / COMPARED_FILE,
        {"lines": said, "missed": missed, "commit": sorted({str(row["commit"]) for row in made})},
    )
    return int(missed or any(result.failures for result in outcomes))
