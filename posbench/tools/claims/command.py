"""Command of scripts/claims.py: judge the ledger of claims on the evaluations in results_dir or
runs=.
"""

import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from posbench.common import defuse
from posbench.common.csv_records import to_csv
from posbench.common.errors import ConfigError
from posbench.common.files import write_atomic
from posbench.config.compose import Composer, Request, check_effect, compose, expand
from posbench.config.identity import method_args, method_name
from posbench.config.names import CONFIGS, nodes
from posbench.results.search import Found, find_results
from posbench.sweep.jobs import plan_existing
from posbench.tools.claims.find import Pool
from posbench.tools.claims.judge import Finding, judge, reserved
from posbench.tools.claims.language import Claim, load_all
from posbench.tools.claims.table import brief, ledger_markdown, read_findings, terminal

CLAIMS_FOLDER = (
    CONFIGS.parent / "results" / "claims"
)  # of a checkout; an installed package has none
FROZEN = (
    CONFIGS.parent / "results" / "reported" / "claims" / "claims.csv"
)  # stage one as it was decided
READ_WORDS = ("runs", "results_dir", "cache_dir", "report_dir")


def claims(request: Request) -> None:
    """Print the verdicts and write claims.csv, claims.md and brief.md.

    Works from files alone. Code named in a results folder is never executed.
    """
    cfg = request.cfgs[0]
    if request.sweep or cfg["run"]:
        raise ConfigError(
            "scripts/claims.py judges every claim of results/claims: give it runs= or results_dir=,"
            " and no -m, experiment= or run=."
        )
    check_effect(
        request.words, READ_WORDS, "on the verdicts, which come from files alone: leave it out"
    )
    if not CLAIMS_FOLDER.is_dir():
        raise ConfigError(
            f"{CLAIMS_FOLDER} does not exist: the ledger of claims is in the repository, so run"
            " this command in a clone."
        )
    ledger, look_up = load_all(CLAIMS_FOLDER), pools(cfg)
    findings = _with_frozen(judged := judge(ledger, look_up))
    there = {
        entry.first["seed"]
        for claim in ledger
        if not claim.test
        for entry in look_up(claim)[0].evaluations
    }
    later = reserved(ledger)
    unused = sorted(
        there & later - {int(seed) for one in judged for seed in (one.seeds or "").split()}
    )
    if unused:
        named, free = ", ".join(map(str, unused)), max(later) + 1
        print(
            f"left out: seeds {named}, which a later stage names and stage one leaves to it; those"
            f" from {free} on are free"
        )
    out = Path(cfg["report_dir"] or Path(cfg["results_dir"]).parent / "report" / "claims")
    print(terminal(findings, shutil.get_terminal_size().columns if sys.stdout.isatty() else None))
    page = defuse.markdown(ledger_markdown(findings))
    for name, text in (
        ("claims.csv", to_csv(findings, Finding)),
        ("claims.md", page),
        ("brief.md", brief(findings)),
    ):
        write_atomic(out / name, text)
        print(f"{name.rpartition('.')[2]:4} {out / name}")
    if not any(one.seeds for one in findings):
        print(f"nothing was measured yet; what was reported: {FROZEN.with_name('claims.md')}")


def _with_frozen(findings: list[Finding]) -> list[Finding]:
    """Findings, with stage one as it was decided if only later stages were measured."""
    measured = {one.stage for one in findings if one.seeds}
    if not measured or 1 in measured or not FROZEN.exists():
        return findings
    print(f"stage one was not measured here: its verdicts are those of {FROZEN}")
    return [one for one in read_findings(FROZEN) if one.stage == 1] + [
        one for one in findings if one.stage > 1
    ]


def pools(cfg: dict) -> Callable[[Claim], tuple[Pool, str]]:
    """Look-up of the evaluations that serve a claim, and of the command that makes the missing
    ones.
    """

    @cache
    def planned(experiment: str) -> list[Path]:
        overrides, composer = (
            [f"{key}='{cfg[key]}'" for key in ("results_dir", "cache_dir")],
            Composer(),
        )
        cfgs = expand(
            compose([f"experiment={experiment}", *overrides], composer), overrides, composer
        )
        return [cell.path for job in plan_existing(cfgs)[0] for cell in job.cells]

    @cache
    def pool(experiments: tuple[str, ...]) -> Pool:
        named = find_results(cfg["runs"]) if cfg["runs"] is not None else Found([], [], [])
        given = named.without_csvs(
            "holds means, and claims are judged on sums over documents"
        ).eval_files()
        return Pool.read(
            given + [path for name in experiments for path in planned(name)],
            defaults(),
            named.evidence,
        )

    def look_up(claim: Claim) -> tuple[Pool, str]:
        command = " and ".join(
            f"python scripts/run.py experiment={name}" for name in claim.experiments
        )
        return pool(tuple(claim.experiments) if cfg["runs"] is None else ()), command

    return look_up


@cache
def defaults() -> dict[tuple[str, str], dict]:
    """{(group, name): arguments in configs/} for encodings and extensions."""
    return {
        (group, name): method_args(node)
        for group in ("encoding", "extension")
        for name, node in nodes(group).items()
        if method_name(node) == name
    }
