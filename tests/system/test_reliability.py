"""What machines do to a run: full disks, dead owners, clocks that jump, text that goes away,
directories of an older version.
"""

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time

import pytest
import torch
from ledger_lines import read_ledger
from omegaconf import OmegaConf
from script_calls import call
from spoils import SMALL, World, with_usual

from posbench.common.errors import RunError
from posbench.config import identity
from posbench.data import sources
from posbench.runs.rows import VOLATILE_COLUMNS
from posbench.sweep import ledger
from posbench.training.checkpoint import HEADER_BYTES

TIMED = {"seconds", "tokens_per_second", "peak_mib"}
BOTH = ["-m", "seed=0,1"]


def run(
    capfd: pytest.CaptureFixture, world: World, *words: str, code: int = 0
) -> subprocess.CompletedProcess:
    done = call(capfd, world.root, "run", *with_usual(*words))
    assert done.returncode == code, done.stderr
    return done


def results(world: World) -> dict[str, object]:
    """Weights, rows and logs of all runs, but for what two runs of one command do not share."""
    contents: dict[str, object] = {}
    for path in sorted((world.root / "runs").glob("rope-*/**/*")):
        name = path.relative_to(world.root / "runs").as_posix()
        if path.suffix == ".safetensors":
            contents[name] = path.read_bytes()
        elif "evals" in path.parts and path.suffix == ".json":
            contents[name] = [
                {key: row[key] for key in row if key not in VOLATILE_COLUMNS}
                for row in json.loads(path.read_text())["rows"]
            ]
        elif path.name == "train.jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            contents[name] = [
                {key: line[key] for key in line if key not in TIMED} for line in lines
            ]
    return contents


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, small_world) -> dict[str, object]:
    return {}


def undisturbed_results(
    capfd: pytest.CaptureFixture, world: World, undisturbed: dict[str, object]
) -> dict[str, object]:
    """The results of both seeds when nothing goes wrong, made once."""
    if not undisturbed:
        other = World(world.root / "undisturbed")
        shutil.copytree(world.root / "text", other.root / "text")
        run(capfd, other, *BOTH)
        undisturbed |= results(other)
        shutil.rmtree(other.root)
    return undisturbed


HOLD = """
import sys, time
from filelock import FileLock
from posbench.common.locks import hold
with hold(FileLock(sys.argv[1]), "holding", wait=True):
    print(flush=True); time.sleep(600)
"""


def test_locks_of_a_run_and_of_tokens_do_not_outlive_their_owner(world, capfd):
    (corpus_folder,) = (world.root / "cache").glob("*/")
    shutil.rmtree(corpus_folder)
    folder = corpus_folder.with_name(
        f"{corpus_folder.name}_test"
    )  # all that an evaluation of a finished training reads
    for lock in (world.run(0) / ".lock", folder.with_name(f"{folder.name}.lock")):
        with subprocess.Popen(
            [sys.executable, "-c", HOLD, str(lock)], stdout=subprocess.PIPE
        ) as owner:
            assert owner.stdout.read(1) == b"\n"
            owner.kill()
        assert lock.exists()
    abandoned = folder.with_name(f".{folder.name}.part")
    abandoned.mkdir()
    (abandoned / "test.tokens.bin").write_bytes(b"cut off")
    assert "another process" not in run(capfd, world, "extension=window").stderr
    expected_names = [
        folder.name,
        f"{folder.name}.lock",
        f"{corpus_folder.name}.lock",
        "digests.json",
    ]
    assert sorted(path.name for path in (world.root / "cache").iterdir()) == sorted(expected_names)


