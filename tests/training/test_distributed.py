"""One training in several processes: the same curve as in one, no row read twice, one writer, and
an end for all when one ends.

This file is also what torchrun starts for the tests that look into the processes: `torchrun
tests/training/test_distributed.py FOLDER`."""

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import forked
import pytest
import torch
from conftest import choices, make_method, node, small_model, small_shape
from safetensors.torch import load_file
from script_calls import call
from spoils import with_usual
from test_cli import TINY, Cli
from test_mix import mixed_corpus
from test_train import (
    Log,
    Tiny,
    config,
    failing,
    log_of,
    make_corpus,
    not_a_number,
    tiny,
    token_file,
)
from torch import nn

from posbench.common import machine
from posbench.common.errors import ConfigError
from posbench.common.files import read_json
from posbench.common.signals import Stopped
from posbench.model.build import check_device, pick_device
from posbench.position.plan import training_plan_maker
from posbench.runs.directory import Run
from posbench.training.distributed import World, join
from posbench.training.loop import fit
from posbench.training.trainer import Diverged

pytestmark = pytest.mark.usefixtures("one_thread")
SIZE = 3  # processes, to which a step's eight windows fall as 2, 3 and 3
STOP = 12  # the step in which one of them is told to stop


class Partly(Tiny):
    """Has a matrix that the loss needs at length 16 alone, and one that it never needs."""

    def __init__(self):
        super().__init__()
        self.long, self.never = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)

    def forward(self, tokens_BT, plan, rows_R=None):
        x_BTC = self.embed_tokens(tokens_BT)
        x_BTC = x_BTC + (self.long(x_BTC) if tokens_BT.shape[1] == 16 else self.layers[0](x_BTC))
        return self.lm_head(self.norm(x_BTC))


def partly() -> Partly:
    torch.manual_seed(0)
    return Partly()


def stop_me(model: nn.Module) -> float:
    os.kill(os.getpid(), signal.SIGTERM)
    return 0.0


def thirty(**changes):
    return config(**{"steps": 30, "log_every": 1, "dtype": "fp32", "checkpoint_every": 0} | changes)


CURVES = {
    "muon, tied": (lambda: tiny(tied=True), thirty()),
    "adamw, micro batches": (tiny, thirty(optimizer="adamw", micro_batches=2)),
    "one row each": (tiny, thirty(tokens_per_step=24, micro_batches=4)),
    "lengths, unused": (partly, thirty(length=[8, 16], validate_every=7)),
    "mixed": (tiny, thirty()),
    "cut": (tiny, thirty()),
    "resumed": (tiny, thirty()),
}


def corpus_of(name: str):
    return mixed_corpus() if name == "mixed" else make_corpus()


def encoding_case(name: str) -> tuple[nn.Module, object, object, Callable]:
    """Model, corpus, configuration and plans of two steps of a small GPT with an encoding of
    configs/encoding.
    """
    torch.manual_seed(0)  # for biases of an encoding, whatever test ran before
    model = small_model(make_method(node("encoding", name), small_shape()))
    corpus = make_corpus(train=token_file(3000, 4), validation=token_file(600, 2), vocab_size=50)
    cfg = thirty(length=16, steps=2, tokens_per_step=96, validate_windows=4, lr=1e-3, muon_lr=1e-3)
    return model, corpus, cfg, training_plan_maker(model.encoding, None, "cpu", 0)


def fitted(folder: Path, world: World, model, cfg, corpus, plan_for=lambda n, step: n) -> dict:
    """What became of a training in this process: the hash of its weights, and how it was stopped if
    it was.
    """
    run, ended = Run(folder), ""
    try:
        with run.lock() if world.is_main else contextlib.nullcontext():
            recorder = Log(run.train_log) if world.is_main else None
            fit(
                model,
                corpus,
                cfg,
                seed=0,
                device="cpu",
                run=run,
                recorder=recorder,
                plan_for=plan_for,
                world=world,
            )
    except (Diverged, Stopped) as error:
        ended = str(error) if isinstance(error, Diverged) else error.message
    bits = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
    return {"weights": hashlib.sha256(bits).hexdigest(), "ended": ended}


def work(folder: Path, world: World) -> dict:
    """What one process saw of every case, one after the other."""
    results = {}
    for name, (model, cfg) in CURVES.items():
        # The one that is told to stop is not the one that writes.
        started = failing(stop_me, STOP) if name == "cut" and world.rank == 1 else model()
        with torch.no_grad():
            started.norm.weight += world.rank  # the main one's weights are all that counts
        results[name] = fitted(folder / name, world, started, cfg, corpus_of(name))
    broken = failing(not_a_number, 4) if world.rank == 2 else tiny()
    results["diverged"] = fitted(folder / "diverged", world, broken, thirty(), make_corpus())
    for name in choices("encoding"):
        model, corpus, cfg, plans = encoding_case(name)
        results[name] = fitted(folder / "encoding" / name, world, model, cfg, corpus, plans)
    return results


