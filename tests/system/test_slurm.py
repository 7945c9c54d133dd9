"""Sweeps through a real SLURM of one node; skipped, with the reason, where it is not installed or
does not start.
"""

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import slurm_cluster
from ledger_lines import read_ledger
from slurm_cluster import Cluster, Unavailable
from test_cli import Cli, write_the_readmes_method

SLURM = ("hydra/launcher=submitit_slurm", "hydra.launcher.cpus_per_task=1")
LONG = ("train.steps=1000", "train.optimizer=adamw", "train.clip=0")


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    if reason := slurm_cluster.missing():
        pytest.skip(reason)
    try:
        with Cluster() as cluster:
            yield cluster
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def cluster(running: Cluster, monkeypatch) -> Iterator[Cluster]:
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield running
    running.empty()


@pytest.fixture
def cli(tmp_path: Path, text_folder: Path) -> Cli:
    return Cli(tmp_path, text_folder)


class Started:
    """A command that goes on while the test does something to its tasks."""

    def __init__(self, cli: Cli, *typed: str) -> None:
        self.cli = cli
        self.output_path = cli.folder / "said"
        with open(self.output_path, "wb") as output:
            self.process = subprocess.Popen(
                cli.command(*typed, *SLURM),
                cwd=cli.folder,
                stdout=output,
                stderr=output,
                preexec_fn=lambda: signal.signal(
                    signal.SIGINT, signal.SIG_DFL
                ),  # ignored where the tests run in the background
            )

    def until(self, true: Callable[[], object], seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < deadline and self.process.poll() is None, (
                self.output_path.read_text() + self.logs()
            )
            time.sleep(0.05)

    def reaches(self, step: int, runs: str) -> None:
        """Until a run's log has a step."""
        self.until(
            lambda: any(
                f'"step": {step},' in path.read_text()
                for path in self.cli.folder.glob(f"runs/{runs}/train.jsonl")
            )
        )

    def array(self) -> str:
        self.until(lambda: re.search(r"as job (\d+)", self.output_path.read_text()))
        return re.search(r"as job (\d+)", self.output_path.read_text())[1]

    def ends(self, code: int, seconds: float = 240) -> str:
        assert self.process.wait(seconds) == code, self.output_path.read_text() + self.logs()
        return self.output_path.read_text()

    def logs(self) -> str:
        return "\n".join(
            path.read_text()
            for path in sorted(
                (self.cli.folder / "runs" / ".hydra" / ".submitit").glob("*/*_log.*")
            )
        )


def start_again(cluster: Cluster, started: Started, task: str) -> None:
    """A task in the queue that SLURM would let wait two minutes before its next turn."""
    started.until(
        lambda: (
            cluster.call("squeue", "-h", "-r", "-o", "%i %T").splitlines().count(f"{task} PENDING")
        )
    )
    cluster.call("scontrol", "update", f"JobId={task}", "StartTime=now", check=False)


def same_weights(cli: Cli, *typed: str) -> None:
    """The one training of the folder equals that of an undisturbed run, byte by byte."""
    (run,) = cli.runs()
    cli(*typed, f"results_dir={cli.folder}/whole")
    (undisturbed,) = (cli.folder / "whole" / run.name).glob("model.safetensors")
    assert undisturbed.read_bytes() == (run / "model.safetensors").read_bytes()


@pytest.mark.timeout(900)  # of which a free machine needs 25 s
def test_a_sweep_in_slurm_survives_a_requeue_and_a_failure(cli, cluster):
    started = Started(cli, "-m", "train.lr=1e-3,1e30", "extension=none,pi", *LONG)
    started.reaches(100, "*")
    task = f"{started.array()}_0"
    assert len(cluster.call("squeue", "-h", "-r", "-t", "all", "-o", "%i").splitlines()) == 2
    cluster.call("scontrol", "requeue", task)
    start_again(cluster, started, task)
    output = started.ends(1)
    assert (
        "SIGTERM: stopped after step" in started.logs() and "going on from step" in started.logs()
    )
    assert (
        "try a lower train.lr" in output.split("reason and file")[1] and "Traceback" not in output
    )
    lines = read_ledger(cli.folder / "runs")
    assert sorted(line["status"] for line in lines) == ["failed", "interrupted", "ok", "ok"]
    assert "FAILED" in cluster.call("squeue", "-h", "-r", "-t", "all", "-o", "%T")
    command = json.loads((cli.runs()[0] / "provenance.json").read_text())["command"]
    assert "train.lr=1e-3,1e30" in command and "/run.py" in command
    assert not list((cli.folder / "runs" / ".hydra" / ".submitit").glob("*.json*"))
    same_weights(cli, "train.lr=1e-3", *LONG)


@pytest.mark.slow
def test_a_task_told_to_make_room_ends_with_the_weights_of_an_undisturbed_one(cli, cluster):
    started = Started(cli, *LONG)
    started.reaches(100, "*")
    task = started.array()
    cluster.call("scancel", "--signal=USR2", task)
    started.until(lambda: "Requeued job" in started.logs())
    start_again(cluster, started, task)
    started.ends(0)
    assert "going on from step" in started.logs()
    same_weights(cli, *LONG)


@pytest.mark.slow
def test_ctrl_c_leaves_tasks_to_the_cluster_and_the_same_command_waits_for_them(cli, cluster):
    typed = (
        "-m",
        "seed=0,1",
        *LONG[1:],
        "train.steps=5000",
    )  # still at it when the second command comes
    started = Started(cli, *typed)
    started.reaches(100, "*")
    array = started.array()
    started.process.send_signal(signal.SIGINT)
    assert f"2 trainings go on by themselves (scancel {array} ends them" in started.ends(130)
    output = Started(cli, *typed).ends(0)
    assert "2 of 2 trainings are in the queue already" in output and "submitted" not in output
    assert len(cli.runs()) == 2 and [
        line["status"] for line in read_ledger(cli.folder / "runs")
    ] == ["ok", "ok"]


@pytest.mark.slow
def test_a_users_own_classes_reach_the_cluster(cli, cluster):
    write_the_readmes_method(cli.folder / "mine")
    cli("--config-dir", "mine", "encoding=learned_alibi", *SLURM)
    (run,) = cli.runs()
    cli("--config-dir", "mine", f"run={run}", "extension=window", *SLURM)
    assert len(list(run.glob("evals/*/window*.json"))) == 1
