"""dry=true: what a command would do, judged as the jobs themselves would judge it, before anything starts."""

from __future__ import annotations

import statistics
from pathlib import Path

from posbench.build import make_encoding, make_trained_scale
from posbench.cells import Cell, Job
from posbench.errors import ConfigError
from posbench.files import read_json
from posbench.interfaces import Encoding
from posbench.job import judge


def describe(jobs: list[Job]) -> list[str]:
    """Lines for each training and evaluation, then what they cost by the measure of the runs that are there."""
    lines = []
    for job in jobs:
        encoding = make_encoding(job.cfg)
        try:
            make_trained_scale(job.cfg, encoding)
        except ConfigError as error:
            lines.append(f"{job.run.path}  refused: {error}")
            continue
        lines.append(f"{job.run.path}  {'trained' if job.run.finished else 'to train'}")
        lines += [f"  {cell.label}: {_fate(encoding, cell)}" for cell in job.cells]
    return lines + _cost(jobs)


def _fate(encoding: Encoding, cell: Cell) -> str:
    try:
        verdict = judge(encoding, cell)
    except ConfigError as error:
        return f"refused: {error}"
    if verdict.noop:
        return f"no-op: {verdict.noop}"
    missing = cell.missing()
    return ("lengths " + " ".join(map(str, missing)) if missing else "there already") + (" (untested pair)" if verdict.untested else "")


def _cost(jobs: list[Job]) -> list[str]:
    fresh = [job for job in jobs if not job.run.finished]
    tokens = sum(job.cfg["train"]["steps"] * job.cfg["train"]["tokens_per_step"] for job in fresh)
    line = f"{len(fresh)} of {len(jobs)} trainings to make, {tokens / 1e6:.1f} M tokens"
    known = [path for job in jobs[:1] for path in Path(job.cfg["results_dir"]).glob("*/train.json")]
    if not known or not fresh:
        return [line]
    speed = statistics.median(read_json(path)["tokens_per_second"] or 0 for path in known) * jobs[0].cfg["jobs"]
    size = statistics.median(sum(file.stat().st_size for file in path.parent.rglob("*") if file.is_file()) for path in known)
    minutes = f"about {tokens / speed / 60:.0f} min of training" if speed else "time unknown"
    return [f"{line}; by the {len(known)} runs that are there {minutes} and {size * len(fresh) / 2**20:.0f} MiB of disk"]