@pytest.fixture(scope="module")
def together(tmp_path_factory) -> tuple[Path, list[dict]]:
    """The folder in which three processes trained all cases together, and what each of them saw."""
    folder = tmp_path_factory.mktemp("together")
    assert (
        "after step 12 of 30"
        in fitted(folder / "resumed", World(), failing(stop_me, STOP), thirty(), make_corpus())[
            "ended"
        ]
    )
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(SIZE),
        __file__,
        str(folder),
    ]
    paths = os.pathsep.join(filter(None, sys.path))
    done = forked.run(
        command,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return folder, [read_json(folder / f"{rank}.json") for rank in range(SIZE)]


def same_curve(actual: list[dict], expected: list[dict]) -> None:
    assert [line.keys() for line in actual] == [line.keys() for line in expected]
    for key in ("step", "tokens", "lr", "loss", "task_loss", "grad_norm", "validation_loss"):
        # Muon orthogonalizes in bfloat16, where another order of a sum in the gradient can be
        # another digit of the update.
        tolerance = {"rel": 1e-3} if key == "grad_norm" else {"rel": 1e-4, "abs": 1e-6}
        assert [line.get(key, 0) for line in actual] == pytest.approx(
            [line.get(key, 0) for line in expected], **tolerance
        ), key


@pytest.mark.parametrize("name", CURVES)
def test_the_curve_is_that_of_one_process(together, tmp_path, name):
    folder, results = together
    assert len({result[name]["weights"] for result in results}) == 1
    model, cfg = CURVES[name]
    fitted(tmp_path, World(), model(), cfg, corpus_of(name))
    if (
        name == "cut"
    ):  # three processes went as far as step 12, where one was told to stop; this one goes on
        assert {result[name]["ended"] for result in results} == {
            "stopped after step 12 of 30: the same command goes on from there"
        }
        assert [line["step"] for line in log_of(folder / name)] == list(range(1, STOP + 1))
        assert not fitted(folder / name, World(), tiny(seed=9), cfg, corpus_of(name))["ended"]
    same_curve(log_of(folder / name), log_of(tmp_path))
    if name == "lengths, unused":
        for directory in (folder / name, tmp_path):
            assert torch.equal(
                load_file(directory / "model.safetensors")["never.weight"], partly().never.weight
            )


@pytest.mark.parametrize("name", choices("encoding"))
def test_every_encoding_trains_as_in_one_process(together, tmp_path, name):
    folder, results = together
    model, corpus, cfg, plans = encoding_case(name)
    fitted(tmp_path, World(), model, cfg, corpus, plans)
    same_curve(log_of(folder / "encoding" / name), log_of(tmp_path))
    assert len({result[name]["weights"] for result in results}) == 1


def test_a_loss_that_breaks_in_one_process_ends_all_with_one_record(together):
    folder, results = together
    (reason,) = {result["diverged"]["ended"] for result in results}
    assert "loss is nan at step 4 with learning rate" in reason
    assert [line.get("stopped") for line in log_of(folder / "diverged")] == [
        None,
        None,
        None,
        reason,
    ]


def test_one_process_writes(together):
    folder, _ = together
    for name in set(CURVES) - {"cut"}:
        assert {path.name for path in (folder / name).iterdir()} - {".lock"} == {
            "model.safetensors",
            "train.json",
            "train.jsonl",
        }
        assert [line["step"] for line in log_of(folder / name)] == list(range(1, 31))


def test_each_process_has_a_gpu_of_its_own(monkeypatch):
    devices = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    monkeypatch.setattr(machine, "cores", lambda: 2)
    assert [pick_device("auto", rank, 2) for rank in range(2)] == ["cuda:0", "cuda:1"] == devices
    assert pick_device("cpu", 1, 2) == "cpu" and pick_device("auto") == "cuda"


def test_a_gpu_is_looked_for_without_taking_memory_of_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: pytest.fail("made a tensor"))
    for device in ("auto", "cpu", "cuda", "cuda:1"):
        check_device(device)
    with pytest.raises(ConfigError, match=r"device=cuda:2 is not available \(GPUs: 2\): choose"):
        check_device("cuda:2")


def test_a_dry_run_refuses_them_too(tmp_path, text_folder, capfd, monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 3)
    usual = [
        *TINY,
        f"data.path={text_folder}",
        "results_dir=runs",
        "cache_dir=cache",
        "processes=4",
        "dry=true",
    ]

    def output_of(code: int, *more: str) -> str:
        done = call(capfd, tmp_path, "run", *with_usual(*more, usual=usual))
        assert done.returncode == code, done.stderr
        return done.stderr

    assert "refused: processes=4 exceed the 3 cores" in output_of(2)
    # what its task is asked to have counts, and not this machine
    cluster = "hydra/launcher=submitit_slurm"
    output_of(0, cluster, "hydra.launcher.cpus_per_task=4"), output_of(0, cluster, "device=auto")
    assert "processes=4 are more than hydra.launcher.cpus_per_task=3" in output_of(
        2, cluster, "hydra.launcher.cpus_per_task=3"
    )
    assert "or hydra.launcher.gpus_per_node=4" in output_of(
        2, cluster, "device=cuda", "hydra.launcher.gpus_per_node=2"
    )


