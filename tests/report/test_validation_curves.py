"""Losses by length while models trained, in a report: read from logs, averaged, drawn."""

import json
from pathlib import Path

import numpy as np
import pandas
import pytest
from script_calls import call
from synthetic import LENGTHS, TARGETS, write_eval

import posbench
from posbench.common.errors import ConfigError
from posbench.common.files import append_lines
from posbench.report import plot
from posbench.report.figures.validations import figure, late_loss_range
from posbench.report.plot import Options, draw_figure
from posbench.report.records import StepPoint
from posbench.results.validations import read_step_losses

NONE_AT_64 = {"none": {1: 3.0, 2: 2.5, 3: 2.6, 4: 2.75}}
DAMAGED = '{"step": 9, "validation": {"nll": 3}}\n{"step": 9, "validation": [1]}\nno json'


@pytest.fixture
def runs(tmp_path) -> Path:
    """Two seeds of a training that was watched, a kept step of the first, and an unwatched run."""
    folder = tmp_path / "runs"
    for seed in (0, 1):
        write_run(folder, "rope", seed, last_step=4)
    write_run(folder, "rope", 0, last_step=2, is_kept=True)
    write_eval(folder, "alibi", "none", "none", losses(), LENGTHS)
    return folder


def losses() -> np.ndarray:
    return np.full((len(LENGTHS), TARGETS), 3.0)


def write_run(
    folder: Path, encoding: str, seed: int, last_step: int, is_kept: bool = False
) -> None:
    run_id = f"{encoding}-64-s{seed}-0123456789"
    if is_kept:
        run_id = f"{encoding}-64at{last_step}-s{seed}-9876543210"
    path = folder / run_id
    step = last_step if is_kept else None
    changed = {"run_id": run_id, "step": step}
    eval_path = write_eval(
        folder / "new", encoding, "none", "none", losses(), LENGTHS, seed, **changed
    )
    eval_path.parents[2].rename(path)
    config = {
        "encoding": {"_target_": "posbench.encodings.rope.Rope"},
        "model": {},
        "data": {},
        "train": {"length": 64, "steps": 4, "step": step},
        "seed": seed,
    }
    (path / "config.yaml").write_text(json.dumps(config))
    lines = [{"step": 0, "loss": 5.0}]
    for step in range(1, last_step + 1):
        nll = {
            "none": {"64": NONE_AT_64["none"][step] + seed, "256": 4.0},
            "yarn": {"64": None, "256": 3.5 + step / 8},
        }
        # it went on with other settings after the first step
        targets = 6 if step == 1 else 8
        validation = {"max_length": 256, "targets": targets, "nll": nll}
        lines.append({"step": step, "validation": validation})
    append_lines(path / "train.jsonl", lines)
    with open(path / "train.jsonl", "a") as log:
        log.write(DAMAGED)


def values(frame: pandas.DataFrame, extension: str, length: int) -> dict[int, tuple]:
    """{step: (loss, lowest, highest, seeds)} of a line of a frame."""
    rows = frame[(frame.extension == extension) & (frame.length == length)]
    return {
        row.step: (row.nll, row.low, row.high, row.n_seeds) for row in rows.itertuples(index=False)
    }


def test_a_frame_has_means_over_seeds_of_the_last_targets(runs):
    frame = posbench.frame(runs, "validation")
    assert values(frame, "none", 64) == {
        2: (3.0, 2.5, 3.5, 2),
        3: (3.1, 2.6, 3.6, 2),
        4: (3.25, 2.75, 3.75, 2),
    }
    assert values(frame, "yarn", 256)[4] == (4.0, 4.0, 4.0, 2)
    assert not values(frame, "yarn", 64)
    assert set(frame.encoding) == {"rope"} and set(frame.n_targets) == {8}


