"""dry=true: what it says of a few jobs, of many, and of what they would cost."""

import json
import pkgutil
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import node
from hf_models import checkpoint as written
from script_calls import call
from spoils import with_usual
from test_cli import TINY
from test_evaluate import TRAIN_LEN, evaluation, text

from posbench.config.identity import method_name
from posbench.config.schema import EvaluateConfig, JobConfig, ModelConfig, TrainConfig
from posbench.evaluation import protocols as evaluators
from posbench.evaluation.protocol import ReadVolume
from posbench.evaluation.registry import protocol
from posbench.extensions.recompute_window import RecomputeWindow
from posbench.model.build import make_model
from posbench.runs.directory import Run
from posbench.sweep import dry_run as dry
from posbench.sweep.cells import RECOMPUTE, EvaluationCell
from posbench.sweep.cost import ModelSize, cost, model_size
from posbench.sweep.jobs import Job
from posbench.training.time_training import step_seconds

MODEL, OTHER = {"d_model": 16, "d_ff": 32}, {"d_model": 512, "d_ff": 1376, "n_layer": 12}
NONE = {"_target_": "posbench.scale_attention.none.NoScale"}
ROPE = {"_target_": "posbench.encodings.rope.Rope"}
NTK, PI = {"_target_": "posbench.extensions.ntk.Ntk"}, {"_target_": "posbench.extensions.pi.Pi"}
DATA = {"tokenizer": "bytes", "bos": False}
EVALUATE = {
    "windows": 10,
    "targets": 2,
    "max_length": 1000,
    "stride": 4,
    "lengths": [100],
    "dtype": "fp32",
}


def job(folder: Path, name: str, jobs: int = 1, model: dict = MODEL, **changed) -> Job:
    train = TrainConfig(steps=100, tokens_per_step=6000, length=TRAIN_LEN)
    cfg = JobConfig(
        train=train,
        model=ModelConfig(**model),
        data=DATA,
        results_dir=str(folder),
        jobs=jobs,
        **changed,
    )
    return Job(cfg, Run(folder / name), "")


def cell(extension: dict, protocol: str = "fixed_targets") -> EvaluationCell:
    return EvaluationCell(
        protocol, extension, {}, EvaluateConfig(**EVALUATE), False, "", Path("nowhere")
    )


def measured(folder: Path, name: str, speed: float, model: dict, **seconds: float) -> None:
    """A finished run of that speed (tokens/s) with one evaluation of 10 windows at length 100 for
    each extension in `seconds`.
    """
    path = folder / name
    (path / "evals" / "fixed_targets").mkdir(parents=True)
    (path / "config.yaml").write_text(
        json.dumps({"encoding": ROPE, "model": model, "train": {"length": TRAIN_LEN}, "data": DATA})
    )
    (path / "train.json").write_text(
        json.dumps({"sha256": "x", "tokens_per_second": speed, "seconds": 60.0})
    )
    for extension, took in seconds.items():
        node = {"ntk": NTK, "pi": PI, "floor": {"_target_": RECOMPUTE, "window": None}}[extension]
        content = {
            "config": {
                "protocol": "fixed_targets",
                "extension": node,
                "scale_attention": NONE,
                "evaluate": EVALUATE,
            }
        }
        content["rows"] = [{"length": 100, "seconds": took}]
        file = path / "evals" / "fixed_targets" / f"{extension}+none-1.json"
        file.write_text(json.dumps(content))


def test_nothing_measured_is_said_to_be_unknown(tmp_path):
    fresh = [job(tmp_path, "a-16-s0-0000000000")]
    first, second = cost(fresh, fresh, [(fresh[0], cell(PI), [100, 900])])
    assert first == "1 of 1 trainings to make, 0.6 M tokens; 1 evaluation, 10,000 tokens"
    reason = "(nothing of 1 s or more was measured here yet)"
    assert (
        second
        == f"unknown time of training {reason}, unknown time of evaluation {reason}; 0.1 MiB of"
        " disk"
    )
    assert cost(fresh, [], []) == ["0 of 1 trainings to make, 0 tokens; 0 evaluations, 0 tokens"]


