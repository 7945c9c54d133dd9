"""Command of scripts/claims.py: judge the ledger of claims on the evaluations in results_dir or runs=."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.config.compose import CONFIGS, compose, expand
from posbench.config.composer import Composer
from posbench.config.names import nodes
from posbench.config.request import Request


def claims(request: Request) -> int:
    """Print the verdicts and write claims.csv, claims.md and brief.md.

    Works from files alone. Code named in a results folder is never executed.
    """
    import shutil
    import sys

    from posbench.claims.judge import judge
    from posbench.claims.language import load_all
    from posbench.claims.table import brief, markdown, terminal, to_csv
    from posbench.common import defuse
    from posbench.common.files import write_atomic

    cfg = request.cfgs[0]
    if request.sweep or cfg["run"]:
        raise ConfigError(
            "scripts/claims.py judges every claim of results/claims: give it runs= or results_dir=, and no -m, experiment= or run=."
        )
    findings = judge(load_all(CONFIGS.parent / "results" / "claims"), Pools(cfg))
    out = Path(cfg["report_dir"] or Path(cfg["results_dir"]).parent / "report" / "claims")
    print(terminal(findings, shutil.get_terminal_size().columns if sys.stdout.isatty() else None))
    for name, text in (("claims.csv", to_csv(findings)), ("claims.md", defuse.markdown(markdown(findings))), ("brief.md", brief(findings))):
        write_atomic(out / name, text)
        print(f"{name.rpartition('.')[2]:4} {out / name}")
    if not any(one.seeds for one in findings):
        print(f"nothing was measured yet; what was reported: {CONFIGS.parent / 'results' / 'reported' / 'claims' / 'claims.md'}")
    return 0


class Pools:
    """Pools of evaluations per claim, and the command that makes the missing ones."""

    def __init__(self, cfg: dict):
        self.cfg = cfg
        self.pools: dict = {}

    def __call__(self, claim):
        """Look up (Pool, command) of a claim."""
        from posbench.claims.find import Pool

        names = ("runs",) if self.cfg["runs"] is not None else claim.experiments
        if names not in self.pools:
            paths = self._given() if names == ("runs",) else [path for name in names for path in self._planned(name)]
            self.pools[names] = Pool.read(paths, defaults())
        there = [name for name in claim.experiments if _exists(name)]
        command = " and ".join(f"python scripts/run.py experiment={name}" for name in there)
        return self.pools[names], command or f"there is no configs/experiment/{claim.experiments[0]}.yaml"

    def _given(self) -> list[Path]:
        from posbench.runs.directory import Run
        from posbench.runs.search import find

        folders, csvs = find(self.cfg["runs"])
        if csvs:
            raise ConfigError(f"{csvs[0]} holds means, and claims are judged on the losses of single targets: give run directories.")
        return [path for folder in folders for path in Run(folder).eval_files()]

    @cache  # noqa: B019  (lives as long as the command)
    def _planned(self, experiment: str) -> list[Path]:
        from posbench.sweep.jobs import plan_jobs

        if not _exists(experiment):
            return []
        overrides = [f"{key}='{self.cfg[key]}'" for key in ("results_dir", "cache_dir")]
        composer = Composer()
        cfgs = expand(compose([f"experiment={experiment}", *overrides], composer), overrides, composer)
        return [cell.path for job in plan_jobs(cfgs) for cell in job.cells]


def _exists(experiment: str) -> bool:
    return (CONFIGS / "experiment" / f"{experiment}.yaml").exists()


@cache
def defaults() -> dict[tuple[str, str], dict]:
    """{(group, name): arguments in configs/} for encodings and extensions."""
    from posbench.config.identity import method_args, method_name

    return {
        (group, name): method_args(node)
        for group in ("encoding", "extension")
        for name, node in nodes(group).items()
        if method_name(node) == name
    }
