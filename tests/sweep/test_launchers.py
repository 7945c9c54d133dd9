"""hydra/launcher=NAME: whichever it is, whole trainings are handed over, each is made once, and a
failure costs no other.
"""

import json
import os
import shlex
from pathlib import Path

import pytest
from conftest import CONFIGS
from ledger_lines import read_ledger
from omegaconf import OmegaConf
from test_cli import Cli

from posbench.common.errors import RunError
from posbench.config.schema import JobConfig
from posbench.runs.directory import Run
from posbench.sweep import cluster as cluster_queue
from posbench.sweep import launch as launching
from posbench.sweep.cluster_task import Task
from posbench.sweep.jobs import Job
from posbench.sweep.launch import launch

LAUNCHERS = CONFIGS / "hydra" / "launcher"


@pytest.fixture
def cli(tmp_path: Path, text_folder: Path) -> Cli:
    return Cli(tmp_path, text_folder)


def settings(name: str, folder: Path = Path("/nowhere")) -> dict:
    yaml = OmegaConf.create(
        {
            "results_dir": str(folder),
            "hydra": {"launcher": OmegaConf.load(LAUNCHERS / f"{name}.yaml")},
        }
    )
    return {"n_jobs": 3, **OmegaConf.to_container(yaml, resolve=True)["hydra"]["launcher"]}


def ended(cli: Cli) -> dict[str, list[str]]:
    """What the ledger says of each run."""
    statuses: dict[str, list[str]] = {}
    for line in read_ledger(cli.folder / "runs"):
        statuses.setdefault(line["run_id"], []).append(line["status"])
    return statuses


def test_joblib_makes_each_training_of_24_cells_once_and_for_an_experiment_too(cli):
    (cli.folder / "mine" / "experiment").mkdir(parents=True)
    extensions = "none, pi, rerope, leaky_rerope, ntk, window"
    grid = (
        f"name: grid\ngrid:\n  - {{encoding: [rope, none], extension: [{extensions}],"
        " scale_attention: [none, log_n]}\n"
    )
    (cli.folder / "mine" / "experiment" / "grid.yaml").write_text(grid)
    typed = (
        "--config-dir",
        str(cli.folder / "mine"),
        "experiment=grid",
        "hydra/launcher=joblib",
        "hydra.launcher.n_jobs=2",
    )
    done = cli(*typed)
    assert len(cli.runs()) == 2 and done.stderr.count("train 4/4 steps") == 2
    statuses = [status for statuses in ended(cli).values() for status in statuses]
    assert (
        len(statuses) == 24
        and set(statuses) <= {"ok", "noop", "refused"}
        and statuses.count("ok") >= 14
    )
    for run in cli.runs():
        assert json.loads((run / "provenance.json").read_text())["command"] == shlex.join(
            cli.command(*typed)
        )


@pytest.mark.parametrize(
    "launcher", ["basic", pytest.param("submitit_local", marks=pytest.mark.slow)]
)
def test_a_failing_training_costs_no_other(cli, launcher):
    grid = (
        "-m",
        "train.lr=1e30,1e-3",
        "extension=none,pi",
        "train.optimizer=adamw",
        "train.clip=0",
    )
    done = cli(*grid, f"hydra/launcher={launcher}", "jobs=2", code=1)
    assert len(cli.runs()) == 1 and sorted(map(len, ended(cli).values())) == [1, 2]
    assert "try a lower train.lr" in done.stderr.split("reason and file")[1]
    assert f"hydra/launcher={launcher}" in done.stderr.rstrip().splitlines()[-1]
    assert (
        "nothing to do"
        in cli(*grid[:1], "train.lr=1e-3", *grid[2:], f"hydra/launcher={launcher}").stdout
    )


def test_a_launcher_says_how_many_run_at_a_time(monkeypatch):
    parallels = []
    monkeypatch.setattr(
        launching,
        "run_jobs",
        lambda jobs, parallel, command, done: parallels.append(parallel) or [],
    )
    monkeypatch.setattr("joblib.effective_n_jobs", lambda n_jobs: 8 if n_jobs == -1 else n_jobs)
    for name in ("grid", "basic", "joblib"):
        launch([], settings(name), "")
    assert parallels == [3, 1, 8]