def test_a_first_training_takes_as_long_as_steps_made_now(tmp_path, monkeypatch):
    vocab_sizes = []
    monkeypatch.setattr(
        "posbench.training.time_training.step_seconds",
        lambda cfg, vocab_size, threads: vocab_sizes.append(vocab_size) or 0.5,
    )
    fresh, our_size = [job(tmp_path, "a-16-s0-0000000000")], size(MODEL)
    cost_line = cost(fresh, fresh, [(fresh[0], cell(PI), [100])])[1]
    reading = (
        0.5
        * our_size.forward_flop(ReadVolume(10, 100, 2, 20))
        / (6000 * our_size.training_flop_per_token(TRAIN_LEN))
    )
    assert cost_line.startswith("about 50 s of training by some steps made just now, ") and seconds(
        cost_line
    ) == round(reading)
    assert " of evaluation by arithmetic from trainings" in cost_line
    large = [job(tmp_path, "a-16-s0-0000000001", model={"d_model": 4096, "d_ff": 16384})]
    assert "unknown time of training" in cost(large, large, [])[1] and vocab_sizes == [
        256
    ]  # a step of it would take long itself
    measured(tmp_path, "a-16-s0-0000000002", 5000.0, MODEL)
    assert "about 2 min of training by runs" in cost(fresh, fresh, [])[1] and vocab_sizes == [
        256
    ]  # a stored training is known better


def test_layers_without_attention_are_timed_and_not_told_by_attention(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "posbench.training.time_training.step_seconds", lambda cfg, vocab_size, threads: 3.0
    )
    measured(tmp_path, "a-16-s0-0000000001", 5000.0, MODEL)
    kimi = {
        "_target_": "posbench.encodings.hybrid.Hybrid",
        "local": {"_target_": "posbench.encodings.kimi_delta.KimiDelta"},
        "full": ROPE,
    }
    hybrid = job(tmp_path, "a-16-s0-0000000002", encoding=kimi)
    assert cost([hybrid], [hybrid], [])[1].startswith(
        "about 5 min of training by some steps made just now; "
    )
    fox = {"_target_": "posbench.encodings.fox.Fox"}
    attending = job(tmp_path, "a-16-s0-0000000003", encoding=fox)
    assert cost([attending], [attending], [])[1].startswith(
        "about 2 min of training by runs of this model size; "
    )
    foreign = job(tmp_path, "a-16-s0-0000000004", encoding={"_target_": "elsewhere.Mine"})
    assert model_size(foreign.config) == size(MODEL)  # a class of others is not imported


def test_steps_made_to_measure_leave_nothing_behind():
    train = TrainConfig(length=16, tokens_per_step=64, dtype="fp32")
    cfg = JobConfig(train=train, model=ModelConfig(**MODEL, n_head=1), data=DATA, device="cpu")
    cfg = replace(cfg, encoding=node("encoding", "rope"))
    drawn, threads = [], torch.get_num_threads()
    for measures in (False, True):
        torch.manual_seed(3)
        if measures:
            assert 0 < step_seconds(cfg, 256, 1) < 5
        drawn.append(torch.rand(3).tolist())
    assert drawn[0] == drawn[1] and torch.get_num_threads() == threads


def test_time_and_disk_are_those_of_the_same_model_and_method(tmp_path):
    measured(tmp_path, "a-16-s0-0000000001", 5000.0, MODEL, pi=1.0, ntk=100.0)
    measured(tmp_path, "a-16-s0-0000000002", 50.0, OTHER)
    (tmp_path / "a-16-s0-0000000002" / "train.json").with_name("failure.txt").touch()
    fresh = [job(tmp_path, "a-16-s0-0000000003", jobs=2)]
    _, cost_line = cost(fresh, fresh, [(fresh[0], cell(PI), [100])])
    # 600,000 tokens at 5,000 a second; the same length of the same method; jobs=2 has nothing to
    # divide
    training, evaluation = cost_line.split(", ")
    assert training == "about 2 min of training by runs of this model size"
    assert (
        evaluation
        == "about 1 s of evaluation by stored evaluations of texts like these; 0.1 MiB of disk"
    )
    both = [*fresh, job(tmp_path, "a-16-s0-0000000005", jobs=2)]
    assert (
        "; jobs=2 divides the time as far as the machine has cores for it; "
        in cost(both, both, [])[1]
    )
    assert "picture" not in cost(both, both, [], 2)[1]
    assert "a first picture, of 2 models, after about 2 min; " in cost(both * 2, both * 2, [], 2)[1]
    _, cost_line = cost(fresh, [], [(fresh[0], cell(NTK), [100])])
    assert cost_line.startswith("about 2 min of evaluation")  # 100 s
    other = job(tmp_path, "a-16-s0-0000000004", model=OTHER)
    assert (
        "about 3.3 h of training by runs of this model size; 145.8 MiB"
        in cost([other], [other], [])[1]
    )


