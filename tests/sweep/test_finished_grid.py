"""A grid whose every file is there: the same command again looks, says so, and starts nothing."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import CONFIGS
from ledger_lines import read_ledger
from script_calls import call
from spoils import PLACES, SMALL, write_text

from posbench.cli import commands
from posbench.runs.rows import DERIVED, TABLE, eval_content, make_row
from posbench.sweep import ledger
from posbench.sweep.jobs import Job

FILLER = {int: 1, float: 1.0, str: "x", bool: False, dict: {}}
METHODS = "none,pi,ntk,abf,dca,rerope,leaky_rerope,window,streaming,yarn"


def planned(capfd: pytest.CaptureFixture, folder: Path, *typed: str) -> list[Job]:
    """The jobs of a command, without running any."""
    jobs: list[Job] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands, "is_done", lambda job: jobs.append(job) or True)
        patch.setattr(commands, "record", lambda *_: None)
        patch.setattr(commands, "_show_tables", lambda *_: None)
        assert call(capfd, folder, "run", *typed, *SMALL, *PLACES).returncode == 0
    return jobs


def finish(folder: Path, jobs: list[Job]) -> None:
    """Write what these jobs would have left, as far as a planner looks."""
    row = {column.name: FILLER[column.kind] for column in TABLE if column.name not in DERIVED}
    for job in jobs:
        (folder / job.run.path).mkdir(parents=True)
        (folder / job.run.summary).write_text(json.dumps({"sha256": ""}))
        for cell in job.cells:
            path = folder / cell.path
            path.parent.mkdir(parents=True, exist_ok=True)
            found = [make_row(**{**row, "length": length}) for length in cell.evaluate.lengths]
            path.write_text(json.dumps(eval_content(found, {})))


@pytest.mark.slow
def test_a_finished_grid_of_a_hundred_cells_is_seen_to_be_finished(tmp_path, capfd):
    write_text(tmp_path / "text")
    grid = ("-m", "seed=0,1,2,3,4,5,6,7,8,9", f"extension={METHODS}", "allow_untested=true")
    finish(tmp_path, planned(capfd, tmp_path, *grid))
    before = sorted(tmp_path.rglob("*"))
    command = [sys.executable, str(CONFIGS.parent / "scripts" / "run.py"), *grid, *SMALL, *PLACES]
    began, used = time.monotonic(), os.times().children_user
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    took, used = time.monotonic() - began, os.times().children_user - used
    with capfd.disabled():
        print(f"\na finished grid of 100 cells: {took:.1f} s, {used:.1f} s of CPU")
    assert done.returncode == 0 and done.stdout.startswith("nothing to do: 10 trainings and 120 evaluations are there already"), done.stderr
    assert not done.stderr and used < 30  # of CPU: other work on the machine is not what is measured
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "runs" / ledger.NAME])
    assert [entry["status"] for entry in read_ledger(tmp_path / "runs")] == ["skipped"] * 100