@pytest.mark.parametrize(
    "name",
    [
        "config.yaml",
        "state.pt",
        "model.safetensors",
        "none+none-*.npz",
        "none+none-*.json",
        "test.tokens.bin",
    ],
)
def test_a_full_disk_costs_nothing_but_the_attempt(world, capfd, monkeypatch, undisturbed, name):
    expected = undisturbed_results(capfd, world, undisturbed)
    shutil.rmtree(world.root / "runs"), shutil.rmtree(world.root / "cache")
    stem, _, suffix = name.replace("*", "").rpartition(".")
    real, met = os.fsync, []

    def fsync(handle: int) -> None:
        path = os.readlink(f"/proc/self/fd/{handle}").rsplit("/", 1)[-1].lstrip(".")
        if path.startswith(stem) and path.endswith(suffix):
            met.append(path)
            raise OSError(28, os.strerror(28))
        real(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        done = run(capfd, world, code=1)
    assert (
        met
        and "failed: No space left to write" in done.stderr
        and done.stderr.count("failed: ") == 1
    )
    left = [path.name for path in world.root.rglob(".*") if path.name not in (".lock", ".hydra")]
    assert not left
    run(capfd, world)
    assert results(world) == {path: value for path, value in expected.items() if "-s0-" in path}


def test_a_full_disk_under_the_log_is_one_sentence(world, capfd, monkeypatch):
    def write(handle: int, content: bytes, real=os.write) -> int:
        if os.readlink(f"/proc/self/fd/{handle}").endswith("train.jsonl"):
            raise OSError(28, os.strerror(28))
        return real(handle, content)

    monkeypatch.setattr(os, "write", write)
    assert re.search(
        r"failed: No space left to write .*train\.jsonl",
        run(capfd, world, "seed=1", "train.log_every=1", code=1).stderr,
    )


class Jumps:
    """A clock that is set a day forward and two days back again at every second look."""

    def __init__(self, real):
        self.real, self.looks = real, 0

    def __call__(self):
        self.looks += 1
        unit = 10**9 if isinstance(self.real(), int) else 1
        return self.real() + unit * (86400 if self.looks % 2 else -86400)


def test_a_clock_that_jumps_disturbs_nothing(world, capfd, monkeypatch, undisturbed):
    expected = undisturbed_results(capfd, world, undisturbed)
    with monkeypatch.context() as patch:
        for name in ("time", "time_ns"):
            patch.setattr(time, name, Jumps(getattr(time, name)))
        stderr = run(capfd, world, *BOTH, "train.log_every=1").stderr
        again = run(capfd, world, *BOTH)
    assert "nothing to do" in again.stdout and not re.search(
        r"-\d+(\.\d+)?(s|m|h)\b|\bleft -", stderr
    )
    contents = results(world)
    assert {name: value for name, value in contents.items() if "jsonl" not in name} == {
        name: value for name, value in expected.items() if "jsonl" not in name
    }
    for path in world.root.glob("runs/*/train.json"):
        summary = json.loads(path.read_text())
        assert 0 < summary["seconds"] < 600 and summary["tokens_per_second"] > 0
    assert all(0 <= entry["seconds"] < 600 for entry in read_ledger(world.root / "runs"))


def test_text_that_went_away_is_missed_by_name_and_nothing_is_lost(world, capfd):
    before = results(world)
    (world.root / "text").rename(world.root / "elsewhere")
    for typed in ((), ("extension=pi",), (f"run=runs/{world.run(0).name}", "extension=pi")):
        stderr = run(capfd, world, *typed, code=2).stderr
        assert re.fullmatch(
            r"refused: data\.path=text does not exist .*: correct data\.path\.\n", stderr
        )
    assert results(world) == before
    # Where the text lies is no part of what it is.
    assert "nothing to do" in run(capfd, world, "data.path=elsewhere").stdout


def test_a_run_of_before_later_keys_is_found_and_evaluated(world, capfd):
    old = world.run(0)
    cfg = OmegaConf.to_container(OmegaConf.load(old / "config.yaml"))
    gone = [
        name
        for name in identity.FIELDS_ADDED_LATER
        if name.split(".")[0] in ("encoding", "train", "model")
    ]
    for name in gone:
        group, key, *_ = name.split(".")  # an argument of a scale goes with the scale
        cfg[group].pop(key, None)
    assert gone and "fraction" not in cfg["encoding"] and "scale_attention" not in cfg["train"]
    (old / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(cfg)))
    run(capfd, world, f"run=runs/{old.name}", "extension=pi")
    assert (
        list(old.glob("evals/*/pi+none-*.json"))
        and len(list(world.root.glob("runs/*/train.json"))) == 1
    )