def size(model: dict) -> ModelSize:
    return model_size(JobConfig(model=ModelConfig(**model), data=DATA))


def seconds(line: str) -> float:
    """The time of evaluation that a line tells."""
    number, unit = re.search(r"([\d.]+) (s|min|h|days|years) of evaluation", line).groups()
    return float(number) * {"s": 1, "min": 60, "h": 3600, "days": 86400, "years": 365 * 86400}[unit]


def test_another_size_of_model_is_told_by_its_arithmetic(tmp_path):
    measured(tmp_path, "a-16-s0-0000000001", 5000.0, MODEL, pi=1.0)
    large = job(tmp_path, "a-16-s0-0000000002", model=OTHER)
    (_, cost_line), (_, alike) = (
        cost([fresh_job], [fresh_job], [(fresh_job, cell(PI), [100])])
        for fresh_job in (large, job(tmp_path, "a-16-s0-0000000003"))
    )
    assert (
        "of training by runs of other sizes, " in cost_line
        and "of evaluation by arithmetic from trainings; " in cost_line
    )
    few, many = size(MODEL), size(OTHER)
    volume = ReadVolume(10, 100, 2, 20)
    assert (
        seconds(cost_line)
        == pytest.approx(
            many.forward_flop(volume) / (5000 * few.training_flop_per_token(TRAIN_LEN)), abs=30
        )
        and seconds(alike) == 1
    )
    assert f"{(4 * many.parameters + 8 * 20) / 2**20:.1f} MiB" in cost_line
    measured(
        tmp_path / "other", "a-16-s0-0000000003", 5000.0, MODEL, pi=0.9
    )  # over at once: no measure of long work
    elsewhere = [job(tmp_path / "other", "a-16-s0-0000000004")]
    assert (
        "of evaluation by arithmetic from trainings; "
        in cost(elsewhere, [], [(elsewhere[0], cell(PI), [900])])[1]
    )


def test_the_floor_is_counted_as_it_is_run(tmp_path):
    """Every target is read from a text of its own: 10 windows of 2 targets, each with the last 16
    tokens.
    """
    measured(tmp_path, "a-16-s0-0000000001", 5000.0, MODEL, pi=1.0)
    stored_job, floor = (
        job(tmp_path, "a-16-s0-0000000001"),
        cell({"_target_": RECOMPUTE, "window": None}),
    )
    first, cost_line = cost([stored_job], [], [(stored_job, floor, [100, 900])])
    assert first.endswith("1 evaluation, 320 tokens")  # both lengths read the same, once
    model = size(MODEL)
    assert seconds(cost_line) == round(
        model.forward_flop(ReadVolume(20, 16, 1, 20))
        / model.forward_flop(ReadVolume(10, 100, 2, 20))
    )
    measured(tmp_path, "a-16-s0-0000000002", 5000.0, MODEL, floor=60.0)
    assert cost([stored_job], [], [(stored_job, floor, [100])])[1].startswith(
        "about 60 s of evaluation by stored"
    )


