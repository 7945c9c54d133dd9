"""Progress lines, with a clock that the test moves."""

import pytest
from conftest import Clock

from posbench.common.progress import Progress


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("posbench.common.progress.time", clock)
    return clock


def lines_of(capsys) -> list[str]:
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


def test_plain_lines_come_at_tenths_with_the_time_left(clock, capsys):
    with Progress(100, "train", "steps") as progress:
        for step in range(100):
            clock.now += 2
            progress.update(1, loss=5 - step / 100)
    lines = lines_of(capsys)
    assert len(lines) == 10
    assert lines[0] == "train 10/100 steps  loss 4.91  3m00s left"
    assert lines[-1] == "train 100/100 steps  loss 4.01  took 3m20s"


def test_one_slow_step_does_not_move_the_remaining_time(clock):
    progress = Progress(100, "train", "steps")
    assert progress.remaining() is None
    for step in range(20):
        clock.now += 600 if step == 7 else 2
        progress.update(1)
    assert progress.remaining() == 160


def test_the_time_left_follows_the_work_of_the_units_to_come(clock):
    progress = Progress(3_000, "evaluate", "tokens", work=1_000 + 2_000 * 4.0)
    clock.now += 1
    progress.update(1_000)
    assert progress.remaining() == pytest.approx(8)
    clock.now += 4
    progress.update(1_000, each=4.0)
    assert progress.remaining() == pytest.approx(4)
    progress.update(900, each=4.0, spared=True)  # which took no time, and says nothing of the speed
    assert progress.remaining() == pytest.approx(0.4)


def test_parts_of_a_piece_are_shown_and_count_for_the_speed_together(clock, capsys):
    with Progress(100, "evaluate", "windows") as progress:
        for seconds, left in (
            (6, 6 / 5 * 95),
            (1, 7 / 10 * 90),
        ):  # before a whole piece is known, by what is done of it
            clock.now += seconds
            progress.update(5, part=True)
            assert progress.remaining() == pytest.approx(left)
        for seconds, n in ((3, 0), (2, 5), (8, 5)):
            clock.now += seconds
            progress.update(n, part=n == 5)
        assert progress.done == 20 and progress.remaining() == pytest.approx(10 / 10 * 80)
    assert lines_of(capsys)[0] == "evaluate 10/100 windows  1m03s left"


def test_a_long_text_that_has_begun_counts_beside_the_short_ones_before_it(clock):
    with Progress(400, "evaluate", "tokens") as progress:
        for _ in range(5):
            clock.now += 1
            progress.update(10)
        assert progress.remaining() == pytest.approx(35)
        clock.now += 60
        progress.update(60, part=True)
        assert progress.remaining() == pytest.approx(1.0 * 290)


def test_work_done_before_counts_for_the_share_alone(clock, capsys):
    with Progress(100, "train", "steps") as progress:
        progress.update(90, spared=True)
        for _ in range(10):
            clock.now += 2
            progress.update(1)
    assert lines_of(capsys) == ["train 93/100 steps  14s left", "train 100/100 steps  took 20s"]


def test_a_terminal_has_one_line(clock, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "30")
    with Progress(100, "train", "steps") as progress:
        for _ in range(100):
            clock.now += 0.1
            progress.update(1, loss=3.21, speed=19000.0)
    _, err = capsys.readouterr()
    assert err.count("\n") == 1 and err.endswith("\n")
    drawn = err.rstrip("\n").split("\r\x1b[K")[1:]
    assert 40 <= len(drawn) <= 60 and all(len(line) <= 29 for line in drawn)
    assert drawn[-1].startswith("train 100/100 steps")


def test_an_error_says_nothing_of_completion(clock, capsys):
    with pytest.raises(KeyError), Progress(100, "train", "steps") as progress:
        progress.update(1)
        raise KeyError
    assert lines_of(capsys) == []


def test_short_work_is_one_line_of_numbers_that_read_well(clock, capsys):
    with Progress(1, "t", "u") as progress:
        clock.now += 3700
        progress.update(1, a=18999.6, b=0.123456, c=7, d="x")
    assert lines_of(capsys) == ["t 1/1 u  a 19,000  b 0.1235  c 7  d x  took 1h01m"]