def test_a_state_of_before_a_key_was_kept_goes_on(world, capfd, undisturbed):
    expected = undisturbed_results(capfd, world, undisturbed)
    path = world.run(1) / "state.pt"
    state = torch.load(io.BytesIO(path.read_bytes()[HEADER_BYTES:]), weights_only=True)
    state["extra"] = {
        key: state["extra"][key] for key in ("tokens", "seconds", "recent")
    }  # what the first release kept
    body = io.BytesIO()
    torch.save(state, body)
    path.write_bytes(hashlib.sha256(body.getvalue()).hexdigest().encode() + b"\n" + body.getvalue())
    assert "going on from step 6 of 6" in run(capfd, world, "seed=1").stderr
    contents = results(world)
    last = contents[f"{world.run(1).name}/train.jsonl"][-1]
    assert last["grad_norm"] is None  # it was not kept then
    last["grad_norm"] = expected[f"{world.run(1).name}/train.jsonl"][-1]["grad_norm"]
    assert contents == expected


def test_memory_of_digests_is_only_a_memory(world, capfd):
    for content in ("{", json.dumps({str(path): [1] for path in world.root.rglob("*.txt")})):
        (world.root / "cache" / "digests.json").write_text(content)
        assert "nothing to do" in run(capfd, world).stdout
        sources._known_digests.clear()


def test_a_cache_on_a_read_only_disk_is_read(world, capfd, monkeypatch):
    (world.root / "cache" / "digests.json").unlink()

    def refuses(path: object, value: object) -> None:
        raise RunError(f"{path} cannot be written")

    monkeypatch.setattr("posbench.data.sources.write_json", refuses)
    assert "nothing to do" in run(capfd, world).stdout


READING = {
    "run": ["seed=9", "dry=true"],
    "run, a sweep": ["-m", "seed=0,9", "dry=true"],
    "report": ["runs=runs"],
    "report, a sweep": ["-m", "seed=0,9", "results_dir=runs"],
    "anatomy": ["length=32", "json=read/a.json"],
}


@pytest.mark.parametrize("name", READING)
def test_what_only_reads_makes_no_folder(world, capfd, name):
    """So none has to be writable; what a report or anatomy makes goes where it was told to."""
    (world.root / "read").mkdir()
    before = sorted(world.root.rglob("*"))
    small = (
        ["cache_dir=cache"] if name == "report" else [*SMALL, "data.path=text", "cache_dir=cache"]
    )
    typed = [*READING[name], *small]
    typed += ["report_dir=read", *["results_dir=nowhere"] * ("results_dir=runs" not in typed)]
    done = call(capfd, world.root, name.split(",")[0], *typed)
    assert done.returncode == 0, done.stderr
    after = [
        path for path in sorted(world.root.rglob("*")) if world.root / "read" not in path.parents
    ]
    assert after == before


@pytest.mark.parametrize(
    ("message", "typed"),
    [
        ("5000", ["evaluate.lengths=[16,5000]", "evaluate.max_length=5000"]),
        ("cannot hold one window", ["train.length=100", "evaluate.lengths=[100]"]),
    ],
)
def test_a_refused_training_leaves_no_directory(world, capfd, message, typed):
    before = sorted((world.root / "runs").iterdir())
    assert message in run(capfd, world, "seed=3", *typed, code=2).stderr
    assert (
        sorted(path for path in (world.root / "runs").iterdir() if path.name != ledger.LEDGER)
        == before
    )
    run(capfd, world, "seed=1", "evaluate.lengths=[5000]", "evaluate.max_length=5000", code=2)
    assert world.run(1) in before  # it holds more than a refusal leaves
