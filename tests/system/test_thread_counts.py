"""One training at a time, with all cores, and several, with a part of them each, end with the same
weights and losses, bit for bit.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import CONFIGS
from spoils import PLACES, SMALL, write_text

from posbench.common.machine import cores
from posbench.runs.rows import VOLATILE_COLUMNS

RUN = CONFIGS.parent / "scripts" / "run.py"
# Heads 64 wide, and windows that leave texts over: MKL multiplies these otherwise than the smallest
# models.
WORDS = [
    "-m",
    "seed=0,1",
    "model.d_model=128",
    "evaluate.windows=10",
    "evaluate.targets=5",
    *PLACES,
]
WORDS += [
    word for word in SMALL if word.partition("=")[0] not in ("model.d_model", "evaluate.windows")
]


def results(folder):
    """Bytes of weights, rows and losses of single targets, by file."""
    contents = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*.safetensors")
    }
    for path in folder.rglob("evals/*/*.json"):
        rows = json.loads(path.read_text())["rows"]
        contents[path.relative_to(folder).as_posix()] = [
            {key: row[key] for key in row if key not in VOLATILE_COLUMNS} for row in rows
        ]
        with np.load(path.with_suffix(".npz")) as arrays:
            contents[path.with_suffix(".npz").name + path.parts[-4]] = {
                name: arrays[name].tobytes() for name in arrays
            }
    return contents


@pytest.mark.slow
@pytest.mark.skipif(cores() < 2, reason="one core is one thread for any number of jobs")
def test_jobs_alone_and_beside_each_other_end_alike(tmp_path):
    write_text(tmp_path / "text")
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    ended = []
    for jobs in (1, 2):
        words = [*WORDS, f"jobs={jobs}", f"results_dir=runs{jobs}"]
        words = [word for word in words if word != "results_dir=runs"]
        done = subprocess.run(
            [sys.executable, str(RUN), *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        ended.append(results(tmp_path / f"runs{jobs}"))
    threads = [
        {
            json.loads(path.read_text())["threads"]
            for path in (tmp_path / f"runs{jobs}").glob("*/provenance.json")
        }
        for jobs in (1, 2)
    ]
    assert threads[0] != threads[1]
    assert len(ended[0]) >= 2 * 7 and ended[0] == ended[1]