def test_as_many_trainings_run_at_a_time_as_there_are_cores(monkeypatch, capsys):
    monkeypatch.setattr(machine, "cores", lambda: 4)
    assert [
        machine.jobs_at_a_time(4),
        machine.jobs_at_a_time(2, processes=2),
        machine.jobs_at_a_time(1, processes=9),
    ] == [4, 2, 1]
    assert capsys.readouterr().err == ""
    assert [machine.jobs_at_a_time(1000), machine.jobs_at_a_time(3, processes=2)] == [4, 2]
    assert capsys.readouterr().err.splitlines() == [
        "1000 trainings at a time are more than 4 cores serve: 4 at a time",
        "3 trainings of 2 processes at a time are more than 4 cores serve: 2 at a time",
    ]


@pytest.fixture
def cli(tmp_path: Path, text_folder: Path) -> Cli:
    return Cli(tmp_path, text_folder)


LONG = ["train.steps=200", "train.log_every=10", "train.checkpoint_every=10"]


def started(
    cli: Cli, *overrides: str, popen: type[subprocess.Popen] = forked.Popen
) -> tuple[subprocess.Popen, Run]:
    """A command in two processes, once it has left a checkpoint."""
    command = cli.command("processes=2", *overrides)
    process = popen(
        command, cwd=cli.folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    deadline = time.monotonic() + 100
    while not (states := list(cli.folder.glob("runs/*/state.pt"))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return process, Run(states[0].parent)


def of_rank(rank: int, folder: Path) -> int:
    """The process id of one process of the training that a command in `folder` started."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"RANK={rank}" in path.read_text().split("\0") and os.readlink(
                path.parent / "cwd"
            ) == str(folder):
                return int(path.parent.name)
    raise AssertionError(f"no process of rank {rank}")


def test_a_signal_ends_all_with_a_checkpoint_and_one_process_goes_on(cli):
    process, run = started(cli, *LONG)
    process.send_signal(signal.SIGTERM)
    stderr = process.communicate(timeout=100)[1]
    assert process.returncode == 128 + signal.SIGTERM, stderr
    assert (
        len(
            re.findall(
                r"SIGTERM: stopped after step \d+ of 200: the same command goes on from there",
                stderr,
            )
        )
        == 1
    ), stderr
    assert stderr.count("on cpu in 2 processes") == 1 and "Traceback" not in stderr
    provenance = read_json(run.provenance)
    assert (provenance["processes"], provenance["backend"]) == (2, "gloo")
    assert "going on from step" in cli(*LONG).stderr
    assert [line["step"] for line in log_of(run.path)] == list(range(10, 201, 10))
    assert not list(run.path.glob("*.pt"))


def test_torchrun_in_front_of_the_command_is_refused_once(cli, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, message in (("0", "start it once, without torchrun, with processes=2"), ("1", "")):
        monkeypatch.setenv("RANK", rank)
        done = cli(code=2)
        assert message in done.stderr and bool(done.stderr) == bool(message)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes in /proc")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_is_killed_ends_the_others_and_the_same_command_goes_on(cli, rank):
    process, run = started(
        cli, *LONG, popen=subprocess.Popen
    )  # /proc shows no environment of a fork
    os.kill(of_rank(rank, cli.folder), signal.SIGKILL)
    stderr = process.communicate(timeout=100)[1]
    assert process.returncode == 1 and "Traceback" not in stderr, stderr
    assert stderr.splitlines()[-1].startswith(
        "failed: ended by SIGKILL (the system may have run out of memory)"
    ), stderr
    with pytest.raises(AssertionError, match="no process"):
        of_rank(1 - rank, cli.folder)
    assert "going on from step" in cli("processes=2", *LONG).stderr
    assert [line["step"] for line in log_of(run.path)] == list(range(10, 201, 10))


@pytest.mark.slow
def test_a_sweep_killed_outright_leaves_no_process_behind(cli):
    process, run = started(cli, "train.steps=100000", "train.checkpoint_every=20")
    process.kill()
    process.communicate(timeout=100)
    with run.lock(wait=True):  # a test's time limit is the deadline
        assert run.state.exists() and not run.finished


if __name__ == "__main__":
    torch.set_num_threads(1)
    world = join()
    results = work(Path(sys.argv[1]), world)
    (Path(sys.argv[1]) / f"{world.rank}.json").write_text(json.dumps(results))
    world.leave()