def test_a_report_keeps_its_points_in_a_table_a_csv_and_a_figure(runs, tmp_path, capfd):
    done = call(capfd, tmp_path, "report", "runs=runs", "report_dir=out", pictures=True)
    assert done.returncode == 0
    assert "3.250 (3.000 at step 2)" in done.stdout
    assert (tmp_path / "out" / "validation.svg").stat().st_size > 10_000
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Loss by length while the models trained" in page
    of_runs = posbench.frame(runs, "validation")
    of_report = posbench.frame(tmp_path / "out", "validation")
    assert len(of_runs) == 9
    in_csv = [name for name in of_runs if name not in ("seeds", "nll_by_seed")]
    pandas.testing.assert_frame_equal(of_report[in_csv], of_runs[in_csv], check_dtype=False)
    both = posbench.frame([runs, tmp_path / "out"], "validation")
    assert len(both) == len(of_runs)  # each point once


def test_a_report_without_validations_has_nothing_of_them(tmp_path, capfd):
    write_eval(tmp_path / "runs", "alibi", "none", "none", losses(), LENGTHS)
    done = call(capfd, tmp_path, "report", "runs=runs", "report_dir=out")
    assert "alidation" not in done.stdout.replace("invalidation", "")
    assert not list((tmp_path / "out").glob("validation*"))


def test_a_plot_has_a_panel_a_method_and_a_line_a_length(runs):
    frame = posbench.frame(runs, "validation")
    drawn, caption = draw_figure(frame, Options(x="step"))
    titles = [axes.get_title(loc="left") for axes in drawn.axes]
    assert titles == ["rope", "rope + yarn"]
    names = [text.get_text() for text in drawn.axes[0].texts]
    assert names == ["64 tokens", "256 tokens"]
    first = drawn.axes[0].lines[0]
    assert list(first.get_xdata()) == [2, 3, 4] and list(first.get_ydata()) == [3.0, 3.1, 3.25]
    assert drawn.axes[0].get_xscale() == "linear"
    assert "the same 8 targets at every length and step | 2 seeds" in caption()[0]
    assert "Shade: from the lowest to the highest of 2 seeds." in caption()[1]
    of_seeds, _ = draw_figure(frame, Options(x="step", bars="seeds"))
    losses_of_seeds = [list(line.get_ydata()) for line in of_seeds.axes[0].lines]
    assert [2.5, 2.6, 2.75] in losses_of_seeds and [3.5, 3.6, 3.75] in losses_of_seeds
    by_length, _ = draw_figure(frame, Options(x="step", y="ppl", panel="length"))
    assert [axes.get_title(loc="left") for axes in by_length.axes] == ["length 64", "length 256"]
    line = by_length.axes[0].lines[0]
    assert list(line.get_ydata()) == pytest.approx(np.exp([3.0, 3.1, 3.25]))


@pytest.mark.parametrize(("what", "x"), [("validation", "length"), ("curve", "step")])
def test_a_frame_of_another_kind_is_refused(runs, what, x):
    with pytest.raises(ConfigError, match=f"x={x} does not fit this frame"):
        draw_figure(posbench.frame(runs, what), Options(x=x))


def test_plotting_what_no_training_logged_is_refused(runs, tmp_path, capfd):
    for log in runs.glob("*/train.jsonl"):
        log.unlink()
    done = call(capfd, tmp_path, "plot", "runs", "x=step")
    assert done.returncode == 2 and "train with train.validate_lengths" in done.stderr


def test_an_axis_leaves_out_the_fall_of_the_first_steps_alone():
    low, high = late_loss_range([(1, 9.0), (10, 4.0), (50, 3.0), (100, 2.0), (100, 7.0)])
    assert low == pytest.approx(2.0 - 0.3) and high == pytest.approx(7.0 + 0.3)


def test_a_figure_of_losses_that_are_not_finite_is_none():
    point = StepPoint(
        protocol="validation",
        data="books",
        tokenizer="bytes",
        train_len=64,
        setting="room for 64 tokens",
        encoding="rope",
        extension="none",
        length=64,
        n_targets=8,
        step=3,
    )
    assert figure([point], "") is None


def test_a_log_that_is_missing_or_strange_has_no_losses(tmp_path):
    assert read_step_losses(tmp_path) == []
    (tmp_path / "train.jsonl").write_text(DAMAGED)
    assert read_step_losses(tmp_path) == [] and plot.X_NAMES["step"]
