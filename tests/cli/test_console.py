"""The console command does what the scripts do."""

import os
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import forked
import pytest
from conftest import CONFIGS
from script_calls import call
from test_cli import TINY

from posbench.cli import console

ROOT = CONFIGS.parent
NAMES = sorted(path.stem for path in (ROOT / "scripts").glob("*.py"))
HEAVY = ("torch", "hydra", "omegaconf", "numpy", "pandas", "matplotlib")


def posbench(folder: Path, *words: str) -> subprocess.CompletedProcess:
    """`posbench WORDS` as its entry point calls it."""
    code = "import sys; from posbench.cli.console import main; sys.argv[0] = 'posbench'; main()"
    return forked.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=120,
    )


def test_the_command_is_installed_as_the_function_that_is_tested():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"posbench": f"{console.__name__}:{console.main.__name__}"}


@pytest.mark.parametrize("words", [[], ["--help"]])
def test_help_lists_every_script_with_one_line(words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["posbench", *words])
    console.main()
    lines = [
        line.split(maxsplit=1)
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("  ")
    ]
    assert sorted(name for name, _ in lines) == NAMES
    assert all(10 < len(text) < 100 and "python" not in text for _, text in lines)


def test_help_is_quick_and_imports_nothing_heavy(tmp_path):
    code = (
        "import sys\nfrom posbench.cli.console import main\nsys.argv = ['posbench',"
        " '--help']\nmain()\n"
    )
    code += f"print('HEAVY', [name for name in {HEAVY} if name in sys.modules])"
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert "HEAVY []" in done.stdout and time.monotonic() - began < 3, (
        done
    )  # 0.1 s on an idle machine


def test_tab_completes_commands_and_then_their_words(tmp_path, monkeypatch):
    assert posbench(tmp_path, "-sc", "install=bash").stdout.endswith(
        "-F hydra_bash_completion posbench\n"
    )
    for line, offered in (
        ("posbench r", "demo run report compare plot"),
        ("posbench report encoding=al", "encoding=alibi\n"),
        ("posbench runs l", ""),
    ):
        monkeypatch.setenv("COMP_LINE", line)
        done = posbench(tmp_path, "-sc", "query=bash")
        assert (
            done.stdout.startswith(offered)
            and bool(done.stdout) == bool(offered)
            and not done.stderr
        ), done


@pytest.mark.parametrize(
    "words",
    ["help experiment extension", "help encoding=rope", "--help", "runs list results_dir=."],
)
def test_a_reader_that_leaves_ends_it_in_silence(tmp_path, words):
    code = "import sys; from posbench.cli.console import main; sys.argv[0] = 'posbench'; main()"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", code, *words.split()],
        stdout=write,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        timeout=120,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


@pytest.mark.parametrize(
    ("words", "closed"),
    [
        ("--help", ">&-"),
        ("run --cfg job", ">&-"),
        ("run --cfg job", "<&-"),
        ("run steps=1", "2>&-"),
        (f"plot {ROOT}/results/reported/demo out=a.svg", "<&- >&- 2>&-"),
        ("run steps=1", "<&- >&- 2>&-"),
    ],
)
def test_a_closed_standard_file_changes_neither_the_end_nor_the_files(tmp_path, words, closed):
    code = "import sys; from posbench.cli.console import main; sys.argv[0] = 'posbench'; main()"
    typed = f"{shlex.quote(sys.executable)} -c {shlex.quote(code)} {words}"
    done = subprocess.run(
        ["sh", "-c", f"{typed} {closed}"], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert (
        done.returncode == (2 if words == "run steps=1" else 0) and "unforeseen" not in done.stderr
    ), done.stderr
    files = {path.name: path.read_text() for path in tmp_path.iterdir() if path.is_file()}
    assert set(files) == ({"a.svg"} if "plot" in words else set()) and files.get(
        "a.svg", "<?xml"
    ).startswith("<?xml")


def test_a_near_miss_is_told(tmp_path):
    done = posbench(tmp_path, "reprot", "experiment=demo")
    expected = (
        "refused: reprot is not a command (did you mean report?): posbench --help lists all of"
        " them.\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", expected)


def test_a_run_lies_in_the_working_directory(tmp_path, text_folder, capfd):
    words = [*TINY, "data.path=text"]
    done = posbench(tmp_path, "run", *words)
    assert done.returncode == 0 and "made 1 training, 1 evaluation" in done.stdout, done.stderr
    (summary,) = (tmp_path / "results" / "runs").glob("*/train.json")
    again = call(capfd, tmp_path, "run", *words)
    assert (
        again.returncode == 0
        and "nothing to do" in again.stdout
        and summary.parent.name in again.stdout
    )
