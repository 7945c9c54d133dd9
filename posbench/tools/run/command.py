"""Commands of scripts/run.py and scripts/demo.py."""

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from posbench.common.errors import ConfigError, RunError
from posbench.config.compose import PLACE_KEYS, Request, key_of, words_beside
from posbench.config.names import IS_INSTALLED, display_name, with_command_names
from posbench.config.schema import JobConfig
from posbench.sweep.child_processes import check_resources
from posbench.sweep.jobs import Job, Result, plan_jobs
from posbench.sweep.launch import launch
from posbench.sweep.ledger import failure_lines, record
from posbench.sweep.validation import too_late
from posbench.sweep.verdict import already_done
from posbench.sweep.work import all_paths, count_work, missing_parents, unfinished
from posbench.tools.report.command import report, table_text

MOST_RANKINGS = 3  # that a sweep prints at its end
SECONDS_BETWEEN_LOOKS = 2.0  # between two looks for the first evaluations
# {via of a launcher: (its name, its key for the trainings at a time)}, in place of jobs=
KEYS_FOR_JOBS = {
    "joblib": ("joblib", "hydra.launcher.n_jobs"),
    "slurm": ("submitit_slurm", "hydra.launcher.array_parallelism"),
}
STATUS_WORDS = {
    "done": "evaluated",
    "exists": "there already",
    "noop": "no-op",
    "refused": "refused",
    "failed": "failed",
}
COUNTED_AS_WORK = ("done", "exists")  # statuses that the count of the work tells


def run(request: Request) -> int:
    """Train and evaluate what is missing, and print the outcome of each job.

    Returns the exit code."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        if os.environ["RANK"] != "0":
            return 2  # only rank 0 prints the error
        n = os.environ["WORLD_SIZE"]
        raise ConfigError(
            f"torchrun started {n} copies of this command: start it once, without torchrun, with"
            f" processes={n} to share each training."
        )
    raw = request.raw_configs[0]
    if raw["runs"] is not None:
        raise ConfigError(
            "runs= names what scripts/report.py compares: give one training as run=DIR."
        )
    _check_jobs_word(request)
    jobs = plan_jobs(request.raw_configs)
    for job in jobs:
        for sentence in too_late(job):
            print(sentence, file=sys.stderr)
    from posbench.model.build import check_methods

    if raw["dry"]:
        check_methods(request.raw_configs)
        return show_plan(request, jobs)
    earlier = [already_done(job) for job in jobs]  # result of each, None for what is to do
    command = shlex.join(sys.orig_argv)
    if all(earlier):
        record(earlier, command)
        _print_nothing_to_do(jobs)
        _show_tables(request, jobs)
        return 0
    from posbench.sweep.dry_run import check_devices

    check_methods(request.raw_configs)
    # A sweep passes over cells that are refused; a device that is not there is a mistake of the
    # whole command.
    open_jobs = [job for job, result in zip(jobs, earlier, strict=True) if not result]
    check_devices(open_jobs, request.launcher)
    _announce(request, jobs)
    all_trainings = [*missing_parents(jobs), *jobs]
    trainings_to_make = unfinished([*missing_parents(open_jobs), *open_jobs])
    with _reporting_early(jobs, request.experiment.get("first")):
        results = launch(jobs, {"n_jobs": raw["jobs"], **request.launcher}, command)
    words = _count_words(results, all_trainings, trainings_to_make)
    return _print_conclusion(request, results, words, command)


def _check_jobs_word(request: Request) -> None:
    """Raise ConfigError for a typed jobs= beside a launcher that does not read it.

    An experiment's `jobs` is for the machine that the command is typed on."""
    via = request.launcher.get("via")
    if via in KEYS_FOR_JOBS and "jobs" in map(key_of, request.words):
        jobs = request.raw_configs[0]["jobs"]
        name, key = KEYS_FOR_JOBS[via]
        raise ConfigError(
            f"jobs={jobs} has no effect with hydra/launcher={name}: give {key}={jobs} instead."
        )