class Pretended:
    """Commands named as SLURM's, on a PATH of their own: sbatch keeps its file, squeue prints what
    a test says.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        self.write("srun", "exit 0")
        self.write("squeue", f"cat {folder}/queue || exit 1")
        self.write("sbatch", f'cp "$1" {folder}/sent; echo Submitted batch job 7')

    def write(self, name: str, line: str) -> None:
        (self.folder / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (self.folder / "bin" / name).chmod(0o755)

    def job(self, name: str, seed: int = 0) -> Job:
        config = JobConfig(seed=seed, results_dir=str(self.folder))
        return Job(config, Run(self.folder / name), "")


@pytest.fixture
def slurm(tmp_path, monkeypatch) -> Pretended:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    return Pretended(tmp_path)


def test_an_array_has_a_task_for_each_training_and_every_setting_of_the_yaml(slurm):
    queue = cluster_queue.Queue(
        {**settings("submitit_slurm", slurm.folder), "partition": "gpu", "mem_gb": 8}, "the command"
    )
    tasks = queue.submit([slurm.job(name) for name in ("a", "b", "c")])
    assert [task.id for task in tasks] == ["7_0", "7_1", "7_2"]
    sent = (slurm.folder / "sent").read_text()
    expected_lines = (
        "array=0-2%3",
        "partition=gpu",
        "mem=8GB",
        "requeue\n",
        "signal=USR2@120",
        "time=240",
        "cpus-per-task=4",
    )
    assert [line for line in expected_lines if f"#SBATCH --{line}" not in sent] == []
    assert "srun" in sent and sent.count("--cpus-per-task=4") == 2


def test_a_task_in_the_queue_is_not_submitted_again(slurm):
    launcher, jobs = (
        settings("submitit_slurm", slurm.folder),
        [slurm.job(name) for name in ("a", "b")],
    )
    first, _ = cluster_queue.Queue(launcher, "the command").submit(jobs)
    (slurm.folder / "queue").write_text("7_0|PENDING\n7_1|CANCELLED\n3_N/A|RUNNING\n")
    left = list(jobs)
    (task,) = cluster_queue.Queue(launcher, "the command").attach(left)
    assert task.id == "7_0" and task.spec == first.spec and left == jobs[1:]
    changed = slurm.job("a", seed=1)
    assert not cluster_queue.Queue(launcher, "the command").attach([changed])


def test_a_task_is_given_up_only_when_the_cluster_says_so(slurm, monkeypatch):
    monkeypatch.setattr(cluster_queue, "ASK_SECONDS", -1.0)
    monkeypatch.setattr(cluster_queue, "LOST_SECONDS", 0.0)
    queue = cluster_queue.Queue(settings("submitit_slurm", slurm.folder), "the command")
    tasks = queue.submit([slurm.job("a"), slurm.job("b")])
    (slurm.folder / "queue").write_text("7_0|RUNNING\n7_1|PENDING\n")
    assert queue.ended(tasks) == []
    (slurm.folder / "queue").unlink()  # squeue fails
    assert queue.ended(tasks) == [] and queue.ended(tasks) == []
    (slurm.folder / "queue").write_text("7_0|OUT_OF_MEMORY\n7_1|RUNNING\n")
    ended_tasks = queue.ended(tasks) or queue.ended(tasks)
    ((task, result),) = ended_tasks
    assert task is tasks[0] and "task 7_0 ended as OUT_OF_MEMORY" in result.failures[0].reason
    assert result.file.exists() and read_ledger(slurm.folder)[-1]["status"] == "failed"


def test_what_is_refused_or_changes_nothing_needs_no_task(slurm, text_folder):
    cli = Cli(slurm.folder, text_folder)
    done = cli("-m", "encoding=alibi,none", "extension=ntk", "hydra/launcher=submitit_slurm")
    assert done.stdout.startswith("1 refused, 1 no-op") and "alibi has no spectrum" in done.stderr
    assert sorted(line["status"] for line in read_ledger(slurm.folder / "runs")) == [
        "noop",
        "refused",
    ]
    assert not (slurm.folder / "sent").exists() and not cli.runs()


def test_a_cluster_that_takes_no_jobs_is_one_sentence(slurm):
    slurm.write("sbatch", "echo sbatch: error: invalid partition >&2; exit 1")
    queue = cluster_queue.Queue(settings("submitit_slurm", slurm.folder), "the command")
    with pytest.raises(RunError, match="takes? .*invalid partition"):
        queue.submit([slurm.job("a")])
    assert not list(queue.folder.glob("*.json"))


def test_a_task_that_cannot_run_says_so(tmp_path):
    spec = tmp_path / "spec.json"
    spec.write_text(
        json.dumps(
            {"cfgs": [{"run": str(tmp_path / "none")}], "command": "the command", "environment": {}}
        )
    )
    Task()(str(spec))
    outcome = json.loads((tmp_path / "spec.json.outcome").read_text())
    assert outcome["code"] == 2 and "holds no training" in outcome["outcomes"][0]["reason"]