@pytest.mark.parametrize(
    ("extension", "read"),
    [("none", {900: 900, 100: 900, 50: 900}), ("pi", {900: 900, 100: 100, 50: 50})],
)
def test_lengths_of_by_position_that_are_read_together_are_counted_once(tmp_path, extension, read):
    stored_job = job(tmp_path, "b", encoding=node("encoding", "rope"))
    by_position = replace(
        cell(node("extension", extension), "by_position"),
        scale_attention=node("scale_attention", "none"),
    )
    first = cost([stored_job], [], [(stored_job, by_position, [50, 100, 900])])[0]
    assert first.endswith(f"1 evaluation, {10 * sum(set(read.values())):,} tokens")

    measured(tmp_path, "a-16-s0-0000000001", 5000.0, MODEL)
    path = tmp_path / "a-16-s0-0000000001/evals/by_position/x+none-1.json"
    path.parent.mkdir()
    rows = [
        {"length": length, "position": 1, "seconds": length / 20 if text == length else 0.0}
        for length, text in read.items()
    ]
    config = {
        "protocol": "by_position",
        "extension": by_position.extension,
        "scale_attention": NONE,
        "evaluate": EVALUATE,
    }
    path.write_text(
        json.dumps(
            {
                "config": config,
                "texts": {str(key): value for key, value in read.items()},
                "rows": rows,
            }
        )
    )
    again = cost([stored_job], [], [(stored_job, by_position, [50, 100, 900])])[1]
    assert seconds(again) == pytest.approx(sum(set(read.values())) / 20, abs=1)


def test_parameters_are_those_of_the_model(tmp_path):
    for model, bos in (
        ({"n_kv_head": 1, "tied": True}, True),
        ({"d_ff": 48, "head_dim": 24, "n_layer": 3}, False),
        ({}, False),
        # fmt: skip
        ({"output_gate": "headwise"}, False),
        ({"output_gate": "elementwise", "head_dim": 24}, False),
    ):
        cfg = JobConfig(
            model=ModelConfig(d_model=64, **model), data={"tokenizer": "bytes", "bos": bos}
        )
        gpt = make_model(cfg, 256 + bos)
        assert model_size(cfg).parameters == sum(
            parameter.numel() for name, parameter in gpt.named_parameters() if "norm" not in name
        )


@pytest.mark.parametrize("floor", [0, 1, 2], ids=["whole", "floor", "blocks"])
@pytest.mark.parametrize(
    "name",
    [
        module.name
        for module in pkgutil.iter_modules(evaluators.__path__)
        if not protocol(module.name).needs_questions
    ],
)
def test_what_a_protocol_reads_is_told_before_there_is_text(name, floor):
    scorer = evaluation(
        RecomputeWindow() if floor else None,
        windows=32,
        stride=4,
        floor_block=floor or None,
        key_context=4,
    )
    scorer.corpus.test = text([3000] * 6)
    evaluator = protocol(name)(scorer)
    for length in (16, 24, 64):
        if floor and name in ("by_position", "yarn_script", "yarn_script_truncate", "lceg_script"):
            continue  # they read one text at once
        fed = scorer.fed_length(length)
        reading = type(evaluator).read_volume(scorer.config, TRAIN_LEN, length, fed)
        assert reading.total_tokens == pytest.approx(evaluator.tokens_to_read(length), rel=0.1)
        volumes = type(evaluator).read_volumes_first(scorer.config, TRAIN_LEN)
        first = sum(volume.total_tokens for volume in volumes)
        assert first == pytest.approx(evaluator.tokens_to_read_first(), rel=0.1)
        assert bool(first) == (name == "longppl")
        if fed == length and name not in (
            "repeat",
            "longppl",
        ):  # of these there are at most so many: longppl keeps its key tokens
            assert reading.total_losses == pytest.approx(
                evaluator.run(length)[1]["nll"].size, rel=0.1
            )


def test_a_checkpoint_is_taken_and_not_trained(tmp_path, capfd, typed):
    written(tmp_path, vocab_size=300, max_position_embeddings=16, bos_token_id=0)
    words = [
        word
        for word in typed
        if word.startswith("train.length=") or not word.startswith(("model.", "train."))
    ]
    output = call(capfd, tmp_path, "run", "model=hf", "model.path=Llama", *words).stdout
    none = call(
        capfd,
        tmp_path,
        "run",
        "model=hf",
        "model.path=Llama",
        "extension=yarn",
        "extension.mode=fixed",
        *words,
    ).stdout
    assert "  no checkpoint to take, since nothing is left to evaluate" in none
    assert "to train" not in output and "trainings" not in output and "checkpoint to take" in output
    assert (
        "\n1 of 1 checkpoints to take; 1 evaluation and 2 floor windows" in output
        and output.endswith("by one layer measured just now; 0.0 MiB of disk\n")
    )