def _announce(request: Request, jobs: list[Job]) -> None:
    """Print the cost of an experiment that shows a first picture, or of a command without words,
    which also says what it does.
    """
    from posbench.sweep.dry_run import cost_of, planned

    first = request.experiment.get("first")  # models of the first picture; None: no such picture
    # Without such words a command makes what the defaults say.
    described = words_beside(request.words, PLACE_KEYS)
    if not described:
        print(_defaults_line(jobs[0].config), file=sys.stderr)
    if first or not described:
        print(*cost_of(planned(jobs), first), sep="\n", file=sys.stderr, flush=True)


def _defaults_line(config: JobConfig) -> str:
    """Sentence on what a command without words does."""
    train = config.train
    lengths = config.evaluate.lengths
    return with_command_names(
        f"without further words: encoding={display_name('encoding', config.encoding)} is trained"
        f" for {train.steps:,} steps on {train.train_len} tokens of {config.data['name']}, and"
        f" evaluated to {lengths[-1]:,} tokens; python scripts/run.py --help lists what else can"
        " be chosen"
    )


def _print_nothing_to_do(jobs: list[Job]) -> None:
    """Print that all is there already, and the folders of the runs."""
    print(f"nothing to do: {count_work(jobs, all_paths(jobs))} there already")
    for job in jobs:
        print(f"  {job.run.path}")


def _print_conclusion(
    request: Request, results: list[Result], count_words: str, command: str
) -> int:
    """Print outcomes, then failures or tables. Returns the exit code."""
    _print_outcomes(results, count_words, request.sweep)
    if any(result.failures for result in results):
        if request.sweep:  # the failure of a single job is among its outcomes, printed above
            # Printed last, so that they are read.
            print("\n".join(failure_lines(results)), file=sys.stderr)
            print(
                f"once the cause is removed, this goes on with what is missing:\n  {command}",
                file=sys.stderr,
            )
        return 1
    _show_tables(request, [result.job for result in results])
    statuses = {outcome.status for result in results for outcome in result.outcomes}
    # 2 is the exit code of a refusal. A sweep goes over what it refuses.
    return 2 if "refused" in statuses and not request.sweep else 0


@contextlib.contextmanager
def _reporting_early(jobs: list[Job], number: int | None) -> Iterator[None]:
    """Report as soon as `number` of the jobs have their first evaluation; the rest goes on.

    None: no early report.
    """
    ended = threading.Event()

    def watch() -> None:
        firsts = [next(cell for cell in job.cells if not cell.reference) for job in jobs]
        while sum(cell.path.exists() and not cell.missing_lengths() for cell in firsts) < number:
            if ended.wait(SECONDS_BETWEEN_LOOKS):
                return
        picture = _picture_of_report()
        if picture and not ended.is_set():
            print(
                f"a first picture, of {number} of {len(jobs)} models: {picture}",
                file=sys.stderr,
                flush=True,
            )

    watcher = threading.Thread(target=watch)
    if number and number < len(jobs):
        watcher.start()
    try:
        yield
    finally:
        ended.set()
        if watcher.ident:  # it was started
            watcher.join()  # the next report goes to the same folder


def _picture_of_report() -> str | None:
    """Path of the first picture of a report by the words of this command; None without one."""
    done = subprocess.run(
        [sys.executable, "-m", "posbench", "report", *sys.argv[1:]],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # the jobs that still run have the cores
        stdin=subprocess.DEVNULL,
    )
    for line in done.stdout.splitlines():
        if line.startswith("png "):
            return line.split(maxsplit=1)[1]
    return None


def show_plan(request: Request, jobs: list[Job]) -> int:
    """Print the work that dry=true plans. Returns the exit code: 2 where a single job is refused,
    as without dry=true.

    Raises ConfigError where its trainings could not start.
    """
    from posbench.sweep.dry_run import check_devices, describe_plans, planned

    check_resources([job for job in jobs if not already_done(job)], request.launcher)
    plans = planned(jobs)
    check_devices([plan.job for plan in plans if plan.missing_evaluations], request.launcher)
    print("\n".join(describe_plans(plans)))
    refused = [] if request.sweep else [reason for plan in plans for reason in plan.refusals]
    for reason in dict.fromkeys(refused):
        print(f"refused: {reason}", file=sys.stderr)
    return 2 if refused else 0


