"""Losses at several lengths while a model trains, and the weights of steps that are kept: what they
equal, what they change (nothing), and what is refused.
"""

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import choices, node, small_model, small_shape
from test_cli import cli  # noqa: F401
from test_train import config, log_of, make_corpus, token_file

import posbench
from posbench.common.files import read_json
from posbench.position.instantiate import make_method
from posbench.position.plan import training_plan_maker
from posbench.runs.directory import Run
from posbench.runs.rows import read_eval
from posbench.sweep.losses_by_length import LossesByLength
from posbench.sweep.recorder import Recorder
from posbench.sweep.wandb_validation import ValidationChart
from posbench.training import loop
from posbench.training.distributed import World
from posbench.training.loop import fit

WATCHED = ["train.validate_lengths=16,32,64", "train.validate_extensions=none,yarn"]
WATCHED += ["train.keep_steps=1,3", "train.validate_every=2", "train.checkpoint_every=2"]
NO_EVALUATION = ["evaluate.floor=false", "evaluate.lengths=16"]


def weights_of(folder: Path) -> str:
    return read_json(folder / "train.json")["sha256"]


def validations(folder: Path) -> dict[int, dict]:
    """{step: losses of its validation}."""
    return {line["step"]: line["validation"] for line in log_of(folder) if "validation" in line}


def trained(cli, *words: str) -> dict[str, Path]:  # noqa: F811
    """{"" or step: run} of what a command trains and keeps."""
    cli(*words, *NO_EVALUATION)
    return {run.name.partition("at")[2].partition("-")[0]: run for run in cli.runs()}


def test_the_losses_are_those_of_an_evaluation_and_change_no_weight(cli):  # noqa: F811
    plain = trained(cli)[""]
    sha256 = weights_of(plain)
    other = ["results_dir=others"]
    watched_id = trained(cli, *WATCHED, *other)  # in another folder: the id is the same
    assert watched_id[""] == plain  # cli.runs() lists the first folder
    (watched,) = (cli.folder / "others").glob(plain.name)
    assert weights_of(watched) == sha256
    assert sorted(validations(watched)) == [1, 2, 3, 4]
    last = validations(watched)[4]
    for extension in ("none", "yarn"):
        cli(
            f"run={watched}",
            f"extension={extension}",
            "evaluate.split=validation",
            "evaluate.lengths=16,32,64",
            "evaluate.max_length=64",
            "evaluate.windows=4",
            f"evaluate.dtype={Run(watched).read_config()['train']['dtype']}",
            "evaluate.floor=false",
            *other,
            common=False,
        )
        (path,) = (
            path
            for path in watched.glob(f"evals/*/{extension}+*.json")
            if len(read_eval(path)) == 3
        )
        rows = read_eval(path)
        assert last["nll"][extension] == {str(row["length"]): row["nll"] for row in rows}
        assert {row["n_targets"] for row in rows} == {last["targets"]} and last["max_length"] == 64