def checkpoint(
    folder: Path, dtype: str = "fp32", device: str = "cpu"
) -> tuple[Job, EvaluateConfig]:
    """A job on a checkpoint, and the settings of its evaluations."""
    model = {**MODEL, "checkpoint": {"sha256": "x", "vocab_size": 300, "bos": None}}
    settings = EvaluateConfig(**{**EVALUATE, "dtype": dtype})
    return (
        job(
            folder,
            "hf-16-s0-0000000000",
            model=model,
            encoding=node("encoding", "rope"),
            device=device,
        ),
        settings,
    )


def test_a_checkpoints_texts_are_told_by_stored_ones_and_else_by_a_layer_measured_now(
    tmp_path, monkeypatch
):
    measured(
        tmp_path, "hf-16-s0-0000000001", 0.0, {**MODEL, "checkpoint": {"vocab_size": 300}}, ntk=0.5
    )  # over at once
    measurements = []

    class FakeSpeed:
        """A machine with other work on it, which needs 36 s for a token of every text."""

        def __init__(self, cfg, vocab_size, dtype):
            measurements.append((vocab_size, dtype))

        def seconds(self, reading, extension, scale):
            measurements.append((reading.tokens_per_text, reading.texts, method_name(extension)))
            return 36.0 * reading.tokens_per_text

    monkeypatch.setattr("posbench.evaluation.speed_of_evaluation.EvaluationSpeed", FakeSpeed)

    def cost_line(extension: dict, lengths: list[int], dtype: str = "fp32") -> str:
        job, settings = checkpoint(tmp_path, dtype)
        measurements.clear()
        cells = [
            EvaluationCell(
                "fixed_targets",
                extension,
                NONE,
                replace(settings, lengths=lengths),
                False,
                "",
                Path("nowhere"),
            )
        ]
        return cost([job], [job], [(job, evaluated, lengths) for evaluated in cells])[1]

    assert cost_line(NTK, [100]).startswith(
        "about 60 min of evaluation by one layer measured just now; "
    )
    assert cost_line(PI, [120, 200]).startswith(
        "about 3.2 h of evaluation by one layer measured just now; "
    )
    assert measurements == [(300, "fp32"), (120, 10, "pi"), (200, 10, "pi")]

    # The texts of its floor are short.
    measured(
        tmp_path,
        "hf-16-s0-0000000002",
        0.0,
        {**MODEL, "checkpoint": {"vocab_size": 300}},
        pi=72.0,
        floor=5.0,
    )
    assert (
        cost_line(PI, [100]).startswith(
            "about 72 s of evaluation by stored evaluations of texts like these; "
        )
        and not measurements
    )
    assert cost_line(NTK, [200]).startswith(
        "about 2.0 h of evaluation by one layer measured just now; "
    )
    assert measurements == [(300, "fp32"), (200, 10, "ntk")]
    assert cost_line(PI, [100], "bf16").startswith(
        "about 60 min of evaluation by one layer"
    ) and measurements[0] == (300, "bf16")


def test_a_task_counts_once_however_many_rows_it_has(tmp_path):
    measured(
        tmp_path, "hf-16-s0-0000000001", 0.0, {**MODEL, "checkpoint": {"vocab_size": 300}}, pi=7.0
    )
    (file,) = tmp_path.rglob("pi+none-1.json")
    content = json.loads(file.read_text())
    took = [
        ("niah", None, 40.0),
        ("niah", 0.5, 20.0),
        ("niah", 1.0, 20.0),
        ("niah choice", None, 40.0),
        ("niah choice", 1.0, 20.0),
    ]
    took += [("passkey", None, 20.0), ("passkey", 1.0, 10.0)]
    content["rows"] = [
        {"length": 100, "task": task, "depth": depth, "seconds": seconds}
        for task, depth, seconds in took
    ]
    file.write_text(json.dumps(content))
    checkpoint_job, settings = checkpoint(tmp_path)
    line = cost(
        [checkpoint_job],
        [checkpoint_job],
        [
            (
                checkpoint_job,
                EvaluationCell("fixed_targets", PI, NONE, settings, False, "", Path("nowhere")),
                [100],
            )
        ],
    )[1]
    assert line.startswith("about 60 s of evaluation by stored evaluations of texts like these; ")


