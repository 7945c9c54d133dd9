"""The command line as a user meets it: a tiny text, exit codes and sentences.

`cli` runs a script in this process, where a command's imports cost nothing again; `processes`
starts real ones (forked.py), for signals, locks, limits, and all that a process may leave behind.
"""

import contextlib
import fcntl
import json
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import forked
import numpy as np
import pytest
from conftest import CONFIGS
from ledger_lines import read_ledger
from script_calls import call
from spoils import with_usual

import posbench
from posbench.cli.key_help import explain_words, keys_and_folders
from posbench.common.errors import RunError
from posbench.data import sources
from posbench.runs.directory import Run
from posbench.runs.rows import VOLATILE_COLUMNS
from posbench.tools.run import command as commands

ROOT = CONFIGS.parent
TINY = [
    "data=local",
    "data.tokenizer=bytes",
    "model.d_model=16",
    "model.n_layer=1",
    "model.n_head=2",
    "model.d_ff=32",
]
TINY += [
    "train.length=16",
    "train.steps=4",
    "train.tokens_per_step=64",
    "train.warmup=1",
    "train.validate_windows=4",
]
TINY += [
    "evaluate.windows=12",
    "evaluate.lengths=[16,32]",
    "evaluate.max_length=128",
    "evaluate.dtype=fp32",
    "log.mode=disabled",
    "device=cpu",
]