def test_a_kept_step_is_the_training_that_ends_there(cli, monkeypatch):  # noqa: F811
    runs = trained(cli, *WATCHED)
    assert set(runs) == {"", "1", "3"}
    assert [validations(runs[name]).keys() for name in ("1", "3")] == [{1}, {1, 2, 3}]
    contents = {name: (weights_of(run), log_of(run)) for name, run in runs.items()}
    assert len({sha256 for sha256, _ in contents.values()}) == 3
    assert [read_json(runs[name] / "train.json")["steps"] for name in runs] == [4, 1, 3]
    alone = trained(cli, *WATCHED[:2], "train.validate_every=2", "step=3", "results_dir=alone")
    (direct,) = (cli.folder / "alone").glob("rope-*")  # no other training is made for it
    assert alone == runs and direct.name == runs["3"].name
    assert weights_of(direct) == contents["3"][0]
    assert log_of(direct)[-1] == contents["3"][1][-1]

    # Interrupted before its end, the training goes on from step 2 and writes the same again.
    broken = ["results_dir=broken"]
    with monkeypatch.context() as patch:
        patch.setattr(loop, "_finish", interrupted)
        cli(*WATCHED, *NO_EVALUATION, *broken, code=1)
    (later,) = (cli.folder / "broken").glob("*at3*")
    for path in later.iterdir():
        path.unlink()
    (state,) = (cli.folder / "broken").glob("*/state.pt")  # of step 4; the one before is of step 2
    state.unlink()
    cli(*WATCHED, *NO_EVALUATION, *broken)
    for name, run in runs.items():
        again = cli.folder / "broken" / run.name
        assert (weights_of(again), log_of(again)) == contents[name]


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_rows_of_a_kept_step_stand_beside_those_of_the_end(cli):  # noqa: F811
    runs = trained(cli, *WATCHED)
    for step in (3, 4):  # 4 is the end, where the evaluation is there already
        cli(f"run={runs['']}", f"step={step}", *NO_EVALUATION, common=False)
    (path,) = runs["3"].glob("evals/*/*.json")
    (row,) = read_eval(path)
    assert (row["run_id"], row["step"]) == (runs["3"].name, 3)
    report = cli("runs=runs", "report_dir=report", script="report", common=False).stdout
    assert {"rope step=3", "rope step=4"} <= {line.strip()[:11] for line in report.splitlines()}
    frame = posbench.frame(cli.folder / "runs")
    assert dict(zip(frame.encoding, frame.train_steps, strict=True)) == {
        "rope step=3": 3,
        "rope step=4": 4,
    }


def test_a_step_that_was_not_kept_is_refused_with_those_that_were(cli):  # noqa: F811
    run = trained(cli, *WATCHED)[""]
    done = cli(f"run={run}", "step=2", code=2, common=False)
    assert "kept no weights of step=2 (it kept step 1, 3 and 4, the last)" in done.stderr


@dataclass(frozen=True)
class Alone(World):
    """A process that measures its share, and hears of no other."""

    def sum_over_processes(self, number: float) -> float:
        return number


def losses_of(model: torch.nn.Module, world: World, **changes) -> dict:
    train = config(**{"length": 16, "validate_lengths": [8, 40], "dtype": "fp32"} | changes)
    return LossesByLength(model.eval(), corpus(), train, "cpu", world)()


def corpus():
    return make_corpus(train=token_file(3000, 4), validation=token_file(600, 2), vocab_size=50)


def test_the_shares_of_several_processes_sum_to_the_whole():
    model = small_model(make_method(node("encoding", "rope"), small_shape()))
    undivided = losses_of(model, World(), validate_windows=5)
    shares = [losses_of(model, Alone(rank, 7), validate_windows=5) for rank in range(7)]
    assert {share["targets"] for share in shares} == {undivided["targets"]} == {10}
    for length in ("8", "40"):
        total = math.fsum(share["nll"]["none"][length] for share in shares)
        assert total == pytest.approx(undivided["nll"]["none"][length], rel=1e-12)


def test_a_loss_that_is_not_finite_is_none_and_ends_nothing():
    model = small_model(make_method(node("encoding", "rope"), small_shape()))
    with torch.no_grad():
        model.norm.weight.fill_(math.nan)
    assert losses_of(model, World())["nll"] == {"none": {"8": None, "40": None}}


@pytest.mark.parametrize("name", choices("encoding"))
def test_no_encoding_trains_otherwise_when_it_is_watched(tmp_path, name):
    """Nothing that a measurement caches, or draws, reaches the next step."""
    lengths = [8, 16] if name in ("learned", "randomized", "random_float") else [8, 16, 40]
    weights = []
    for watched in (False, True):
        torch.manual_seed(0)
        model = small_model(make_method(node("encoding", name), small_shape()))
        train = config(
            length=16, steps=2, tokens_per_step=48, validate_every=1, validate_lengths=lengths
        )
        measure = LossesByLength(model, corpus(), train, "cpu", World())
        run = Run(tmp_path / str(watched))
        with run.lock():
            summary = fit(
                model,
                corpus(),
                train,
                seed=0,
                device="cpu",
                run=run,
                recorder=Nowhere(),
                plan_for=training_plan_maker(model.encoding, None, "cpu", 0),
                losses_by_length=measure if watched else None,
            )
        weights.append(summary["sha256"])
    assert weights[0] == weights[1]


