"""Ids of runs and evaluations that are reported: whatever moves or is checked anew, the same
command must find the same files.
"""

import csv

import pytest
from conftest import CONFIGS
from hydra import compose, initialize_config_dir

from posbench.common import machine
from posbench.config import compose as composition
from posbench.config.compose import unresolved_values
from posbench.sweep.jobs import plan_jobs

REPORTED = CONFIGS.parent / "results" / "reported"
PINNED = {"rope-64-s0-9bdff909b4", "alibi-64-s0-0acd74e8cd", "sinusoidal-64-s0-72f8ee5dae"}


@pytest.fixture(scope="module", params=["cpu", "gpu"])
def jobs(request):
    """Of the demo, on a CPU with bf16 products, and beside a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "multiplies_bf16", lambda: request.param == "cpu")
        patch.setattr(machine, "GPU_FILES", ["/"])
        patch.setattr(machine, "gpus", lambda: request.param == "gpu")
        yield planned()


def planned():
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        cfg = compose("run", ["experiment=demo"])
        return plan_jobs(
            composition.raw_configs_of_jobs(unresolved_values(cfg), ["experiment=demo"])
        )


def test_run_ids_of_the_demo_stay(jobs):
    assert {job.run.id for job in jobs} == PINNED


def test_ids_of_the_demos_evaluations_stay(jobs):
    with open(REPORTED / "demo" / "rows.csv", newline="") as lines:
        reported = {
            (row["run_id"], row["eval_id"], int(row["length"])) for row in csv.DictReader(lines)
        }
    evaluations = {
        (job.run.id, cell.eval_id, length)
        for job in jobs
        for cell in job.cells
        for length in cell.evaluate.lengths
    }
    assert reported and evaluations >= reported
