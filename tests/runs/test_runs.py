import copy
import errno
import fcntl
import os
import re
import socket
import subprocess
import sys

import pytest

from posbench.common.errors import ConfigError, RunError
from posbench.common.files import write_json
from posbench.common.locks import Busy, describe_holder
from posbench.config import identity
from posbench.config.identity import eval_id, method_args, method_label, method_name, run_id
from posbench.runs.directory import Run

CFG = {
    "encoding": {"_target_": "posbench.encodings.rope.Rope", "base": 10000.0},
    "model": {"d_model": 128, "n_layer": 4},
    "data": {"source": "pysource", "path": "/somewhere", "cache_dir": "cache"},
    "train": {
        "length": 64,
        "steps": 1000,
        "lr": 6e-3,
        "log_every": 50,
        "validate_every": 0,
        "validate_windows": 256,
        "checkpoint_every": 500,
    },
    "evaluate": {"lengths": [64]},
    "extension": {"_target_": "posbench.extensions.none.Direct"},
    "log": {"mode": None},
    "seed": 0,
    "device": "cpu",
    "results_dir": "results/runs",
}
EVALUATE = {
    "max_length": 512,
    "windows": 512,
    "targets": 8,
    "split": "test",
    "dtype": "fp32",
    "seed": 0,
    "lengths": [64],
    "batch_tokens": 8192,
}
NONE, LOG_N = (
    {"_target_": "posbench.scale_attention.none.NoScale"},
    {"_target_": "posbench.scale_attention.log_n.LogN", "clamp": True},
)


def changed(path, value):
    cfg = copy.deepcopy(CFG)
    node = cfg
    *parents, last = path.split(".")
    for name in parents:
        node = node[name]
    node[last] = value
    return cfg


def test_a_readable_prefix_and_ten_hex_digits():
    assert (
        run_id(CFG, "f").startswith("rope-64-s0-") and len(run_id(CFG, "f").rsplit("-", 1)[1]) == 10
    )
    assert run_id(changed("train.length", [128, 64]), "f").startswith("rope-64+128-s0-")


def test_the_id_of_the_first_release_never_changes():
    # coreutils' sha256sum of
    # {"data_fingerprint":"f","encoding":{"_target_":"posbench.encodings.rope.Rope","base":10000},
    # "model":{"d_model":128,"n_layer":4},"seed":0,"train":{"length":64,"lr":0.006,"steps":1000}}
    # without the line break
    assert run_id(CFG, "f") == "rope-64-s0-80bb07c1f9"


@pytest.mark.parametrize(
    ("path", "value"),
    [("device", "cuda"), ("results_dir", "x"), ("data.path", "x"), ("data.num_proc", 2),
        ("train.log_every", 1), ("log.mode", "offline"),
     ("train.validate_every", 9), ("train.validate_windows", 9), ("train.checkpoint_every", 9),
     ("evaluate.lengths", [1]),
     ("train.length", [64]), ("extension", {"_target_": "x.pi.Pi"}), ("encoding.base", 10000),
     ("train.steps", 1000.0)],
)  # fmt: skip
def test_what_does_not_make_a_training(path, value):
    assert run_id(changed(path, value), "f") == run_id(CFG, "f")


@pytest.mark.parametrize(
    ("path", "value"),
    [("encoding.base", 5e5), ("encoding._target_", "mine.rope.Rope"), ("model.d_model", 64),
        ("train.steps", 1001), ("train.lr", 5e-3),
     ("train.length", 128), ("seed", 1), ("model.tied", True)],
)  # fmt: skip
def test_what_makes_a_training(path, value):
    assert run_id(changed(path, value), "f") != run_id(CFG, "f")
    assert run_id(CFG, "g") != run_id(CFG, "f")


def test_a_later_key_at_its_default_leaves_old_ids_alone(monkeypatch):
    monkeypatch.setitem(identity.FIELDS_ADDED_LATER, "train.ema", 0.0)
    assert run_id(changed("train.ema", 0.0), "f") == run_id(CFG, "f")
    assert run_id(changed("train.ema", 0.9), "f") != run_id(CFG, "f")
    assert run_id(changed("model.ema", 0.0), "f") != run_id(CFG, "f")
    assert run_id(changed("train.ema", False), "f") != run_id(CFG, "f")


def test_an_evaluation_is_its_targets_and_methods_not_its_lengths():
    base = eval_id("fixed_targets", NONE, NONE, EVALUATE, "r")
    assert len(base) == 16 and int(base, 16) >= 0
    for same in ({"lengths": [64, 128]}, {"batch_tokens": 1}, {"floor": False}, {"floor_block": 1}):
        assert eval_id("fixed_targets", NONE, NONE, {**EVALUATE, **same}, "r") == base
    changed = {
        "max_length": 1024,
        "windows": 9,
        "targets": 4,
        "split": "validation",
        "dtype": "bf16",
        "seed": 1,
        "floor_block": 2,
    }
    others = {
        eval_id("fixed_targets", NONE, NONE, {**EVALUATE, name: value}, "r")
        for name, value in changed.items()
    }
    others |= {
        eval_id("disjoint", NONE, NONE, EVALUATE, "r"),
        eval_id("fixed_targets", LOG_N, NONE, EVALUATE, "r"),
    }
    others |= {
        eval_id("fixed_targets", NONE, LOG_N, EVALUATE, "r"),
        eval_id("fixed_targets", NONE, NONE, EVALUATE, "q"),
        eval_id("fixed_targets", NONE, NONE, EVALUATE, "r", version=2),
    }
    assert len({base, *others}) == 1 + len(changed) + 5


