"""A sweep of two dozen trainings of which four fail, each in a way of its own."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from ledger_lines import read_ledger
from test_cli import FAULTS, Cli

ENDS = {
    "exception": "ValueError: something of the user's own went wrong",
    "memory": "out of memory: MemoryError",
    "kill": "ended by SIGKILL",
    "exit": "ended with exit code 3",
}


@pytest.mark.slow
def test_four_of_two_dozen_fail_and_one_command_finishes_them(tmp_path, text_folder):
    cli, mine = Cli(tmp_path, text_folder), tmp_path / "mine"
    (mine / "encoding").mkdir(parents=True)
    (mine / "experiment").mkdir()
    (mine / "faulty.py").write_text(FAULTS)
    (mine / "encoding" / "faulty.yaml").write_text("_target_: faulty.Faulty\nhow: exception\n")
    (mine / "experiment" / "mixed.yaml").write_text(
        f"name: mixed\ngrid:\n  - {{encoding: faulty, encoding.how: [{', '.join(ENDS)}]}}\n"
        "  - {encoding: [rope, none, alibi, kerple], extension: [none, window], seed: [0, 1, 2, 3, 4]}\n"
    )
    command = cli.command("--config-dir", str(mine), "experiment=mixed", "jobs=2")
    done = subprocess.run(command, capture_output=True, text=True, cwd=cli.folder, timeout=1800)
    assert done.returncode == 1, done.stderr
    whole = cli.runs()
    assert len(whole) == 20 and "4 failed" in done.stdout
    assert all(len(list(run.glob("evals/*/none+none-*.json"))) == len(list(run.glob("evals/*/window+none-*.json"))) == 1 for run in whole)

    entries = read_ledger(cli.folder / "runs")
    failed = {how_it_left(entry): entry for entry in entries if entry["status"] == "failed"}
    assert set(failed) == set(ENDS) and len(entries) == 44 and sum(entry["status"] == "ok" for entry in entries) == 40
    for how, entry in failed.items():
        assert entry["reason"].startswith(ENDS[how]) and entry["reason"] in Path(entry["file"]).read_text()
        assert entry["reason"] in done.stderr and entry["file"] in done.stderr

    (mine / "cured").touch()
    before = {path: path.stat().st_mtime_ns for run in whole for path in run.rglob("*") if path.name != ".lock"}
    told = done.stderr.splitlines()[-1].strip()
    assert told == shlex.join(command)
    resumed = subprocess.run(told, shell=True, capture_output=True, text=True, cwd=cli.folder, timeout=1800)
    assert resumed.returncode == 0, resumed.stderr
    assert len(cli.runs()) == 24 and resumed.stderr.count("training faulty") == resumed.stderr.count("training ") == 4
    assert {path: path.stat().st_mtime_ns for path in before} == before
    later = read_ledger(cli.folder / "runs")[len(entries) :]
    assert sorted(entry["status"] for entry in later) == ["ok"] * 4 + ["skipped"] * 40
    assert not list(cli.folder.glob("runs/*/failure.txt"))


def how_it_left(entry: dict) -> str:
    """The last words of a failed job."""
    return re.search(r"about to leave by (\w+)", Path(entry["file"]).read_text())[1]