def test_a_checkpoint_on_a_device_that_is_not_there_has_an_unknown_time(tmp_path):
    job, settings = checkpoint(tmp_path, device="cuda:99")
    line = cost(
        [job],
        [job],
        [
            (
                job,
                EvaluationCell("fixed_targets", PI, NONE, settings, False, "", Path("nowhere")),
                [100],
            )
        ],
    )[1]
    assert "unknown time of evaluation (device=" in line


@pytest.fixture
def typed(tmp_path, text_folder):
    return [*TINY, f"data.path={text_folder}", "results_dir=runs", "cache_dir=cache", "dry=true"]


def test_few_evaluations_are_listed_and_many_are_counted(tmp_path, capfd, typed, monkeypatch):
    words = ["-m", "encoding=none,alibi", "extension=ntk,none", "evaluate.lengths=[16]", *typed]
    words.remove("evaluate.lengths=[16,32]")
    few = call(capfd, tmp_path, "run", *words).stdout.splitlines()
    assert (
        sum("to train" in line for line in few) == 2
        and sum(": lengths 16" in line for line in few) == 2
    )
    assert (
        sum("no-op: encoding=none" in line for line in few) == 1
        and sum("refused: encoding=alibi" in line for line in few) == 1
    )
    monkeypatch.setattr(dry, "MANY", 5)
    many = call(capfd, tmp_path, "run", *words).stdout.splitlines()
    assert len(many) == 2 + 2 + 2 and many[-2] == few[-2]
    assert many[0].endswith(
        "to train; 1 evaluation and 2 floor windows to make, 1 evaluation left out"
    )
    assert {line.split(":")[0] for line in many[2:4]} == {"1 x no-op", "1 x refused"}


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["encoding=alibi", "extension=ntk"], 2, "encoding=alibi"),
        (
            ["extension=recompute_window", "evaluate.protocol=[fixed_targets,by_position]"],
            2,
            "evaluate.protocol=by_position reads one",
        ),
        (["encoding=none", "extension=ntk"], 0, ""),  # a no-op
        (["-m", "seed=0,1", "device=cuda:99"], 2, "device=cuda:99 is not available"),
        (
            ["-m", "device=cpu,cuda", "train.dtype=fp32"],
            2,
            "device=cpu and device=cuda are given for one training",
        ),
        (["encoding=none", "extension=ntk", "device=cuda:99"], 0, ""),  # nothing is done there
    ],
)
def test_it_ends_as_the_command_without_it_would(tmp_path, capfd, typed, words, code, message):
    done = call(capfd, tmp_path, "run", *with_usual(*words, usual=typed))
    assert done.returncode == code, done
    assert (
        done.stderr.count("\n") == done.stderr.count("refused: ") == bool(message)
        and message in done.stderr
    )


def test_a_length_without_room_for_a_question_is_refused_as_the_command_without_it_would(
    tmp_path, capfd, typed
):
    typed = [word for word in typed if not word.startswith("evaluate.lengths=")]
    words = ["evaluate.protocol=accuracy", "evaluate.tasks=[passkey]", "evaluate.lengths=[16,120]"]
    dry, run = (
        call(capfd, tmp_path, "run", *words, *typed, f"dry={word}") for word in ("true", "false")
    )
    assert (
        dry.returncode == run.returncode == 2
        and "passkey needs" in dry.stderr
        and "holds 16: leave it out" in dry.stderr
    )
    assert dry.stderr.splitlines()[-1] in run.stderr


def test_devices_of_a_cluster_are_not_asked_for_here(tmp_path, capfd, typed):
    words = [word for word in typed if not word.startswith("device=")]
    assert (
        call(
            capfd, tmp_path, "run", "hydra/launcher=submitit_slurm", "device=cuda:99", *words
        ).returncode
        == 0
    )


def test_an_encoding_that_is_refused_costs_no_other_job(tmp_path, capfd, typed):
    typed.remove("model.d_model=16")
    done = call(
        capfd,
        tmp_path,
        "run",
        "-m",
        "encoding=rope,none",
        "model.d_model=18",
        "model.n_head=2",
        *typed,
    )
    assert done.returncode == 0, done.stderr
    assert (
        "1 of 2 trainings to make" in done.stdout
        and done.stdout.count("to train") == 1
        and done.stdout.count("  refused: ") == 1
    )