def test_names_of_methods():
    assert method_name(CFG["encoding"]) == "rope" and method_args(LOG_N) == {"clamp": True}
    assert method_label(NONE) == "none"
    assert method_label({**LOG_N, "beta": 2}, "scale_attention") == 'log_n {"beta":2}'
    assert method_label({**LOG_N, "clamp": False}, "scale_attention") == 'log_n {"clamp":false}'
    with pytest.raises(ConfigError, match="_target_"):
        method_name({"base": 3})


def test_a_run_is_finished_when_its_summary_is_there(tmp_path):
    run = Run(tmp_path / "rope-64-s0-0")
    with run.lock():
        run.write_config(CFG)
        assert not run.finished and run.read_config() == CFG
        run.write_summary({"loss": 2.5, "sha256": "0"})
    assert run.finished and run.read_summary() == {"loss": 2.5, "sha256": "0"}
    path = run.eval_path("fixed_targets", "pi", "log_n", "0123456789abcdef")
    assert path.relative_to(run.path).as_posix() == "evals/fixed_targets/pi+log_n-01234567.json"
    write_json(path, {})
    (path.parent / ".pi-tmp.json").touch()
    assert run.eval_files() == [path]


def test_a_file_system_without_locks_is_one_sentence(tmp_path, monkeypatch):
    def flock(file: object, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(RunError, match=r"run/\.lock cannot be written \(No locks available\)"):
        Run(tmp_path / "run").lock(wait=True).__enter__()


def test_who_holds_a_lock_is_said_and_what_to_do_about_a_dead_machine(tmp_path):
    lock, here = tmp_path / ".lock", socket.gethostname()
    for content, description in {
        "7 node1\n": (" (pid 7 on node1)", f"; if that machine is gone for good, remove {lock}"),
        f"7 {here}\n": (f" (pid 7 on {here})", ""),
        "7 \x1b[2Jnode1\n": ("", ""),
        "": ("", ""),
    }.items():
        lock.write_text(content)
        assert describe_holder(lock) == description


HOLD = """
import sys, time
from posbench.runs.directory import Run
with Run(sys.argv[1]).lock():
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_a_run_that_another_process_holds(tmp_path, capsys):
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        who = f" (pid {other.pid} on {socket.gethostname()})"
        with pytest.raises(
            Busy,
            match=re.escape(
                f"Another process{who} is working on {tmp_path / 'run'}: wait for it, or leave"
            ),
        ):
            Run(tmp_path / "run").lock(wait=False).__enter__()
        assert capsys.readouterr().err == ""
        run = Run(tmp_path / "run")
        acquire = run._lock.acquire

        def release_the_other_and_wait(timeout=-1):
            if timeout != 0:
                other.stdin.write("\n")
                other.stdin.flush()
            return acquire(timeout=timeout)

        run._lock.acquire = release_the_other_and_wait
        with run.lock(wait=True):
            assert other.wait(10) == 0
    assert (
        capsys.readouterr().err
        == f"another process{who} is working on {tmp_path / 'run'}; waiting\n"
    )
    with Run(tmp_path / "run").lock():
        assert (
            describe_holder(run.lock_file)[0] == f" (pid {os.getpid()} on {socket.gethostname()})"
        )


def test_provenance_names_the_commit_and_what_was_changed_since(tmp_path, monkeypatch):
    from posbench.runs import provenance

    def git(*args):
        identity = ("-c", "user.name=n", "-c", "user.email=e@example.org")
        return subprocess.run(
            ["git", *identity, *args], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    def now():
        provenance.commit_and_changes.cache_clear()
        return provenance.commit_and_changes()

    package = tmp_path / "posbench"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(provenance, "PACKAGE", package)
    monkeypatch.setenv("GIT_DIR", "/nonexistent")  # as inside somebody's hook
    try:
        assert now() == (None, None)
        monkeypatch.delenv("GIT_DIR")
        git("init", "-q")
        assert now() == (None, None)  # a repository around it that does not track it is not its own
        git("add", "."), git("commit", "-qm", "first")
        monkeypatch.setenv("GIT_DIR", "/nonexistent")
        commit, clean = now()
        assert len(commit) == 40 and clean is None and provenance.commit_of_row() == commit[:12]
        (tmp_path / "sweep.log").write_text("a")
        (tmp_path / "results").mkdir()
        (tmp_path / "results" / "notes.txt").write_text("a")
        assert now() == (commit, None)  # what acts on no result
        (tmp_path / "sitecustomize.py").write_text("a")
        assert now()[1]
        (tmp_path / "sitecustomize.py").unlink()
        (tmp_path / "configs").mkdir()
        (tmp_path / "configs" / "rope.yaml").write_text("a")
        assert now()[1]
        (tmp_path / "configs" / "rope.yaml").unlink()
        (package / "new.py").write_text("a")
        first_change = now()[1]
        (package / "new.py").write_text("b")
        second_change = now()[1]
        (package / "__init__.py").write_text("c")
        assert (
            len({None, first_change, second_change, now()[1]}) == 4
            and provenance.commit_of_row() == commit[:12] + "+"
        )
    finally:
        provenance.commit_and_changes.cache_clear()
