"""Several sweeps over one grid at once."""

import json
import re
import subprocess
from collections import Counter

import pytest
from ledger_lines import read_ledger
from test_cli import Cli

SWEEPS = 3


@pytest.mark.slow
def test_sweeps_of_one_grid_make_each_training_and_each_evaluation_once(tmp_path, text_folder):
    cli = Cli(tmp_path, text_folder)
    command = cli.command(
        "-m", "encoding=rope,none,alibi", "seed=0,1", "extension=none,window", "jobs=2", "train.steps=40", "train.log_every=1"
    )
    started = [subprocess.Popen(command, cwd=cli.folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(SWEEPS)]
    said = [process.communicate(timeout=1200) for process in started]
    assert [process.returncode for process in started] == [0] * SWEEPS, said
    runs = cli.runs()
    trained = Counter(name for _, err in said for name in re.findall(r"training (\S+): ", err))
    assert len(runs) == 6 and trained == {run.name: 1 for run in runs}
    for run in runs:
        assert [json.loads(line)["step"] for line in (run / "train.jsonl").read_text().splitlines()] == list(range(1, 41))
    cells = Counter((entry["run_id"], entry["cell"]) for entry in read_ledger(cli.folder / "runs") if entry["status"] == "ok")
    assert len(cells) == 12 and set(cells.values()) == {1}
    states = Counter(entry["status"] for entry in read_ledger(cli.folder / "runs"))
    assert states == {"ok": 12, "skipped": 12 * (SWEEPS - 1)}
