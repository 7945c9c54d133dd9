"""What wandb really stores and sends: its own `wandb sync` and `wandb leet inspect` read the files,
a local server takes what they send.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote

import forked
import numpy as np
import pytest
from synthetic import TARGETS, write_eval
from test_rows import stored
from wandb_server import serving, silence

from posbench.runs.directory import Run
from posbench.runs.rows import read_eval

WANDB = Path(sys.executable).parent / "wandb"
ID = "rope-64-s0-0123456789"
PLAIN = {"extension": "none", "extension_args": {}, "run_id": ID, "protocol": "by_position"}
JOB = """
import json, sys, time
from posbench.sweep import recorder, wandb_mirror
from posbench.config.schema import LogConfig
from posbench.runs.directory import Run
path, job_type, first, last, pause, rows, ok, patience = json.loads(sys.argv[1])
wandb_mirror.PATIENCE = patience
config = {"encoding": {"_target_": "posbench.encodings.rope.Rope", "base": 10000.0}, "seed": 0}
log = LogConfig(group="grid" if job_type == "train" else "later")
job = recorder.Recorder(Run(path), log, config, job_type)
for step in range(first, last + 1):
    job.train(step, loss=1 / step, validation_loss=None)
    print(step, flush=True)
    time.sleep(pause)
if rows:
    job.rows(rows)
    job.show_results()