def _show_tables(request: Request, jobs: list[Job]) -> None:
    """Print the tables of a single job, or the ranking of a sweep at its longest length."""
    if not any(cell.path.exists() for job in jobs for cell in job.user_cells):
        return
    if request.sweep:
        _show_ranking(jobs)
        script = str(Path(sys.argv[0]).with_name("report.py"))
        words = ["posbench", "report"] if IS_INSTALLED else [sys.orig_argv[0], script]
        print(f"tables and figures:\n  {shlex.join([*words, *sys.argv[1:]])}")
        return
    from posbench.report.report import collect_report

    (job,) = jobs
    paths = [cell.path for cell in job.cells]
    made_report = collect_report(paths, title=job.run.id, command="")
    print(table_text(made_report))
    if made_report.sections or made_report.contexts or made_report.scores:
        return
    # recompute_window alone: tables only show what is compared with it
    for row in made_report.rows:
        window = row["extension_args"]["window"] or row["train_len"]
        print(
            f"{row['extension']} {window} at length {row['length']}: {row['nll']:.3f} +-"
            f" {row['nll_sem']:.3f} nats/token (s.e.)"
        )


def _show_ranking(jobs: list[Job]) -> None:
    """Print the lines of a sweep, ranked at the longest length that it asked for, if two can be
    compared.
    """
    from posbench.report.comparison_request import Request as ComparisonRequest
    from posbench.report.comparison_request import requested_comparisons
    from posbench.report.comparison_tables import Block, blocks_text, ranking_table
    from posbench.report.comparison_words import NATS, Scale, how_compared, result_sentences
    from posbench.report.report import collect_report

    # Files may have more lengths, of earlier commands.
    lengths = {
        cell.path: cell.evaluate.lengths for job in jobs for cell in job.cells if cell.path.exists()
    }
    try:
        report = collect_report(
            list(lengths), title="", command="", skip_damaged=True, lengths=lengths
        )
        rankings = requested_comparisons({"": report}, ComparisonRequest()).comparisons
    except (ConfigError, RunError):
        return  # the report says what is damaged
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    blocks = []
    for comparison in rankings[:MOST_RANKINGS]:
        scale = Scale(NATS, comparison.measure)
        table = ranking_table(comparison, scale)
        blocks.append(Block(table, [result_sentences(comparison, scale)], how_compared(comparison)))
    print(blocks_text(blocks, width))
    if len(rankings) > MOST_RANKINGS:
        print(f"{len(rankings) - MOST_RANKINGS} more rankings: posbench compare shows all")


def _print_outcomes(results: list[Result], count_words: str, sweep: bool) -> None:
    """Print the reasons of outcomes, then the count of the work and the folders of the runs."""
    for result in results:
        for outcome in result.outcomes:
            # A sweep lists its failures at the very end.
            if not outcome.reason or (sweep and outcome.status == "failed"):
                continue
            status = STATUS_WORDS[outcome.status]
            if sweep and outcome.label:
                status += f" ({result.job.run.id}: {outcome.label})"
            file = f" ({result.file})" if result.file else ""
            print(f"{status}: {outcome.reason}{file}", file=sys.stderr)
    print(count_words)
    for path in dict.fromkeys(result.job.run.path for result in results if result.job.run.finished):
        print(f"  {path}")


def _count_words(results: list[Result], jobs: list[Job], to_make: set[Path]) -> str:
    """Text such as "made 2 trainings and 4 evaluations; 1 training there already; 2 no-op".

    The units are those of dry=true. `to_make` are the paths of `jobs` that were not finished when
    the command began."""
    unfinished_paths = unfinished(jobs, among=to_make)
    new_work = count_work(jobs, to_make - unfinished_paths)
    earlier_work = count_work(jobs, all_paths(jobs) - to_make - unfinished_paths)
    parts = []
    if any(new_work):
        parts.append(f"made {new_work}")
    if any(earlier_work):
        parts.append(f"{earlier_work} there already")
    counts = Counter(outcome.status for result in results for outcome in result.outcomes)
    others = [
        f"{number} {STATUS_WORDS[status]}"
        for status, number in counts.items()
        if status not in COUNTED_AS_WORK
    ]
    if others:
        parts.append(", ".join(others))
    return "; ".join(parts)


def run_and_report(request: Request) -> int:
    """Run what is missing, then report on it. Returns the exit code of the first."""
    code = run(request)
    if code == 0 and not request.raw_configs[0]["dry"]:
        report(request)
    return code
