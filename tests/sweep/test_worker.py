"""Workers: one process for job after job, whose lines, exit codes and ends are those of each
job.
"""

import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import forked
import pytest
from ledger_lines import read_ledger
from test_cli import Cli

from posbench.config.schema import JobConfig
from posbench.model.memory import forget
from posbench.runs.directory import Run
from posbench.sweep.child_processes import Children
from posbench.sweep.jobs import Job
from posbench.sweep.live_progress import Live, read_line
from posbench.sweep.worker import JobEnd, Worker, end_line

# A child that does as its spec says: a JSON list of what it writes, and of the code and the life
# that it ends with.
CHILD = """
import json, os, signal, sys
spec = sys.argv[1]
while spec:
    for line in (wanted := json.load(open(spec)))["lines"]:
        print(line, file=sys.stderr, flush=True)
    if wanted["kill"]:
        os.kill(os.getpid(), signal.SIGKILL)
    end = wanted["end"].replace("SECRET", os.environ["POSBENCH_WORKER"])
    print(end, file=sys.stderr, flush=True)
    if not wanted["stays"]:
        sys.exit(wanted["code"])
    spec = sys.stdin.readline().strip()
"""


@pytest.fixture
def order(tmp_path):
    def write(
        name: str,
        lines: list[str],
        code: int = 0,
        stays: bool = True,
        kill: bool = False,
        end: str | None = None,
    ) -> Path:
        path = tmp_path / name
        end = end_line("SECRET", code, stays) if end is None else end
        path.write_text(
            json.dumps({"lines": lines, "code": code, "stays": stays, "kill": kill, "end": end})
        )
        return path

    return write


def begin(spec: Path) -> Worker:
    return Worker([sys.executable, "-c", CHILD, str(spec)], dict(os.environ))


@pytest.mark.timeout(60)
def test_each_job_has_its_own_lines_and_code_and_the_process_stays(order):
    first, second = order("a", ["one", "two"]), order("b", ["three"], code=75)
    worker, lines = begin(first), ([], [])
    assert worker.run(first, lines[0].append) == (0, True)
    assert worker.run(second, lines[1].append) == (75, True)
    assert lines == ([b"one\n", b"two\n"], [b"three\n"])
    worker.close()
    assert worker.process.returncode == 0


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("fate", "ending"),
    [
        ({"kill": True}, (-signal.SIGKILL, False)),
        ({"stays": False, "code": 3, "end": ""}, (3, False)),
        ({"stays": False}, (0, False)),  # it has kept too much
    ],
)
def test_a_job_that_ends_its_process_has_all_its_lines_and_the_code_of_the_process(
    order, fate, ending
):
    first, last = order("a", ["before"]), order("b", ["the last words"], **fate)
    worker, lines = begin(first), []
    assert worker.run(first, lambda raw: None) == (0, True)
    assert worker.run(last, lines.append) == ending
    assert lines[0] == b"the last words\n"


@pytest.mark.timeout(60)
def test_a_worker_that_was_killed_while_it_was_idle_says_so_by_its_code(order):
    first, second = order("a", []), order("b", ["never"])
    worker, lines = begin(first), []
    assert worker.run(first, lines.append) == (0, True)
    worker.process.kill()
    worker.process.wait()
    assert worker.run(second, lines.append) == (-signal.SIGKILL, False) and lines == []


@pytest.mark.timeout(60)
def test_the_end_of_a_job_is_found_behind_a_line_that_was_not_ended(order):
    first = order("a", [], end="no newline" + end_line("SECRET", 0, True))
    worker, lines = begin(first), []
    assert worker.run(first, lines.append) == (0, True) and lines == [b"no newline"]
    worker.close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "line",
    [
        'data.path=/tmp/{"ended": ',
        '{"ended": {"code": 0, "stays": true}}',
        end_line("", 0, True),
        end_line("0" * 32, 0, True),
    ],
)
def test_no_other_line_is_taken_for_the_end_of_a_job(order, line):
    first = order("a", [line, "more"], code=75)
    worker, lines = begin(first), []
    assert worker.run(first, lines.append) == (75, True) and lines == [
        f"{line}\n".encode(),
        b"more\n",
    ]
    worker.close()


@pytest.mark.parametrize("line", [
    '{"progress": ', '{"progress": 1}', '{"progress": "x", "left": "soon", "stays": 1}',
    '{"progress": "x", "left": [1], "stays": 1}',
    '{"progress": ' + "[" * 100_000,
])  # fmt: skip
def test_a_line_that_only_begins_like_a_progress_is_shown_as_it_is(line):
    assert read_line(line.encode()) == (line, None, True)


