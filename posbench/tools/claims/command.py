"""Command of scripts/claims.py: judge the claims on evaluations in results_dir or runs=."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

from posbench.common import defuse
from posbench.common.csv_records import to_csv
from posbench.common.errors import ConfigError
from posbench.common.files import write_atomic
from posbench.config.command_line import print_files
from posbench.config.compose import (
    Composer,
    Request,
    check_words_have_effect,
    compose,
    raw_configs_of_jobs,
)
from posbench.config.identity import method_args, method_name
from posbench.config.names import CONFIGS_FOLDER, shipped_yamls
from posbench.results.search import Results, find_results
from posbench.sweep.jobs import plan_existing
from posbench.tools.claims.find import Pool, text_of_experiment
from posbench.tools.claims.judge import Finding, judge, seeds_of_later_stages
from posbench.tools.claims.language import Claim, load_claims
from posbench.tools.claims.table import (
    brief_markdown,
    ledger_markdown,
    read_findings,
    terminal_table,
)

# Of a checkout; an installed package has none.
CLAIMS_FOLDER = CONFIGS_FOLDER.parent / "results" / "claims"
# Stage one as it was decided.
REPORTED_LEDGER = CONFIGS_FOLDER.parent / "results" / "reported" / "claims" / "claims.csv"
KEYS_WITH_EFFECT = ("runs", "results_dir", "cache_dir", "report_dir")


def claims(request: Request) -> None:
    """Print the verdicts and write claims.csv, claims.md and brief.md.

    Works from files alone. Code named in a results folder is never executed.
    """
    raw = request.raw_configs[0]
    _check_request(request, raw)
    all_claims = load_claims(CLAIMS_FOLDER)
    look_up = pool_lookup(raw)
    findings_here = judge(all_claims, look_up)
    findings = _with_reported_stage_one(findings_here)
    _print_unused_seeds(all_claims, findings_here, look_up)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print(terminal_table(findings, width))
    out = Path(raw["report_dir"] or Path(raw["results_dir"]).parent / "report" / "claims")
    texts = {
        "claims.csv": to_csv(findings, Finding),
        "claims.md": defuse.markdown(ledger_markdown(findings)),
        "brief.md": brief_markdown(findings),
    }
    for name, text in texts.items():
        write_atomic(out / name, text)
    print_files(out / name for name in texts)
    if not any(finding.seeds for finding in findings):
        print(
            f"nothing was measured yet; what was reported: {REPORTED_LEDGER.with_name('claims.md')}"
        )


def _check_request(request: Request, config: dict) -> None:
    """Raise ConfigError for words that say nothing to this command, and outside of a checkout."""
    if request.sweep or config["run"]:
        raise ConfigError(
            "scripts/claims.py judges every claim of results/claims: give it runs= or results_dir=,"
            " and no -m, experiment= or run=."
        )
    check_words_have_effect(
        request.words,
        KEYS_WITH_EFFECT,
        "on the verdicts, which come from files alone: leave it out",
    )
    if not CLAIMS_FOLDER.is_dir():
        raise ConfigError(
            f"{CLAIMS_FOLDER} does not exist: the ledger of claims is in the repository, so run"
            " this command in a clone."
        )


def _print_unused_seeds(
    ledger: list[Claim], judged: list[Finding], look_up: Callable[[Claim], tuple[Pool, str]]
) -> None:
    """Print the seeds that are reserved for later stages, if evaluations of such were left out."""
    evaluated = set()
    for claim in ledger:
        if not claim.test:
            pool, _ = look_up(claim)
            evaluated |= {entry.first["seed"] for entry in pool.evaluations}
    used = {int(seed) for finding in judged for seed in (finding.seeds or "").split()}
    later_seeds = seeds_of_later_stages(ledger)
    unused = sorted((evaluated & later_seeds) - used)
    if unused:
        print(
            f"left out: seeds {', '.join(map(str, unused))}, which a later stage names and stage"
            f" one leaves to it; those from {max(later_seeds) + 1} on are free"
        )


def _with_reported_stage_one(findings: list[Finding]) -> list[Finding]:
    """Findings, with stage one as it was decided if only later stages were measured."""
    measured_stages = {finding.stage for finding in findings if finding.seeds}
    if not measured_stages or 1 in measured_stages or not REPORTED_LEDGER.exists():
        return findings
    print(f"stage one was not measured here: its verdicts are those of {REPORTED_LEDGER}")
    of_stage_one = [finding for finding in read_findings(REPORTED_LEDGER) if finding.stage == 1]
    return of_stage_one + [finding for finding in findings if finding.stage > 1]


def pool_lookup(config: dict) -> Callable[[Claim], tuple[Pool, str]]:
    """Look-up of the evaluations of a claim, and of the command that makes the missing ones."""

    @cache
    def planned_eval_files(experiment: str) -> list[Path]:
        """Paths of all evaluations that an experiment plans; [] if its text is not here."""
        overrides = [f"{key}='{config[key]}'" for key in ("results_dir", "cache_dir")]
        composer = Composer()
        composed = compose([f"experiment={experiment}", *overrides], composer)
        try:
            jobs, _ = plan_existing(raw_configs_of_jobs(composed, overrides, composer))
        except ConfigError as error:  # its text is not on this machine
            print(f"experiment={experiment} is left out, and its claims are not measured: {error}")
            return []
        return [cell.path for job in jobs for cell in job.cells]

    @cache
    def pool_of(experiments: tuple[str, ...]) -> Pool:
        """Evaluations of runs=, if it is given, and of experiments."""
        results = Results([], [], [])
        if config["runs"] is not None:
            results = find_results(config["runs"])
        why_without_csvs = "holds means, and claims are judged on sums over documents"
        paths = results.without_csvs(why_without_csvs).eval_files()
        for experiment in experiments:
            paths = paths + planned_eval_files(experiment)
        return Pool.read(paths, default_arguments(), results.evidence)

    @cache
    def pool_of_texts(experiments: tuple[str, ...], texts: frozenset[str]) -> Pool:
        """The same pool, which takes evaluations of these texts where several fit."""
        return replace(pool_of(experiments), texts=texts)

    def look_up(claim: Claim) -> tuple[Pool, str]:
        commands = [f"python scripts/run.py experiment={name}" for name in claim.experiments]
        # With runs= all claims share the pool of these; else each has what its experiments plan.
        experiments = claim.experiments if config["runs"] is None else ()
        texts = frozenset(map(text_of_experiment, claim.experiments))
        return pool_of_texts(experiments, texts), " and ".join(commands)

    return look_up


@cache
def default_arguments() -> dict[tuple[str, str], dict]:
    """{(group, name): arguments in configs/} for encodings and extensions."""
    arguments = {}
    for group in ("encoding", "extension"):
        for name, node in shipped_yamls(group).items():
            # Another yaml chooses arguments of a method, and does not say its defaults.
            if method_name(node) == name:
                arguments[group, name] = method_args(node)
    return arguments
