"""The ledger as a file, why a job failed, and what a sweep shows while it runs."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import tempfile
import threading
from pathlib import Path
from typing import ClassVar

import pytest
from conftest import Clock
from ledger_lines import read_ledger

from posbench.common.files import append_lines
from posbench.common.outcome import BUSY, Outcome
from posbench.common.progress import PLACE_AT_PARENT, Progress
from posbench.config.schema import JobConfig
from posbench.runs.directory import Run
from posbench.sweep import child_processes as sweep
from posbench.sweep import ledger, worker
from posbench.sweep import live_progress as live
from posbench.sweep.jobs import Job, Result
from posbench.sweep.launch import launch


def result(
    folder: Path, *outcomes: Outcome, code: int = 0, run_id: str = "rope-16-s0-0123456789"
) -> Result:
    return Result(
        Job(JobConfig(results_dir=str(folder)), Run(folder / run_id), ""),
        code,
        list(outcomes),
        1.23456,
    )


def test_each_cell_is_one_line_with_all_that_the_ledger_knows(tmp_path):
    outcomes = [
        Outcome("a", "done"),
        Outcome("b", "exists"),
        Outcome("c", "noop", "Nothing changes."),
        Outcome("d", "refused", "No."),
    ]
    ledger.record([result(tmp_path / "runs", *outcomes)], "python scripts/run.py 'a b'")
    ledger.record([result(tmp_path / "runs", Outcome("", "failed", "Why."))], "again")
    entries = read_ledger(tmp_path / "runs")
    assert [values["status"] for values in entries] == [
        "ok",
        "skipped",
        "noop",
        "refused",
        "failed",
    ]
    assert set(entries[0]) == {
        "time",
        "command",
        "run_id",
        "cell",
        "status",
        "reason",
        "seconds",
        "file",
        "name",
    }
    assert (
        entries[0]["seconds"] == 1.235
        and entries[0]["time"].endswith("+00:00")
        and entries[0]["command"].endswith("'a b'")
    )
    assert (entries[4]["command"], entries[4]["run_id"], entries[4]["reason"]) == (
        "again",
        "rope-16-s0-0123456789",
        "Why.",
    )
    assert entries[4]["file"] == str(tmp_path / "runs" / "rope-16-s0-0123456789" / "failure.txt")


def _write(folder: str, writer: int) -> None:
    for number in range(200):
        append_lines(
            Path(folder) / ledger.LEDGER,
            [{"writer": writer, "number": number, "padding": "x" * (37 * number % 5000)}],
            sync=True,
        )


def test_lines_of_several_writers_never_mix(tmp_path):
    writers = [
        multiprocessing.get_context("fork").Process(target=_write, args=(str(tmp_path), i))
        for i in range(4)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    raw = [line for line in (tmp_path / ledger.LEDGER).read_text().splitlines() if line]
    entries = read_ledger(tmp_path)
    assert len(raw) == len(entries) == 800
    for i in range(4):
        assert [values["number"] for values in entries if values["writer"] == i] == list(range(200))


def test_a_torn_line_costs_itself_alone(tmp_path):
    append_lines(tmp_path / ledger.LEDGER, [{"n": 1}])
    with open(tmp_path / ledger.LEDGER, "ab") as file:
        file.write(b'{"reason": "\xc3')
    assert read_ledger(tmp_path) == [{"n": 1}]
    append_lines(tmp_path / ledger.LEDGER, [{"n": 2}, {"n": 3}])
    assert read_ledger(tmp_path) == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_a_ledger_that_cannot_be_written_is_a_line_on_stderr(tmp_path, capsys):
    (tmp_path / "runs").write_text("a file where the folder should be")
    ledger.record([result(tmp_path / "runs", Outcome("a", "done"))], "")
    assert "ledger.jsonl was not written" in capsys.readouterr().err


@pytest.mark.parametrize("name", [ledger.LEDGER, "failure.txt"])
def test_ledger_and_failure_txt_are_not_followed_as_links(tmp_path, capsys, name):
    failed = result(tmp_path / "runs", Outcome("", "failed", "ValueError: boom"), code=1)
    failed.job.run.path.mkdir(parents=True)
    (tmp_path / "mine").write_text("mine")
    link = (failed.job.run.path if name == "failure.txt" else tmp_path / "runs") / name
    link.symlink_to(tmp_path / "mine")
    ledger.record([failed], ""), ledger.keep(failed, [], "")
    assert (tmp_path / "mine").read_text() == "mine" and link.is_symlink()
    assert (
        f"{name} was not written: {link} is a link, or no regular file" in capsys.readouterr().err
    )


TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "x.py", line 1, in <module>',
    "    boom()",
]


@pytest.mark.parametrize(
    ("code", "tail", "reason"),
    [
        (137, [], "ended by SIGKILL (the system may have run out of memory)"),
        (139, ["Fatal Python error: Segmentation fault"], "ended by SIGSEGV"),
        (128 + 250, [], "ended by signal 250"),
        (3, ["a line"], "ended with exit code 3"),
        (
            1,
            [*TRACEBACK, "ValueError: the first", "", *TRACEBACK, "KeyError: 'second'", "a note"],
            "KeyError: 'second'",
        ),
        (1, [*TRACEBACK, "MemoryError"], "out of memory: MemoryError"),
        (
            1,
            [
                *TRACEBACK,
                "RuntimeError: [enforce fail] . DefaultCPUAllocator: can't allocate memory",
            ],
            "out of memory: RuntimeError",
        ),
    ],
)
def test_why_a_child_ended(code, tail, reason):
    assert ledger.why_ended(code, tail).startswith(reason)


def test_failure_txt_lives_until_a_later_attempt_succeeds(tmp_path):
    failed = result(tmp_path, Outcome("", "failed", "ValueError: boom"), code=1)
    ledger.keep(failed, ["one", "two"], "python scripts/run.py seed=1")
    assert failed.file == failed.job.run.path / "failure.txt"
    assert (
        failed.file.read_text()
        == "ValueError: boom\ncommand: python scripts/run.py seed=1\n\none\ntwo\n"
    )
    ledger.keep(result(tmp_path, Outcome("", "interrupted", "SIGTERM"), code=143), [], "")
    assert failed.file.exists()
    ledger.keep(result(tmp_path, Outcome("a", "done")), [], "")
    assert not failed.file.exists()


def test_failures_are_listed_with_run_what_why_and_file(tmp_path):
    first = result(tmp_path, Outcome("", "failed", "ValueError: boom"), code=1)
    ledger.keep(first, [], "")
    second = result(
        tmp_path,
        Outcome("a", "done"),
        Outcome("fixed_targets pi + none", "failed", "Too long."),
        run_id="alibi",
    )
    assert ledger.failure_lines([first, result(tmp_path, Outcome("a", "done")), second])[1:] == [
        "  rope-16-s0-0123456789  training: ValueError: boom",
        f"    {first.file}",
        "  alibi  fixed_targets pi + none: Too long.",
    ]


def ended(run_id: str, seconds: float, *outcomes: Outcome) -> Result:
    return Result(Job(JobConfig(), Run(run_id), ""), int(bool(outcomes)), list(outcomes), seconds)


def progress(text: str, left: float | None = None, stays: bool = False) -> bytes:
    """What a child writes while it shows a progress line."""
    return f"\r{json.dumps({'progress': text, 'left': left, 'stays': stays})}\n".encode()


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("posbench.common.progress.time", clock)
    monkeypatch.setattr("posbench.sweep.live_progress.time", clock)
    return clock


def test_without_a_terminal_a_sweep_says_where_it_stands_in_plain_lines(clock, capsys):
    shown = live.Live(total=6, done=2, parallel=2)
    for i in range(4):
        shown.start("rope")
        clock.now += 30
        assert shown.feed(f"line of {i}\n".encode(), "rope") == f"line of {i}"
        shown.finish(ended("rope", 60.0, *[Outcome("", "failed", "no luck")] * (i == 1)))
    shown.close()
    lines = capsys.readouterr().err.splitlines()
    assert lines[:3] == [
        "[rope] line of 0",
        "sweep 3/6 jobs  failed 0  1m30s left",
        "[rope] line of 1",
    ]
    assert lines[3:5] == ["failed: rope: no luck", "sweep 4/6 jobs  failed 1  1m00s left"]
    assert len(lines) == 9 and lines[-1] == "sweep 6/6 jobs  failed 1  took 2m00s"


def test_on_a_terminal_a_sweep_draws_the_progress_of_a_job_behind_its_own(
    clock, capsys, monkeypatch
):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    shown = live.Live(total=2, done=0, parallel=1)
    shown.start("rope")
    for step in (1, 2):  # the first comes too soon after the start to be drawn
        clock.now += 0.15
        assert shown.feed(progress(f"train {step}/9 steps"), "rope") is None
    drawn = capsys.readouterr().err
    assert "train 1/9 steps" not in drawn and "running 1  failed 0  train 2/9 steps" in drawn


def test_the_remaining_time_of_a_sweep_goes_on_while_its_jobs_run_and_heeds_what_they_say(clock):
    shown = live.Live(total=5, done=0, parallel=2)
    shown.start("a")
    assert shown.remaining() is None
    shown.feed(progress("train 1/9 steps  loss 5.1", 3660), "a")  # the first of five, two at a time
    assert shown.remaining() == 3660 * 5 / 2
    shown.start("b")
    clock.now += 60
    shown.finish(ended("a", 60.0))
    shown.start("c")
    clock.now += 20
    assert shown.remaining() == ((0 + 40) + 2 * 60) / 2  # b is over its time and says nothing
    shown.feed(progress("train 1/2 steps", 120, stays=True), "b")
    clock.now += 5
    assert shown.remaining() == ((115 + 35) + 2 * 60) / 2
    shown.feed(progress("train 1/2 steps", 600), "b")
    assert shown.remaining() == 600  # the others have long been done then
    shown.finish(ended("c", 300.0))
    shown.put_back("b")
    assert shown.remaining() == 3 * 180 / 2


def test_a_job_that_a_signal_stopped_is_not_done():
    shown = live.Live(total=3, done=1, parallel=1)
    for name, status, done in (("rope", "interrupted", 1), ("alibi", "done", 2)):
        shown.start(name)
        shown.finish(ended(name, 30.0, Outcome("", status)))
        assert (shown.done, shown.failed, shown.started) == (done, 0, {})


def test_one_job_says_nothing_of_a_sweep(clock, capsys):
    shown = live.Live(total=1, done=0, parallel=1)
    shown.start("rope")
    shown.feed(b"its line\n", "rope")
    shown.finish(ended("rope", 60.0, Outcome("", "failed", "no luck")))
    shown.close()
    assert capsys.readouterr().err == "its line\n"


@pytest.mark.parametrize("place", ["terminal", "lines"])
def test_a_child_tells_its_progress_as_json_and_its_parent_shows_it(
    clock, capsys, monkeypatch, place
):
    monkeypatch.setenv(PLACE_AT_PARENT, place)
    with Progress(20, "train", "steps") as bar:
        for _ in range(20):
            clock.now += 3
            bar.update(1, loss=2.5)
    lines = [live.read_line(line.encode()) for line in capsys.readouterr().err.split("\n")[:-1]]
    assert lines[-1] == ("train 20/20 steps  loss 2.5  took 1m00s", None, True)
    assert (
        lines[-2][1:] == ({"terminal": 0, "lines": 6}[place], place == "lines")
        and len(lines) == {"terminal": 21, "lines": 10}[place]
    )


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"one\n", "one"),
        (b"10%\r20%\r30%\r\n", "30%"),
        ("\x1b[31mr\u00e9d\x1b[0m the rest".encode(), "r\u00e9d the rest"),
        (b'{"progress": "train', '{"progress": "train'),
        (b'{"progress": "train"}\n', '{"progress": "train"}'),
    ],
)
def test_any_other_line_of_a_child_stays_as_text(raw, text):
    assert live.read_line(raw) == (text, None, True)


def unstarted(folder: Path, seed: int) -> Job:
    """A job of a training that has yet to begin."""
    config = JobConfig(seed=seed, results_dir=str(folder))
    return Job(config, Run(folder / f"rope-{seed}"), "")


class Ends:
    """Stands in for subprocess: children that end with the code chosen for their run, without a
    word on their cells.
    """

    DEVNULL = PIPE = None
    codes: ClassVar[dict[int, object]] = {}
    started: ClassVar[list[int]] = []

    @classmethod
    def Popen(cls, command: list[str], **_: object) -> Ends:
        child = cls()
        child.stderr = open(os.devnull, "rb")
        seed = json.loads(Path(command[-1]).read_text())["job"]["config"]["seed"]
        cls.started.append(seed)
        child.code = cls.codes[seed]
        if isinstance(child.code, Exception):
            raise child.code
        return child

    def wait(self) -> int:
        return self.code


@pytest.mark.parametrize("parallel", [1, 3])
def test_a_child_that_says_nothing_has_failed_whatever_its_exit_code(
    tmp_path, monkeypatch, capsys, parallel
):
    monkeypatch.setattr(worker, "subprocess", Ends)
    monkeypatch.setattr(Ends, "started", [])
    monkeypatch.setattr(
        Ends, "codes", {0: 0, 1: BUSY, 2: 2, 3: -11, 4: OSError("no more processes")}
    )
    jobs = [unstarted(tmp_path, seed) for seed in Ends.codes]
    results = launch(jobs, {"n_jobs": parallel}, "the command")
    assert [result.job for result in results] == jobs and all(
        result.failures and result.code for result in results
    )
    assert sorted(Ends.started) == [0, 1, 1, 2, 3, 4]
    assert (
        parallel > 1 or Ends.started[-1] == 1
    )  # a busy one has a second turn, taken from the queue after all others
    reasons = {values["run_id"]: values["reason"] for values in read_ledger(tmp_path)}
    codes = {
        f"rope-{seed}": f"ended with exit code {code} before it was done"
        for seed, code in ((0, 0), (1, BUSY), (2, 2))
    }
    assert reasons.pop("rope-3").startswith("ended by SIGSEGV;") and reasons == {
        **codes,
        "rope-4": "could not be run: no more processes",
    }
    assert capsys.readouterr().err.count("failed: rope-") == 5


@pytest.mark.timeout(60)
def test_a_signal_that_reaches_another_thread_is_noted_and_what_it_ends_is_no_failure(
    tmp_path, monkeypatch
):
    class Stops(Ends):
        def wait(self) -> int:
            signal.pthread_kill(
                threading.get_ident(), signal.SIGTERM
            )  # as the kernel does where the main thread is busy with a signal
            return -signal.SIGTERM

        def send_signal(self, number: int) -> None:
            pass

    monkeypatch.setattr(worker, "subprocess", Stops)
    monkeypatch.setattr(Ends, "codes", {0: None, 1: None})
    jobs = [unstarted(tmp_path, seed) for seed in (0, 1)]
    with pytest.raises(KeyboardInterrupt):
        sweep.run_jobs(jobs, 1, "the command")
    endings = {
        values["run_id"]: (values["status"], values["reason"].split(":")[0].split(";")[0])
        for values in read_ledger(tmp_path)
    }
    assert endings == {
        "rope-0": ("interrupted", "ended by SIGTERM"),
        "rope-1": ("interrupted", "not started"),
    }


def test_a_full_tmpdir_is_named(tmp_path, monkeypatch):
    def full(path: Path, *_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Path, "write_text", full)
    job = unstarted(tmp_path, 0)
    (result,) = sweep.run_jobs([job], 1, "the command")
    assert result.failures[0].reason.startswith(
        f"could not be run: No space left to write {tmp_path}/posbench-"
    )