class Nowhere:
    def train(self, step: int, **figures: object) -> None:
        json.dumps(figures)


def test_what_is_asked_too_late_is_said(cli):  # noqa: F811
    trained(cli, *WATCHED[:2], "train.keep_steps=1")
    same = cli(*WATCHED[:2], "train.keep_steps=1", *NO_EVALUATION)
    later = cli("train.validate_lengths=16,48", "train.keep_steps=1,2", *NO_EVALUATION)
    assert "delete it" not in same.stderr and "makes the first" not in same.stderr
    assert "was trained without train.validate_lengths=[16, 48]" in later.stderr
    assert "of steps [2] are not there: step=2 makes the first 2 steps again" in later.stderr


def test_what_is_asked_too_late_of_an_interrupted_training_is_said(cli, monkeypatch):  # noqa: F811
    """The state is of step 3: step 1 was kept before it, step 2 was not, and step 4 is the end."""
    first = ["train.checkpoint_every=3", "train.keep_steps=1", *NO_EVALUATION]
    with monkeypatch.context() as patch:
        patch.setattr(loop, "_finish", interrupted)
        for folder in ("same", "kept", "validated", "early"):
            cli(*first, f"results_dir={folder}", code=1)
    same = cli(*first, "results_dir=same").stderr
    assert "going on from step 3 of 4" in same and "made its first" not in same
    kept = cli(*first, "train.keep_steps=[1,2,4]", "results_dir=kept").stderr
    assert "first 3 steps already, and the weights of steps [2] are not there: step=2" in kept
    lengths = [*first, "train.validate_lengths=16,48"]
    validated = cli(*lengths, "train.validate_every=3", "results_dir=validated").stderr
    assert "made its first 3 steps without train.validate_lengths=[16, 48]" in validated
    assert "the weights of steps" not in validated
    # No validation is due before the end.
    early = cli(
        *lengths, "train.keep_steps=4", "train.validate_every=4", "results_dir=early"
    ).stderr
    assert "going on from step 3 of 4" in early and "made its first" not in early


def test_a_dry_run_counts_validations_and_kept_weights(cli):  # noqa: F811
    plain = cli("dry=true", *NO_EVALUATION).stdout
    watched = cli("dry=true", *WATCHED, *NO_EVALUATION).stdout
    # at steps 1 to 4, with two extensions, 4 windows of 16, 32 and 64 tokens
    tokens = 4 * 2 * 4 * (16 + 32 + 64)
    assert f"their validations by length, {tokens:,} tokens" in watched
    assert "validations" not in plain
    assert " of validation by " in watched


def test_wandb_has_the_losses_by_name_and_one_chart_with_a_line_a_length(tmp_path, monkeypatch):
    run = Run(tmp_path / "rope-16-s0-0123456789")
    logged = []
    series = {"lines": None}

    def line_series(xs, ys, keys, title, xname, split_table):
        series["lines"] = dict(zip(keys, zip(xs, ys, strict=True), strict=True))
        return "chart"

    monkeypatch.setitem(
        sys.modules, "wandb", SimpleNamespace(plot=SimpleNamespace(line_series=line_series))
    )
    fake = SimpleNamespace(log=lambda values, step=None: logged.append(values))
    recorder = Recorder.__new__(Recorder)
    recorder.run = run
    recorder._mirror = SimpleNamespace(send=lambda action: action(fake), finish=lambda ok: None)
    recorder._validation_chart = ValidationChart(run)
    for step in range(1, 41):
        nll = {"none": {"16": 3.0 / step, "64": None if step == 2 else 4.0}}
        recorder.train(step, loss=1.0, validation={"max_length": 64, "targets": 8, "nll": nll})
    charts = [values for values in logged if "validation_by_step" in values]
    assert len(charts) < 25
    recorder.finish(ok=True)
    assert logged[0] == {
        "train/loss": 1.0,
        "validation/none at 16": 3.0,
        "validation/none at 64": 4.0,
    }
    steps, losses = series["lines"]["64 none rope-16-s0-0123"]
    assert steps == [1, *range(3, 41)] and losses == [4.0] * 39
    assert series["lines"]["16 none rope-16-s0-0123"][1][-1] == 3.0 / 40