began = time.monotonic()
job.finish(ok)
print("finish took", time.monotonic() - began)
"""


@pytest.fixture
def environment(tmp_path):
    """Nobody's account and nobody's home."""
    variables = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("WANDB_") and not key.lower().endswith("_proxy")
    }
    (tmp_path / "home").mkdir()
    return {
        **variables,
        "HOME": str(tmp_path / "home"),
        "WANDB_API_KEY": "0" * 40,
        "OMP_NUM_THREADS": "1",
        "WANDB_MODE": "offline",
    }


@pytest.fixture
def run(tmp_path):
    (tmp_path / "runs" / ID).mkdir(parents=True)
    return Run(tmp_path / "runs" / ID)


def start(
    run,
    environment,
    first=1,
    last=3,
    *,
    job_type="train",
    pause=0.0,
    rows=(),
    ok=True,
    patience=60.0,
):
    arguments = json.dumps([str(run.path), job_type, first, last, pause, list(rows), ok, patience])
    return forked.Popen(
        [sys.executable, "-c", JOB, arguments],
        env=environment,
        cwd=environment["HOME"],
        stdout=-1,
        stderr=-1,
        text=True,
    )


def evaluation(run, extension, losses, args=None, **changes) -> list[dict]:
    """Rows of an evaluation with these {length: loss}, which are on disk."""
    losses_LN = [np.full(TARGETS, loss) for loss in losses.values()]
    methods = ("rope", extension, "none")
    path = write_eval(run.path.parent, *methods, losses_LN, list(losses), args=args, **changes)
    return read_eval(path)


def end(job: subprocess.Popen) -> tuple[str, str]:
    out, err = job.communicate(timeout=120)
    assert job.returncode == 0, err
    return out, err


def kill_after(job: subprocess.Popen, step: int) -> None:
    """SIGKILL once a step is told, and what wandb then still does is done."""
    while int(job.stdout.readline()) < step:
        pass
    job.send_signal(signal.SIGKILL)
    job.communicate(timeout=60)
    time.sleep(1)


def folders(run) -> list[Path]:
    return sorted((run.path.parent / ".wandb" / "wandb").glob("*run-*-*"))


def sync(environment, server, *paths) -> subprocess.CompletedProcess:
    typed, variables = (
        [WANDB, "sync", "--include-online", *map(str, paths)],
        {**environment, "WANDB_BASE_URL": server.url},
    )
    return subprocess.run(
        typed, env=variables, cwd=environment["HOME"], capture_output=True, text=True, timeout=120
    )


def steps(server, run_id=ID) -> list[int]:
    return [line["_step"] for line in server.runs[run_id]["history"] if "train/loss" in line]


def test_wandb_sync_shows_everything_of_an_offline_run(run, environment, tmp_path):
    rows = evaluation(run, "yarn", {128: 2.0, 256: 2.25}, {"alpha": 2.0})
    rows.append(stored(run, length=512, position=9, nll=2.5, **PLAIN))
    _, stderr = end(start(run, environment, rows=rows))
    with serving() as server:
        done = sync(environment, server, *folders(run))
    assert stderr == "" and done.returncode == 0 and "ERROR" not in done.stderr, done.stderr
    assert list(server.runs) == [ID]
    shown = server.runs[ID]
    config = json.loads(shown["settings"]["config"])
    assert config["encoding"]["value"] == {
        "_target_": "posbench.encodings.rope.Rope",
        "base": 10000.0,
    }
    assert (shown["settings"]["groupName"], shown["settings"]["tags"]) == (
        "grid",
        ["train", "encoding=rope"],
    )
    assert [(line["_step"], line["train/loss"]) for line in shown["history"][:3]] == [
        (1, 1.0),
        (2, 0.5),
        (3, 1 / 3),
    ]
    curve = [
        (line["eval/length"], line["eval/fixed_targets/rope yarn alpha=2.0/nll"])
        for line in shown["history"]
        if "eval/length" in line
    ]
    assert curve == [(128, 2.0), (256, 2.25)]
    name = "position/by_position/rope/512/nll"
    bins = [(line["position/tokens"], line[name]) for line in shown["history"] if name in line]
    assert bins == [(9, 2.5)]
    assert (
        shown["summary"]["train/loss"] == 1 / 3
        and shown["summary"]["eval/fixed_targets/rope yarn alpha=2.0/nll"] == 2.25
        and shown["summary"]["eval/fixed_targets/rope yarn alpha=2.0/nll_at_128"] == 2.0
    )
    assert [
        name for name in shown["files"] if name.startswith("media/images/loss")
    ] and f"run-{ID}-eval_rows" in shown["artifacts"]
    (table,) = (
        json.loads(body)
        for name, body in shown["files"].items()
        if name.startswith("media/table/eval_rows")
    )
    column = table["columns"].index("nll")
    assert sorted(line[column] for line in table["data"]) == [2.0, 2.25, 2.5]
    assert shown["exitcode"] == 0
    assert not list((tmp_path / "home").rglob("*.table.json")) and not list(
        (tmp_path / "home").rglob("staging/*")
    )


def test_a_chart_over_length_draws_the_lines_of_all_runs_that_are_shown(run, environment):
    evaluation(run, "yarn", {256: 2.25, 64: 2.0, 128: 2.125})
    evaluation(run, "pi", {64: 2.0})  # one length is no line
    solved = {"protocol": "accuracy", "task": "mqar"}
    rows = evaluation(run, "none", {64: 2.0, 128: 2.0}, **solved)
    end(start(run, environment, rows=rows))
    with serving() as server:
        done = sync(environment, server, *folders(run))
    assert "ERROR" not in done.stderr, done.stderr
    shown = server.runs[ID]
    charts = json.loads(shown["settings"]["config"])["_wandb"]["value"]["visualize"]
    assert {*charts} == {"loss_by_length/fixed_targets", "accuracy_by_length/accuracy_mqar"}
    chart = charts["loss_by_length/fixed_targets"]["panel_config"]
    assert (chart["panelDefId"], chart["stringSettings"]["xname"]) == (
        "wandb/lineseries/v0",
        "tokens",
    )
    (runs,) = chart["userQuery"]["queryFields"]
    assert runs["name"] == "runSets"  # every run that the page shows, not this one alone
    (table,) = [
        field["args"][0]["value"] for field in runs["fields"] if field["name"] == "summaryTable"
    ]
    assert shown["summary"][table]["_type"] == "table-file"
    drawn = json.loads(shown["files"][quote(shown["summary"][table]["path"])])
    assert drawn["columns"] == ["step", "lineKey", "lineVal"]
    assert drawn["data"] == [
        [n, "rope yarn s0 0123", nll] for n, nll in ((64, 2.0), (128, 2.125), (256, 2.25))
    ]


def test_an_evaluation_of_a_later_command_is_a_run_of_the_same_group(run, environment):
    pi_rows = evaluation(run, "pi", {128: 2.5})
    end(start(run, environment, rows=pi_rows))
    later_rows = evaluation(run, "yarn", {128: 2.25})
    end(start(run, environment, last=0, job_type="evaluate", rows=later_rows))
    with serving() as server:
        done = sync(environment, server, *folders(run))
    assert "ERROR" not in done.stderr
    training, later = server.runs[ID], next(server.runs[name] for name in server.runs if name != ID)
    assert steps(server) == [1, 2, 3] and training["summary"]["train/loss"] == 1 / 3
    assert later["summary"]["eval/fixed_targets/rope yarn/nll"] == 2.25
    assert later["settings"]["groupName"] == "later"
    tables = [body for name, body in later["files"].items() if name.startswith("media/table/eval")]
    assert len(json.loads(tables[0])["data"]) == 2


def test_a_killed_file_is_readable(run, environment):
    kill_after(start(run, environment, last=10_000, pause=0.05), 40)
    (killed,) = folders(run)
    typed = [WANDB, "leet", "inspect", "--json", killed]
    read = subprocess.run(
        typed, env=environment, cwd=environment["HOME"], capture_output=True, text=True, timeout=60
    )
    records = [json.loads(line) for line in read.stdout.splitlines()]
    synced_steps = [
        record["history"]["step"]["num"] for record in records if record["type"] == "history"
    ]
    logged_steps = [json.loads(line)["step"] for line in run.train_log.read_text().splitlines()]
    assert (
        synced_steps == logged_steps[: len(synced_steps)] and len(synced_steps) >= 10
    )  # at 0.05 s a step, all but the last second or so
    assert {record["run"]["run_group"] for record in records if record["type"] == "run"} == {"grid"}
    assert not [record for record in records if record["type"] == "exit"]


def test_a_run_that_is_sent_says_so_in_one_line_with_its_address(run, environment):
    with serving() as server:
        environment |= {"WANDB_BASE_URL": server.url}
        del environment["WANDB_MODE"]
        _, err = end(start(run, environment))
    (line,) = err.splitlines()
    assert (
        line.startswith(f"wandb sends this run to {server.url}/")
        and f"/{ID};" in line
        and "log.mode=offline" in line
    ), line
    assert steps(server) == [1, 2, 3]


@pytest.mark.slow
def test_a_network_lost_midway_costs_seconds_and_nothing_else(run, environment):
    environment["WANDB_MODE"] = "online"
    with serving() as server:
        environment["WANDB_BASE_URL"] = server.url
        job = start(run, environment, last=40, pause=0.02, patience=3.0)
        while int(job.stdout.readline()) < 10:
            pass
        server.behave = silence
        out, err = end(job)
    _, line = err.splitlines()  # the first one says that it is sent
    (folder,) = folders(run)
    assert line == f"wandb could not upload everything in 3 s: wandb sync --include-online {folder}"
    assert float(out.split()[-1]) < 6.0
    assert [json.loads(line)["step"] for line in run.train_log.read_text().splitlines()] == list(
        range(1, 41)
    )
    with serving() as other:
        sync(environment, other, folder)
    assert steps(other) == list(range(1, 41)) and other.runs[ID]["exitcode"] == 0


@pytest.mark.parametrize("trouble", ["nobody", pytest.param("denied", marks=pytest.mark.slow)])
def test_a_server_that_cannot_be_used_leaves_an_offline_run(run, environment, trouble):
    environment["WANDB_MODE"] = "online"
    with serving(lambda path: 401) as server:
        environment["WANDB_BASE_URL"] = server.url if trouble == "denied" else "http://127.0.0.1:9"
        began = time.monotonic()
        _, err = end(start(run, environment))
    assert time.monotonic() - began < 40
    (line,) = err.splitlines()
    assert line.startswith("wandb could not start online (")
    assert line.endswith(f"going on offline, for wandb sync, in {run.path.parent / '.wandb'}")
    assert len(run.train_log.read_text().splitlines()) == 3
    with serving() as other:
        sync(environment, other, *(path for path in folders(run) if "offline-run" in path.name))
    (name,) = other.runs  # a server may know the training's own run from before
    assert name.startswith(f"{ID}-train-") and other.runs[name]["settings"]["groupName"] == "grid"
    assert steps(other, name) == [1, 2, 3] and other.runs[name]["exitcode"] == 0


@pytest.mark.slow
def test_a_training_resumed_offline_is_synced_into_its_run(run, environment):
    kill_after(start(run, environment, last=10_000, pause=0.05), 40)
    end(start(run, environment, first=41, last=50))
    with serving() as server:
        for folder in folders(run):
            sync(environment, server, folder)
    assert list(server.runs) == [ID]
    assert steps(server)[-10:] == list(range(41, 51))
    before = steps(server)[:-10]  # the killed file lacks its last second or so
    assert before == list(range(1, len(before) + 1)) and len(before) >= 10