def test_a_sweep_of_one_process_makes_the_same_bytes_as_a_process_for_each_job(
    tmp_path, text_folder, monkeypatch
):
    shared, apart = (Cli(tmp_path / name, text_folder) for name in ("shared", "apart"))
    grid = (
        "-m",
        "encoding=rope,alibi,randomized",
        "extension=none,ntk",
        "seed=0,1",
        "allow_untested=true",
    )
    for cli in (shared, apart):
        cli.folder.mkdir()
    stderr = shared(*grid, code=0).stderr
    assert stderr.count("training ") == 6
    for encoding in ("rope", "alibi", "randomized"):
        for seed in (0, 1):
            apart(f"encoding={encoding}", f"seed={seed}", start=forked.run)
    for apart_run in apart.runs():
        shared_run = shared.folder / "runs" / apart_run.name
        assert (apart_run / "model.safetensors").read_bytes() == (
            shared_run / "model.safetensors"
        ).read_bytes()
        for path in apart_run.glob("evals/*/*.json"):
            rows, same = (
                json.loads((run / path.relative_to(apart_run)).read_text())["rows"]
                for run in (apart_run, shared_run)
            )
            assert [row["nll"] for row in rows] == [row["nll"] for row in same]


def test_a_worker_that_died_while_it_was_idle_costs_no_job(tmp_path, monkeypatch):
    class Works:
        def __init__(self, process):
            self.process = process

        def run(self, spec: Path, feed) -> JobEnd:
            Path(f"{spec}.outcome").write_text(
                '{"outcomes": [{"label": "a cell", "status": "done"}]}'
            )
            return JobEnd(0, stays=True)

    fresh, dead = Works(process=None), Works(process=SimpleNamespace(poll=lambda: -signal.SIGKILL))
    children, idle = Children(Live(1, 0, 1), 1, "the command"), [dead]
    monkeypatch.setattr(children, "_start", lambda *_: fresh)
    children.running.add(dead)
    job = Job(JobConfig(results_dir=str(tmp_path)), Run(tmp_path / "rope-0"), "")
    result = children.call(job, True, idle)
    assert (
        [outcome.status for outcome in result.outcomes] == ["done"]
        and idle == [fresh]
        and not children.running
    )


PROCESS = """
import os, pathlib

from posbench.encodings.none import NoEncoding


class Marked(NoEncoding):
    def __init__(self, shape, seed=0, kill=False):
        super().__init__(shape)
        path = pathlib.Path(__file__).with_name(f"process{seed}")
        path.write_text(str(os.getpid()))
        if kill:
            os.kill(os.getpid(), 9)
"""


NAMES_ITS_FILE = """
import sys

from posbench.encodings.none import NoEncoding


class Loud(NoEncoding):
    def __init__(self, shape):
        super().__init__(shape)
        print(f"the factors are those of {__file__}", file=sys.stderr, flush=True)
"""


def test_a_path_that_looks_like_the_end_of_a_job_costs_none(tmp_path, text_folder):
    cli, mine = Cli(tmp_path, text_folder), tmp_path / '{"ended": '
    (mine / "encoding").mkdir(parents=True)
    (mine / "loud.py").write_text(NAMES_ITS_FILE)
    (mine / "encoding" / "loud.yaml").write_text("_target_: loud.Loud\n")
    result = cli("--config-dir", str(mine), "-m", "encoding=loud", "seed=0,1", "jobs=1")
    assert len(cli.runs()) == 2 and f"the factors are those of {mine}" in result.stderr


def test_a_killed_job_costs_its_worker_and_no_other_job(tmp_path, text_folder):
    cli, mine = Cli(tmp_path, text_folder), tmp_path / "mine"
    (mine / "encoding").mkdir(parents=True)
    (mine / "marked.py").write_text(PROCESS)
    (mine / "encoding" / "marked.yaml").write_text(
        "_target_: marked.Marked\nseed: 0\nkill: false\n"
    )
    (mine / "experiment").mkdir()
    arms = ", ".join(
        f"{{encoding: marked, encoding.seed: {seed}, encoding.kill: {str(seed == 2).lower()}}}"
        for seed in range(5)
    )
    (mine / "experiment" / "five.yaml").write_text(
        f"name: five\nbase: {{train.steps: 2}}\ngrid: [{arms}]\n"
    )
    done = cli("--config-dir", str(mine), "experiment=five", "jobs=1", code=1)
    pids = [int((mine / f"process{seed}").read_text()) for seed in range(5)]
    assert len(cli.runs()) == 4, done.stderr
    assert pids[0] == pids[1] == pids[2] != pids[3] == pids[4], (pids, done.stderr)
    statuses = [entry["status"] for entry in read_ledger(cli.folder / "runs")]
    assert statuses.count("failed") == 1 and statuses.count("ok") == 4


def test_what_a_job_leaves_behind_is_counted():
    held, memory = forget(), bytearray(os.urandom(2**24))
    assert held + 2**23 < forget() < held + 2**26 or held == forget() == 0
    del memory