FIRST = """
import runpy, sys
{}
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Cli:
    """Runs scripts in a folder of its own on the same small text."""

    def __init__(self, folder: Path, text: Path):
        self.folder = folder
        self.common = [
            *TINY,
            f"data.path={text}",
            f"results_dir={folder}/runs",
            f"cache_dir={folder}/cache",
            f"report_dir={folder}/report",
        ]

    def command(
        self, *overrides: str, script: str = "run", common: bool = True, first: str = ""
    ) -> list[str]:
        """What would be typed; `first` is code that the process runs before the script."""
        path = str(ROOT / "scripts" / f"{script}.py")
        return [
            sys.executable,
            *(["-c", FIRST.format(first)] if first else []),
            path,
            *with_usual(*overrides, usual=self.common * common),
        ]

    def __call__(
        self, *overrides: str, code: int = 0, start: Callable = forked.run, **options
    ) -> subprocess.CompletedProcess:
        done = start(
            self.command(*overrides, **options),
            capture_output=True,
            text=True,
            cwd=self.folder,
            timeout=120,
        )
        assert done.returncode == code, (
            f"exit {done.returncode}, wanted {code}\n{done.stdout}\n{done.stderr}"
        )
        assert "Traceback" not in done.stderr + done.stdout
        return done

    def runs(self) -> list[Path]:
        return sorted(path.parent for path in (self.folder / "runs").glob("*/train.json"))

    def rows(self, pattern: str) -> list[dict]:
        (path,) = (self.folder / "runs").glob(f"*/evals/*/{pattern}")
        return json.loads(path.read_text())["rows"]


class InProcess(Cli):
    """The same commands without a process of their own."""

    def __init__(self, folder: Path, text: Path, capfd: pytest.CaptureFixture):
        super().__init__(folder, text)
        self.capfd = capfd

    def __call__(
        self, *overrides: str, code: int = 0, script: str = "run", **options
    ) -> subprocess.CompletedProcess:
        with pytest.MonkeyPatch.context() as patch:
            # what a process remembers of the texts it has read
            patch.setattr(sources, "_known_digests", {})
            done = call(self.capfd, self.folder, script, *self.command(*overrides, **options)[2:])
        assert done.returncode == code, (
            f"exit {done.returncode}, wanted {code}\n{done.stdout}\n{done.stderr}"
        )
        assert "Traceback" not in done.stderr + done.stdout
        return done


@pytest.fixture
def cli(tmp_path: Path, text_folder: Path, capfd: pytest.CaptureFixture) -> InProcess:
    return InProcess(tmp_path, text_folder, capfd)


@pytest.fixture
def processes(tmp_path: Path, text_folder: Path) -> Cli:
    return Cli(tmp_path, text_folder)


def test_configuration_is_printed_without_importing_anything_heavy():
    heavy = ("numpy", "torch", "datasets", "wandb", "matplotlib", "transformers", "tokenizers")
    code = (
        "import sys, runpy; sys.argv = ['run.py', '--cfg', 'job']\ntry:"
        " runpy.run_path('scripts/run.py', run_name='__main__')\n"
    )
    code += (
        f"except SystemExit: pass\nprint('HEAVY', [name for name in {heavy} if name in"
        " sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert "HEAVY []" in done.stdout and "posbench.encodings.rope.Rope" in done.stdout, done.stderr


def test_a_value_that_must_be_given_is_named(cli):
    assert "data.name has no value" in cli("data=_base", common=False, code=2).stderr


def test_a_run_is_made_once_and_grows_by_lengths_without_moving_a_point(cli):
    cli("extension=pi", "scale_attention=log_n")
    (run,) = cli.runs()
    for name in (
        "config.yaml",
        "provenance.json",
        "train.jsonl",
        "model.safetensors",
        "train.json",
    ):
        assert (run / name).exists(), name
    assert not (run / "state.pt").exists()
    before = cli.rows("pi+log_n-*.json")
    assert [row["length"] for row in before] == [16, 32]
    assert all(
        row["data"] == "text" and row["n_targets"] == 24 and row["nll_sem"] > 0 for row in before
    )
    assert not list(run.glob("evals/*/none+none-*"))  # only what was asked for, and the references
    assert len(list(run.glob("evals/*/recompute_window+none-*.json"))) == 2

    assert "nothing to do" in cli("extension=pi", "scale_attention=log_n").stdout
    summary = (run / "train.json").read_text()
    cli("extension=pi", "scale_attention=log_n", "evaluate.lengths=[16,64,128]")
    after = cli.rows("pi+log_n-*.json")
    assert [row["length"] for row in after] == [16, 32, 64, 128] and after[:2] == before
    assert (run / "train.json").read_text() == summary
    (arrays,) = run.glob("evals/*/pi+log_n-*.npz")
    with np.load(arrays) as stored:
        assert stored["nll"].shape == (4, 24) and stored["length"].tolist() == [16, 32, 64, 128]
        assert stored["nll"].mean(axis=1) == pytest.approx([row["nll"] for row in after], rel=1e-5)
        assert stored["bytes"].sum() == after[0]["n_bytes"]


def test_a_finished_training_without_its_configuration_is_damaged_and_mended_by_its_command(
    cli,
):
    cli("extension=pi")
    (run,) = cli.runs()
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").unlink()
    assert (
        "damaged: config.yaml is missing"
        in cli("list", f"results_dir={run.parent}", script="runs", common=False).stdout
    )
    cli("extension=pi")
    assert (run / "config.yaml").read_text() == config
    assert "nothing to do" in cli("extension=pi").stdout
    assert (
        cli(
            f"run={run}", "extension=pi", "evaluate.lengths=[16,32]", "evaluate.windows=12"
        ).returncode
        == 0
    )


def test_the_gain_is_known_whichever_lengths_are_asked_for(cli):
    output = cli("evaluate.lengths=[16]").stdout
    assert "G rope seed 0: 8 -> 16 tokens of context bring" in output and "unknown" not in output


def test_two_runs_of_one_command_agree_on_every_column_but_the_volatile(processes, tmp_path):
    processes(
        "extension=rerope", start=subprocess.run
    )  # from the first import on, with hashes of another seed
    processes("extension=rerope", f"results_dir={tmp_path}/again")
    first, second = (
        json.loads(next(tmp_path.glob(f"{d}/*/evals/*/rerope+none-*.json")).read_text())["rows"]
        for d in ("runs", "again")
    )
    for a, b in zip(first, second, strict=True):
        assert {k: v for k, v in a.items() if k not in VOLATILE_COLUMNS} == {
            k: v for k, v in b.items() if k not in VOLATILE_COLUMNS
        }


def test_a_sweep_trains_once_per_training_and_counts_refusals_and_noops_as_done(cli):
    dry = cli("-m", "encoding=none,alibi", "extension=none,pi,ntk", "dry=true").stdout
    assert (
        not cli.runs()
        and dry.count("to train") == 2
        and dry.count("no-op: ") == 2
        and dry.count("refused: ") == 1
    )
    assert "2 of 2 trainings to make" in dry
    done = cli("-m", "encoding=none,alibi", "extension=none,pi,ntk")
    assert len(cli.runs()) == 2
    counts = "2 trainings, 3 evaluations and 4 floor windows"
    assert f"made {counts}; 2 no-op, 1 refused" in done.stdout
    assert "3 evaluations and 4 floor windows, " in dry  # the units of the end
    assert "alibi has no spectrum" in done.stderr
    assert "has the lowest loss" in done.stdout  # lines ranked at the longest length
    later = cli("-m", "encoding=none,rope", "seed=0,1", "dry=true").stdout
    assert "3 of 4 trainings to make" in later
    assert "there already; 1 refused\n" in cli("-m", "encoding=alibi", "extension=ntk").stdout


def test_a_run_whose_folder_was_renamed_is_refused_with_its_name(cli):
    cli("evaluate.lengths=[16]")
    (run,) = cli.runs()
    run.rename(run.with_name("best"))
    typed = ("evaluate.lengths=[16,32]", "extension=pi")
    settings = [
        word for word in cli.common if word.startswith(("evaluate.w", "evaluate.m", "log."))
    ]
    words = [*typed, *settings, f"cache_dir={cli.folder}/cache", "evaluate.dtype=fp32"]
    done = cli(f"run={run.with_name('best')}", *words, common=False, code=2)
    assert f"(that would be {run.name})" in done.stderr and "name of its folder" in done.stderr
    run.with_name("best").rename(run)
    cli(f"run={run}", *words, common=False)


def test_a_sweep_is_ranked_at_a_length_that_it_asked_for(cli):
    sweep = ("-m", "encoding=rope", "extension=none,pi")
    assert "at 4x (64 tokens)" in cli(*sweep, "evaluate.lengths=[16,64]").stdout
    done = cli(*sweep, "evaluate.lengths=[16]")
    assert "nothing to do" in done.stdout and "64 tokens" not in done.stdout
    assert "at 2x (32 tokens)" in cli(*sweep, "evaluate.lengths=[16,32]").stdout


def test_a_notebook_elsewhere_reads_the_same_tokens_and_no_other_text(
    cli, tmp_path_factory, monkeypatch
):
    cli("extension=pi", "data.path=text")
    (run,) = cli.runs()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    assert posbench.load(run, device="cpu").corpus.folder.parent == cli.folder / "cache"
    assert not list(elsewhere.iterdir())
    provenance = run / "provenance.json"
    provenance.write_text(
        json.dumps({**json.loads(provenance.read_text()), "data_fingerprint": "f" * 64})
    )
    with pytest.raises(
        RunError, match=f"has changed since {run.name} was trained on it: restore it"
    ):
        assert posbench.load(run, device="cpu").corpus


def begun(processes: Cli, *typed: str, first: str = "", **options) -> tuple[subprocess.Popen, Run]:
    """A command whose first training has saved a state, and that training."""
    process = forked.Popen(
        processes.command(*typed, first=first),
        cwd=processes.folder,
        stderr=subprocess.PIPE,
        **options,
    )
    deadline = time.time() + 60
    while not (states := list(processes.folder.glob("runs/*/state.pt"))) and time.time() < deadline:
        time.sleep(0.05)
    return process, Run(states[0].parent)


def test_an_interrupted_command_goes_on_to_the_same_weights(processes, tmp_path):
    process, _ = begun(processes, "train.steps=200", "train.checkpoint_every=10")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    assert not processes.runs()
    processes("train.steps=200", "train.checkpoint_every=10")
    processes("train.steps=200", f"results_dir={tmp_path}/whole")
    (run,), (undisturbed,) = (
        processes.runs(),
        [path.parent for path in tmp_path.glob("whole/*/train.json")],
    )
    assert (run / "model.safetensors").read_bytes() == (
        undisturbed / "model.safetensors"
    ).read_bytes()
    first, unbroken = (
        json.loads((folder / "provenance.json").read_text()) for folder in (run, undisturbed)
    )
    (again,) = first.pop("resumed")
    assert set(first) == set(again) == set(unbroken) and first["started"] <= again["started"]


def test_a_sweep_killed_outright_leaves_no_child_behind(processes):
    process, run = begun(processes, "train.steps=100000", "train.checkpoint_every=20")
    process.kill()
    process.wait(60)
    with run.lock(wait=True):  # a test's time limit is the deadline
        assert not processes.runs() and run.has_state


def write_the_readmes_method(folder: Path) -> None:
    """The files that the README shows under "Adding a method", for --config-dir."""
    section = (ROOT / "README.md").read_text().partition("\n## Adding a method\n")[2]
    encoding, extension = re.findall(r"```python\n(.*?)```", section, re.S)[:2]
    yaml = re.search(r"```yaml\n(.*?)```", section, re.S)[1]
    line = re.search(r"`mine/extension/half.yaml`.*?`(_target_: .*?)`", section, re.S)[1]
    for group in ("encoding", "extension"):
        (folder / group).mkdir(parents=True)
    (folder / "learned_alibi.py").write_text(encoding)
    (folder / "encoding" / "learned_alibi.yaml").write_text(yaml)
    (folder / "half.py").write_text(extension)
    (folder / "extension" / "half.yaml").write_text(line)


def test_the_readmes_own_methods_run_from_their_files(cli, tmp_path):
    mine = tmp_path / "mine"
    write_the_readmes_method(mine)
    config_dir = ("--config-dir", str(mine))
    cli(*config_dir, "encoding=learned_alibi", "extension=window", "encoding.slope=0.2")
    (row,) = [row for row in cli.rows("window+none-*.json") if row["length"] == 32]
    assert row["encoding"] == "learned_alibi" and row["encoding_args"] == {"slope": 0.2}
    assert (
        "no spectrum" in cli(*config_dir, "encoding=learned_alibi", "extension=ntk", code=2).stderr
    )
    grid = ("-m", "encoding=learned_alibi,alibi", "extension=none,half", "evaluate.lengths=[16,64]")
    listed = cli(*config_dir, *grid, "dry=true").stdout
    assert listed.count("half + none: lengths 16 64 (own method)") == 2, listed
    cli(*config_dir, *grid)
    for path in cli.folder.glob("runs/*/evals/*/half+none-*.json"):
        far = json.loads(path.read_text())["rows"][-1]
        assert far["extension"] == "half" and far["length"] == 64 and not far["untested"]
    drawn = cli(*config_dir, *grid, script="report").stdout
    assert "learned_alibi" in drawn and (cli.folder / "report" / "curve.svg").exists()
    table = cli(f"config_dir={mine}", script="compat", common=False).stdout
    assert "| learned_alibi |" in table.splitlines()[0]
    assert re.search(r"^\| `half` \|.* own \|", table, re.M) and "own: a method" in table
    explained = explain_words(*keys_and_folders([*config_dir, "extension=half"]))
    assert explained.startswith("extension=half: Distances are exact below 32 tokens and grow")


def test_positions_from_the_text_run_from_one_file_outside_the_repository(cli, tmp_path):
    """The example of CONTRIBUTING.md."""
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("\n## Adding a method\n")[2]
    (tmp_path / "mine" / "encoding").mkdir(parents=True)
    code = re.search(r"```python\n(.*?)```", section, re.S)[1]
    (tmp_path / "mine" / "paced.py").write_text(code)
    (tmp_path / "mine" / "encoding" / "paced.yaml").write_text("_target_: paced.Paced\n")
    words = ("--config-dir", str(tmp_path / "mine"), "encoding=paced")
    done = cli(*words, "-m", "extension=none,pi,yarn,window,rerope")
    assert "encoding=paced places its tokens by the text" in done.stderr
    losses = {}
    for path in cli.folder.glob("runs/paced-*/evals/*/*+none-*.json"):
        row = json.loads(path.read_text())["rows"][-1]
        losses[row["extension"]] = row["nll"]
    assert {"none", "pi", "yarn", "window"} <= set(losses)
    assert len({losses[name] for name in ("none", "pi", "yarn")}) == 3


def test_a_scale_is_trained_in_and_stays(cli):
    cli("encoding=randomized", "train.scale_attention=ssmax", "extension=none")
    assert {row["trained_scale"].split()[0] for row in cli.rows("none+none-*.json")} == {"ssmax"}
    (run,) = cli.runs()
    from safetensors.torch import load_file

    assert any(name.startswith("scale.") for name in load_file(run / "model.safetensors"))
    assert (
        "trained in with train.scale_attention=ssmax" in cli("scale_attention=ssmax", code=2).stderr
    )
    assert "training never meets it" in cli("train.scale_attention=log_n", code=2).stderr
    assert (
        "training never meets it" in cli("train.scale_attention=log_n", "dry=true", code=2).stdout
    )
    cli("train.scale_attention=log_n", "train.scale_attention.clamp=false")


def test_powers_of_log_n_are_evaluated_on_one_training_and_told_apart(cli):
    powers = ("-m", "scale_attention=log_n", "scale_attention.p=0.5,1,2")
    cli(*powers, "evaluate.lengths=[16,64]")
    (run,) = cli.runs()
    files = run.glob("evals/*/none+log_n-*.json")
    rows = [row for path in files for row in json.loads(path.read_text())["rows"]]
    far = {row["scale_attention"]: row["nll"] for row in rows if row["length"] == 64}
    assert set(far) == {"log_n", 'log_n {"p":0.5}', 'log_n {"p":2}'}
    assert len(set(far.values())) == 3
    table = cli("runs", script="compare", common=False).stdout
    assert all(f" rope|none|{name} " in table for name in far)


def test_asentmax_is_trained_in_and_read_back(cli):
    cli("encoding=nape", "train.scale_attention=asentmax", "evaluate.lengths=[16,64]")
    (run,) = cli.runs()
    before = cli.rows("none+none-*.json")
    for path in run.glob("**/none+none-*.json"):
        path.unlink()
    cli("encoding=nape", "train.scale_attention=asentmax", "evaluate.lengths=[16,64]")
    after = cli.rows("none+none-*.json")
    assert [row["nll"] for row in after] == [row["nll"] for row in before]
    assert {row["trained_scale"].split()[0] for row in after} == {"asentmax"}


def test_the_report_is_made_from_files_alone(cli):
    cli("-m", "extension=none,rerope", "scale_attention=none,log_n", "evaluate.lengths=[16,32,64]")
    grid = ("-m", "extension=none,rerope", "scale_attention=log_n")
    swept = cli(*grid, "evaluate.lengths=[16,32,64]", "report_dir=null", script="report").stdout
    assert swept.count(" log_n ") >= 4 and " none        none " not in swept
    folders = (f"results_dir={cli.folder}/runs", f"report_dir={cli.folder}/report")
    done = cli(*folders, script="report", common=False)
    assert "rerope" in done.stdout and "G rope" in done.stdout
    for name in ("rows.csv", "curve.csv", "table.md"):
        assert (cli.folder / "report" / name).exists()
    assert list((cli.folder / "report").glob("*.png")) and list(
        (cli.folder / "report").glob("*.svg")
    )
    cli(*grid, "evaluate.lengths=[16,32]", "report_dir=null", script="report")
    assert (
        len(list((cli.folder / "report").glob("sweep-????????/table.md"))) == 2
    )  # another grid, another report
    (run,) = cli.runs()
    for words in ((), (f"run={run}",)):  # without -m they choose one job, of a new training or not
        chosen = cli(*words, "extension=rerope", "evaluate.lengths=[16,32]", script="report").stdout
        assert " rerope " in chosen and " log_n " not in chosen and "G rope" in chosen
    folders = cli.folder / "report"
    before = set(folders.glob("sweep-*"))
    cli("-m", "seed=1", "extension=rerope", "evaluate.lengths=[16,32]")
    for run in cli.runs():  # the same words on two runs are two reports
        cli(f"run={run}", "extension=rerope", "report_dir=null", script="report")
    assert len(set(folders.glob("sweep-*")) - before) == 2


def test_an_experiment_is_a_grid_and_what_is_typed_wins(cli, tmp_path):
    mine = tmp_path / "mine"
    (mine / "experiment").mkdir(parents=True)
    (mine / "experiment" / "mini.yaml").write_text(
        "name: mini\nbase: {train.steps: 7}\ngrid:\n  - {encoding: [rope, none], extension: none}\n"
        "  - {encoding: rope, extension: [pi, ntk], extension.target_len: null}\n"
    )
    listed = cli("--config-dir", str(mine), "experiment=mini", "train.steps=2", "dry=true").stdout
    assert (
        listed.count("to train") == 2
        and listed.count("pi {") == 1
        and listed.count("recompute_window") == 4
    )
    cli("--config-dir", str(mine), "experiment=mini", "train.steps=2")
    assert {json.loads((run / "train.json").read_text())["steps"] for run in cli.runs()} == {2}
    assert (
        "nothing to do" in cli("--config-dir", str(mine), "experiment=mini", "train.steps=2").stdout
    )
    assert (
        "ntk"
        in cli(
            "--config-dir", str(mine), "experiment=mini", "train.steps=2", script="report"
        ).stdout
    )


def test_threads_are_told_not_to_spin_before_torch_is_loaded():
    code = (
        "import posbench, os, sys; assert 'torch' not in sys.modules;"
        " print(os.environ['GOMP_SPINCOUNT'])"
    )
    environment = {key: value for key, value in os.environ.items() if key != "GOMP_SPINCOUNT"}
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=ROOT
        ).stdout
        == "1000\n"
    )


FAULTS = '''
"""An encoding that ends its process in the way its argument names, unless a file of the name
`cured` lies beside it."""

import os
import resource
import signal
import sys
from pathlib import Path

from posbench.position.interfaces import Encoding


class Faulty(Encoding):
    def __init__(self, shape, how="exception"):
        super().__init__(shape)
        if Path(__file__).with_name("cured").exists():
            return
        print(f"about to leave by {how}", file=sys.stderr)
        if how == "exception":
            raise ValueError("something of the user's own went wrong")
        if how == "memory":
            resource.setrlimit(resource.RLIMIT_AS, (2**36, 2**36))
            bytearray(2**37)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        sys.exit(3)
'''


def test_every_way_to_fail_costs_one_job_and_one_command_finishes_the_rest(processes, tmp_path):
    mine = tmp_path / "it's mine"
    (mine / "encoding").mkdir(parents=True)
    (mine / "experiment").mkdir()
    (mine / "faulty.py").write_text(FAULTS)
    (mine / "encoding" / "faulty.yaml").write_text("_target_: faulty.Faulty\nhow: exception\n")
    (mine / "experiment" / "mixed.yaml").write_text(
        "name: mixed\nbase: {train.steps: 2}\ngrid:\n  - {encoding: faulty, encoding.how:"
        " [exception, memory, kill, exit]}\n  - {encoding: [none, alibi], extension: [none, ntk]}\n"
    )
    command = processes.command(
        "--config-dir", str(mine), "experiment=mixed", "train.steps=2", "jobs=2"
    )
    done = forked.run(command, capture_output=True, text=True, cwd=processes.folder, timeout=120)
    assert done.returncode == 1, done.stderr
    assert len(processes.runs()) == 2 and "4 failed" in done.stdout

    entries = read_ledger(processes.folder / "runs")
    assert {entry["command"] for entry in entries} == {shlex.join(command)}
    assert sorted(entry["status"] for entry in entries) == ["failed"] * 4 + ["noop"] + [
        "ok"
    ] * 2 + ["refused"]
    failed = [entry for entry in entries if entry["status"] == "failed"]
    reasons = {
        "ValueError: something",
        "out of memory: MemoryError",
        "ended by SIGKILL",
        "exit code 3",
    }
    assert all(any(part in entry["reason"] for entry in failed) for part in reasons)
    table = done.stderr[done.stderr.index("reason and file") :]
    for entry in failed:
        assert (
            entry["run_id"] in table
            and entry["reason"] in table
            and entry["file"] in table
            and entry["seconds"] > 0
        )
        log = Path(entry["file"]).read_text()
        assert entry["reason"] in log and "about to leave" in log
        assert ("Traceback" in log) == ("Error" in entry["reason"])
    assert f"  {shlex.join(command)}\n" in table

    (mine / "cured").touch()
    resumed = forked.run(
        shlex.split(table.splitlines()[-1]),
        capture_output=True,
        text=True,
        cwd=processes.folder,
        timeout=120,
    )
    assert resumed.returncode == 0, resumed.stderr
    assert len(processes.runs()) == 6 and not list(processes.folder.glob("runs/*/failure.txt"))
    later = read_ledger(processes.folder / "runs")[len(entries) :]
    assert [entry["status"] for entry in later].count("ok") == 4 and "failed" not in {
        entry["status"] for entry in later
    }


# As in a terminal, also where the tests run under nohup, whose children inherit that the signal is
# ignored.
HEEDS_HANGUP = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)"


def test_an_interrupted_sweep_says_of_each_job_how_far_it_came(processes):
    words = ("-m", "seed=0,1,2", "train.steps=2000", "train.checkpoint_every=20")
    process, _ = begun(processes, *words, first=HEEDS_HANGUP, text=True)
    process.send_signal(signal.SIGHUP)
    stderr = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + signal.SIGHUP and "the same command goes on" in stderr
    entries = read_ledger(processes.folder / "runs")
    assert [entry["status"] for entry in entries] == ["interrupted"] * 3
    assert "SIGTERM" in entries[0]["reason"] and all(
        "not started" in entry["reason"] for entry in entries[1:]
    )
    assert not list(processes.folder.glob("runs/*/failure.txt"))


def test_two_sweeps_of_one_grid_make_each_training_once(processes):
    command = processes.command("-m", "seed=0,1", "train.steps=40")
    started = [
        forked.Popen(command, cwd=processes.folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0, 0], outputs
    assert b"".join(err for _, err in outputs).count(b"training rope") == len(processes.runs()) == 2
    entries = read_ledger(processes.folder / "runs")
    assert sorted(entry["status"] for entry in entries) == ["ok"] * 2 + ["skipped"] * 2
    assert len({entry["run_id"] for entry in entries if entry["status"] == "ok"}) == 2


def test_the_state_of_a_training_that_was_killed_after_its_end_goes_with_the_next_command(cli):
    cli()
    (run,) = cli.runs()
    for words in (
        ["extension=pi"],
        ["finetune=longer", "finetune.steps=2", "finetune.warmup=1", "extension=yarn"],
    ):
        for name in ("state.pt", "state.previous.pt", ".state-0.pt"):
            (run / name).write_bytes(b"left")
        cli(*words)
        assert not list(run.glob("*state*")) and (run / "model.safetensors").exists()
    assert len(cli.runs()) == 2


def test_a_sweep_on_a_device_that_is_not_there_is_refused_whole(cli):
    # what auto means depends on the device, and with it which training is asked for
    dtype = "train.dtype=fp32"
    done = cli("-m", "seed=0,1", dtype, "device=cuda:99", code=2)
    assert (
        done.stderr.count("device=cuda:99 is not available") == 1
        and "choose device=cpu" in done.stderr
        and not cli.runs()
    )
    cli("seed=0", dtype)
    assert (
        "nothing to do" in cli("-m", "seed=0", dtype, "device=cuda:99").stdout
    )  # what is there needs no device
    assert (
        "device=foo must be auto, cpu, cuda" in cli("seed=0", dtype, "device=foo", code=2).stderr
    )  # but no device has that name


def test_on_a_terminal_a_sweep_has_one_line_with_the_running_jobs_own_in_it(processes):
    # the line is drawn anew every 0.2 s: far fewer steps end before that on a fast machine
    steps = 200
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    process = forked.Popen(
        processes.command("-m", "seed=0,1", f"train.steps={steps}"),
        cwd=processes.folder,
        stdout=child,
        stderr=child,
    )
    os.close(child)
    output = b""
    with contextlib.suppress(OSError):
        while chunk := os.read(parent, 65536):
            output += chunk
    os.close(parent)
    assert process.wait(60) == 0
    assert re.search(
        rb"\r\x1b\[Ksweep 0/2 jobs  running 1  failed 0  \d+s left  train \d+/%d steps  loss"
        % steps,
        output,
    ), output
    assert re.search(rb"sweep 2/2 jobs  running 0  failed 0  took \d+s", output), output
    assert output.count(b"train %d/%d steps" % (steps, steps)) >= 2


def test_a_first_report_is_made_as_soon_as_two_models_can_be_compared(tmp_path, monkeypatch, capfd):
    """By the command's own words, once, and not where all were there before it began or the sweep
    ended first.
    """
    files, calls = [tmp_path / name for name in "abc"], []
    jobs = [
        SimpleNamespace(cells=[SimpleNamespace(reference=False, path=path, missing_lengths=list)])
        for path in files
    ]
    completed = subprocess.CompletedProcess(
        [], 0, "csv  rows.csv\npng  there/curve.png\npng  there/map.png\n", ""
    )
    monkeypatch.setattr(commands, "SECONDS_BETWEEN_LOOKS", 0.01)
    monkeypatch.setattr(
        commands.subprocess, "run", lambda words, **_: calls.append(words) or completed
    )
    monkeypatch.setattr(sys, "argv", ["run.py", "experiment=demo", "seed=3"])
    for number in (None, 3, 2):
        with commands._reporting_early(jobs, number):
            files[0].touch()
            time.sleep(0.1)
            assert not calls
            if number == 2:
                files[1].touch()
                time.sleep(0.5)
    assert [words[1:] for words in calls] == [
        ["-m", "posbench", "report", "experiment=demo", "seed=3"]
    ]
    assert capfd.readouterr().err == "a first picture, of 2 of 3 models: there/curve.png\n"
