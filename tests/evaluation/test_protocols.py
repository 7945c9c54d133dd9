"""Protocols on a small GPT: against the plainest loop that means the same, the scripts' own
arithmetic, and every one of them in a job.
"""

import json
import math
import pkgutil
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest
import torch
from conftest import CONFIGS, TRAIN_LEN
from hydra import compose, initialize_config_dir
from test_cli import InProcess
from test_evaluate import evaluation, naive, text
from test_rows import VALUES

from posbench.common.errors import ConfigError, RunError
from posbench.config import compose as composition
from posbench.config.compose import unresolved_values
from posbench.config.schema import EvaluateConfig
from posbench.evaluation import protocols as evaluators
from posbench.evaluation.registry import protocol
from posbench.evaluation.scorer import Scorer
from posbench.extensions.none import NoExtension
from posbench.extensions.recompute_window import RecomputeWindow
from posbench.extensions.rerope import Rerope
from posbench.runs.rows import make_row
from posbench.runs.setting import Setting
from posbench.runs.target_losses import load_arrays, save_arrays
from posbench.sweep.jobs import plan_jobs

ALL = [module.name for module in pkgutil.iter_modules(evaluators.__path__)]
NAMES = [
    name for name in ALL if not protocol(name).needs_questions
]  # those that read text; test_accuracy.py has the other
WHOLE = ("by_position", "yarn_script", "yarn_script_truncate", "lceg_script")
AT_MOST = ("sliding", "tiled_targets")  # windows at the start of a document are read as one
EXTENSIONS = (NoExtension(), Rerope(), RecomputeWindow())
RUNS = [
    (name, method)
    for name in NAMES
    for method in EXTENSIONS
    if name not in WHOLE or not isinstance(method, RecomputeWindow)
]
COUNTS = {"n_targets", "n_bytes", "n_units"}
KEYS = {"key_gain": 0.001, "key_loss": 20.0, "key_context": 4}  # which most targets pass


@pytest.mark.parametrize(
    ("name", "extension", "bos"),
    [*((*run, None) for run in RUNS), *((*run, 49) for run in RUNS if run[1] is EXTENSIONS[0])],
    ids=lambda value: type(value).__name__ if value in EXTENSIONS else str(value),
)
def test_every_protocol_gives_rows_and_arrays_at_every_length(name, extension, bos, tmp_path):
    scorer = evaluation(extension, bos=bos, stride=4, windows=12, lengths=[16, 24, 64], **KEYS)
    scorer.corpus.test = text([200, 20, 300, 150])
    read = []
    scorer.progress = lambda n, part=False: read.append(n)
    evaluator, by_length = protocol(name)(scorer), {}
    for length in (16, 24, 64):
        read.clear()
        first = evaluator.tokens_to_read_first()
        rows, by_length[length] = evaluator.run(length)
        assert 0 <= sum(read) <= evaluator.tokens_to_read(length) + first
        if length == scorer.fed_length(length) and name not in AT_MOST:
            assert sum(read) == evaluator.tokens_to_read(length) + first
        for row in rows:
            assert {
                "nll",
                "nll_sem",
                "sem_unit",
                "accuracy",
                "max_distance",
                "seconds",
                "peak_mib",
            } | COUNTS <= set(row)
            assert (
                2 < row["nll"] < 20
                and 0 <= row["accuracy"] <= 1
                and row["n_bytes"] >= row["n_targets"] > 0
            )
            assert row["sem_unit"] == "document" and 1 < row["n_units"] <= 4 and row["nll_sem"] > 0
        if len(rows) == 1:
            assert (
                row["accuracy"] == by_length[length]["correct"].mean()
                and row["n_targets"] == by_length[length]["nll"].size
            )
    save_arrays(tmp_path / "a.npz", evaluator.shared_arrays(), by_length)
    loaded = load_arrays(tmp_path / "a.npz")
    assert all(
        np.array_equal(loaded[length]["nll"], by_length[length]["nll"]) for length in by_length
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_length_more_moves_no_number(name):
    few, many = (
        evaluation(stride=4, windows=18, lengths=lengths, **KEYS)
        for lengths in ([16, 64], [16, 24, 32, 64])
    )
    (few_rows, few_arrays), (many_rows, many_arrays) = (
        protocol(name)(scorer).run(64) for scorer in (few, many)
    )
    assert np.array_equal(few_arrays["nll"], many_arrays["nll"]) and [
        row["nll"] for row in few_rows
    ] == [row["nll"] for row in many_rows]


@pytest.mark.parametrize("bos", [None, 49])
@pytest.mark.parametrize("extension", EXTENSIONS, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize(("name", "stride"), [("disjoint", None), ("sliding", 8)])
def test_stretches_are_read_as_one_target_after_the_other_would_be(name, stride, extension, bos):
    scorer = evaluation(extension, bos=bos, stride=stride, windows=16)
    evaluator = protocol(name)(scorer)
    nll_NS = evaluator.run(24)[1]["nll"].reshape(-1, 64)
    step = stride or 24
    for place in (0, 7, 8, 22, 23, 24, 47, 48, 63):
        first = evaluator.windows.last_N[1] - 64
        start = max(
            first + (place // step + 1) * step - 24,
            scorer.file.starts[evaluator.windows.document_N[1]],
        )
        target = first + 1 + place
        context = min(target - start, scorer.fed_length(24))
        # What lies behind a target is padding to it, and ReRoPE's rows do not depend on the length;
        # log-n counts the keys that are seen.
        assert nll_NS[1, place] == pytest.approx(naive(scorer, target, context), abs=1e-4), place


def predictions(scorer, ids) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss of each token but the first, which is what a Hugging Face model's loss is made of."""
    feed = torch.as_tensor(ids)[None]
    with torch.no_grad():
        logits_TV = scorer.model(feed, scorer.plan(len(ids)))[0].double()
    return -torch.log_softmax(logits_TV[:-1], -1)[torch.arange(len(ids) - 1), feed[0, 1:]]


def documents(scorer, size: int) -> list[np.ndarray]:
    windows = protocol("disjoint")(scorer).windows
    return [scorer.file.tokens[last - size : last].astype(np.int64) for last in windows.last_N]


@pytest.mark.parametrize("bos", [None, 49])
@pytest.mark.parametrize("length", [16, 24, 64])
@pytest.mark.parametrize("truncate", [False, True])
def test_yarn_script_is_the_mean_of_window_means_of_the_script(length, bos, truncate):
    """Its loop in other words: windows of text tokens (one less with a BOS, which is put before
    each), scored where no other has been.
    """
    scorer = evaluation(bos=bos, stride=5, windows=16)
    means = []
    for text_D in documents(scorer, 64):
        text_D = (
            text_D[1:] if bos is not None else text_D
        )  # the BOS takes the place of the first token
        room = length - (bos is not None)
        text_D, step = (text_D[:room], room) if truncate else (text_D, 5)
        done = 0
        for begin in range(0, len(text_D), step):
            end = min(begin + room, len(text_D))
            ids = [*([bos] if bos is not None else []), *text_D[begin:end]]
            means.append(predictions(scorer, ids)[-(end - done) :].mean())
            done = end
            if end == len(text_D):
                break
    (row,), arrays = protocol("yarn_script_truncate" if truncate else "yarn_script")(scorer).run(
        length
    )
    assert row["nll"] == pytest.approx(float(torch.stack(means).mean()), abs=1e-5)
    assert row["n_targets"] == len(documents(scorer, 64)) * ((length if truncate else 64) - 1)
    assert (abs(row["nll"] - arrays["nll"].mean()) > 1e-4) == (
        not truncate and length < 64
    )  # token-weighted it would be another number


@pytest.mark.parametrize("bos", [None, 49])
@pytest.mark.parametrize("length", [16, 64])
def test_lceg_script_is_the_mean_of_batch_means_of_the_script(length, bos):
    scorer = evaluation(bos=bos, stride=5, windows=16)
    stream = np.concatenate(
        [[bos, *tokens[1:]] if bos is not None else tokens for tokens in documents(scorer, 64)]
    )
    starts = list(range(0, len(stream) - length, 5))
    starts.pop()
    losses = [predictions(scorer, stream[start : start + length]).mean() for start in starts]
    batches = [torch.stack(losses[i : i + 32]).mean() for i in range(0, len(losses), 32)]
    (row,), _ = protocol("lceg_script")(scorer).run(length)
    assert math.exp(row["nll"]) == pytest.approx(
        2.71828 ** float(torch.stack(batches).mean()), rel=1e-5
    )
    assert len(losses) % 32 and row["n_targets"] == len(losses) * (length - 1)
    n_bytes = np.concatenate(
        [
            scorer.file.n_bytes[last - 64 : last]
            for last in protocol("disjoint")(scorer).windows.last_N
        ]
    ).astype(int)
    n_bytes[::64] *= bos is None
    assert row["n_bytes"] == sum(n_bytes[start + 1 : start + length].sum() for start in starts)


def test_the_default_stride_refuses_the_length_it_equals_before_any_training(text_folder):
    words = [
        "train.length=64",
        "evaluate.lengths=[16,64]",
        "evaluate.max_length=64",
        "evaluate.protocol=yarn_script",
    ]
    ((_, _, stride, lengths, _, _),) = cells(text_folder, *words)
    with pytest.raises(
        ConfigError,
        match="evaluate.stride=16 leaves tokens .* at the shortest of evaluate.lengths=.16, 64.",
    ):
        protocol("yarn_script").check(
            NoExtension(),
            EvaluateConfig(dtype="fp32", lengths=lengths, max_length=64, stride=stride),
            64,
        )


@pytest.mark.parametrize("name", NAMES)
def test_a_target_that_was_not_scored_makes_no_row(name, monkeypatch):
    scorer, score = evaluation(stride=4, windows=18, **KEYS), Scorer.score_windows

    def one_lost(*arguments):
        nll, correct = score(*arguments)
        nll[0, 0] = np.nan
        return nll, correct

    monkeypatch.setattr(Scorer, "score_windows", one_lost)
    (row,) = [row for row in protocol(name)(scorer).run(64)[0] if math.isnan(row["nll"])]
    with pytest.raises(ValueError, match="targets that were not all scored"):
        make_row(**{**VALUES, **row})


def test_what_no_window_scores_is_nan_and_not_what_lay_in_memory():
    scorer = evaluation(stride=16, windows=16)  # each window but the first leaves out one token
    junk = [np.full(4 * 63, 1e6, np.float32) for _ in range(64)]
    del junk
    (row,), arrays = protocol("yarn_script")(scorer).run(16)
    assert np.isnan(arrays["nll"]).sum() == 4 * 3 and np.isnan(row["nll"])


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "fp32") for name in NAMES), ("disjoint", "bf16")]
)
def test_a_model_that_gives_no_numbers_is_one_sentence(name, dtype):
    scorer = evaluation(stride=4, windows=18, dtype=dtype, **KEYS)
    with torch.no_grad():
        scorer.model.norm.weight.fill_(torch.nan)
    with pytest.raises(
        RunError,
        match=(
            rf"loss is nan at \d+ of \d+ tokens read at length \d+ with extension=none in {dtype}: "
        ),
    ) as refusal:
        protocol(name)(scorer).run(64)
    assert ("evaluate.dtype=fp32" in str(refusal.value)) == (
        dtype == "bf16"
    ) and "leave this length out" in str(refusal.value)


def test_a_job_runs_every_protocol(tmp_path, text_folder, capfd):
    cli = InProcess(tmp_path, text_folder, capfd)
    keys = [f"evaluate.{key}={value}" for key, value in KEYS.items()]
    done = cli(
        f"evaluate.protocol=[{','.join(NAMES)}]",
        "evaluate.lengths=[32]",
        "evaluate.windows=16",
        *keys,
    )
    (run,) = tmp_path.glob("runs/*-16-*")
    files = {
        name: sorted(path.name.split("-")[0] for path in (run / "evals" / name).glob("*.json"))
        for name in NAMES
    }
    with_floor = ("fixed_targets", "sliding", "tiled_targets")
    assert all(
        methods == ["none+none"] + 2 * ["recompute_window+none"] * (name in with_floor)
        for name, methods in files.items()
    )
    rows = json.loads(next((run / "evals/repeat").glob("*.json")).read_text())["rows"]
    assert [(row["length"], row["task"]) for row in rows] == [
        (16, "copies"),
        (16, "control"),
        (32, "copies"),
    ]
    assert "none (control)" in done.stdout and "advancing by 4" in done.stdout


def cells(text_folder, *overrides):
    """What a command would evaluate: (protocol, extension's window, stride, lengths, whether it was
    asked for, id).
    """
    words = [
        "data=local",
        f"data.path={text_folder}",
        "data.tokenizer=bytes",
        "train.length=16",
        "evaluate.lengths=[32]",
        *overrides,
    ]
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        (job,) = plan_jobs(
            composition.raw_configs_of_jobs(unresolved_values(compose("run", words)), words)
        )
    return [
        (
            cell.protocol,
            cell.extension.get("window", "-"),
            cell.evaluate.stride,
            cell.evaluate.lengths,
            not cell.reference,
            cell.eval_id,
        )
        for cell in job.cells
    ]


def test_a_protocol_brings_what_it_is_compared_with(text_folder):
    floors = [("fixed_targets", None, None, [32], False), ("fixed_targets", 8, None, [32], False)]
    assert [cell[:5] for cell in cells(text_folder, "evaluate.protocol=disjoint")] == [
        ("disjoint", "-", None, [32], True)
    ]
    repeated = [cell[:5] for cell in cells(text_folder, "evaluate.protocol=repeat")]
    assert repeated == [
        ("repeat", "-", None, [16, 32], True),
        ("fixed_targets", "-", None, [32], False),
        *floors,
    ]
    sliding = [
        cell[:5] for cell in cells(text_folder, "evaluate.protocol=sliding", "evaluate.stride=20")
    ]
    assert sliding == [
        ("sliding", "-", 20, [32], True),
        ("sliding", None, 20, [36], False),
        ("sliding", 8, 20, [36], False),
    ]


@pytest.mark.parametrize(("name", "stride"), [("fixed_targets", None), ("sliding", 5)])
def test_a_floor_is_exact_from_the_shortest_text_that_holds_the_training_length_before_every_target(
    name, stride
):
    scorer = evaluation(RecomputeWindow(), stride=stride, windows=16, targets=3)
    evaluator, shortest = (
        protocol(name)(scorer),
        Setting.of(asdict(scorer.config)).shortest_exact(TRAIN_LEN),
    )
    far, exact, short = (evaluator.run(length)[1]["nll"] for length in (64, shortest, shortest - 1))
    assert np.array_equal(far, exact) and not np.array_equal(far, short)


def test_a_floor_is_asked_for_where_the_text_has_room_for_it(text_folder):
    """Two targets with 16 tokens each take 17."""
    for name, two in (("fixed_targets", "evaluate.targets=2"), ("sliding", "evaluate.stride=2")):
        words = [f"evaluate.protocol={name}", two, "evaluate.lengths=[16]"]
        little, enough = (
            cells(text_folder, *words, f"evaluate.max_length={room}") for room in (16, 17)
        )
        assert [cell[3] for cell in little] == [[16]] and [cell[3] for cell in enough] == [
            [16],
            [17],
            [17],
        ]


@pytest.mark.parametrize("name", ["fixed_targets", "tiled_targets"])
def test_a_floor_has_room_for_more_targets_than_the_training_length(text_folder, name):
    """18 targets with 16 tokens each take 33 tokens, 17 take the usual 32, and 50 take 65."""
    words = [f"evaluate.protocol={name}", "evaluate.lengths=[64]"]
    for targets, length in ((17, 32), (18, 33), (50, 65)):
        _, *floors = cells(text_folder, *words, f"evaluate.targets={targets}")
        assert [(cell[1], cell[3]) for cell in floors] == [(None, [length]), (8, [length])]
    little_room = [*words, "evaluate.targets=50", "evaluate.max_length=64"]
    assert [cell[3] for cell in cells(text_folder, *little_room)] == [[64]]


def long_windows(text_folder, *commands):
    """{room for the longest text: lengths} of the evaluations by `none` that the jobs of a sweep
    plan, for a training on 2,048 tokens, above which usual windows follow from the lengths.
    """
    raws = []
    for command in commands:
        words = ["data=local", f"data.path={text_folder}", "data.tokenizer=bytes"]
        words += ["train.length=2048", "evaluate.floor=false", *command.split()]
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            values = unresolved_values(compose("run", words))
            raws += composition.raw_configs_of_jobs(values, words)
    (job,) = plan_jobs(raws)
    return {cell.evaluate.max_length: cell.evaluate.lengths for cell in job.user_cells}


def test_lengths_of_a_sweep_above_1024_tokens_score_the_same_targets(text_folder):
    short, long = "evaluate.lengths=[2048]", "evaluate.lengths=[8192]"
    together = {8192: [2048, 8192]}
    assert long_windows(text_folder, "evaluate.lengths=[2048,8192]") == together
    assert long_windows(text_folder, short, long) == long_windows(text_folder, long, short)
    assert long_windows(text_folder, short, long) == together
    # Windows of another room that was typed, and those of another number, stay as they are.
    typed = f"{short} evaluate.max_length=4096"
    assert long_windows(text_folder, typed, long) == {4096: [2048], 8192: [8192]}
    fewer = f"{short} evaluate.windows=3"
    assert long_windows(text_folder, fewer, long) == {2048: [2048], 8192: [8192]}


def stretches(text_folder, *words):
    """{protocol: (number of its stretches or windows, stride)} of what a user asks for, trained on
    16 tokens.
    """
    words = [f"data.path={text_folder}", *words]
    words += ["data=local", "data.tokenizer=bytes", "train.length=16", "evaluate.lengths=[32]"]
    words += ["evaluate.protocol=[disjoint,sliding,tiled_targets,yarn_script,fixed_targets]"]
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        values = unresolved_values(compose("run", words))
        (job,) = plan_jobs(composition.raw_configs_of_jobs(values, words))
    train_len = job.config.train.train_len
    numbers = {}
    for cell in job.user_cells:
        n_windows = protocol(cell.protocol).planned_windows(cell.evaluate, train_len)
        numbers[cell.protocol] = n_windows, cell.evaluate.stride
    return numbers


@pytest.mark.parametrize("length", [16, 64, 256])
def test_a_child_scores_the_stretches_of_its_parent(text_folder, length):
    """512 windows of 16 tokens are 32 stretches of 256, whatever the length of the fine-tuning."""
    expected = {
        "disjoint": (32, None),
        "sliding": (32, 4),
        "tiled_targets": (32, None),
        "yarn_script": (32, 4),
        "fixed_targets": (512, None),
    }
    assert stretches(text_folder) == expected
    child = stretches(text_folder, "finetune=longer", f"finetune.length={length}")
    assert child == expected


def test_without_a_floor_neither_it_nor_the_half_window_is_evaluated_and_no_id_moves(text_folder):
    protocols = "evaluate.protocol=[repeat,sliding]"
    everything, alone = (
        cells(text_folder, protocols),
        cells(text_folder, protocols, "evaluate.floor=false"),
    )
    assert (
        alone == [cell for cell in everything if cell[1] == "-"]
        and len(everything) == len(alone) + 4
    )


def test_blocks_of_one_change_no_id_and_others_those_of_the_protocols_that_have_them(text_folder):
    both = "evaluate.protocol=[fixed_targets,by_position]"
    default, blocks_of_one, blocks_of_two = (
        cells(text_folder, both, *more)
        for more in ([], ["evaluate.floor_block=1"], ["evaluate.floor_block=2"])
    )
    assert default == blocks_of_one
    assert [a[0] for a, b in zip(default, blocks_of_two, strict=True) if a[5] != b[5]] == [
        "fixed_targets"
    ] * 3


def test_a_stride_belongs_to_the_protocols_that_have_one(text_folder):
    both = "evaluate.protocol=[fixed_targets,sliding]"
    default, same, other = (
        cells(text_folder, both, *more)
        for more in ([], ["evaluate.stride=4"], ["evaluate.stride=8"])
    )
    assert default == same
    moved = [
        cell[0] for cell, other_cell in zip(default, other, strict=True) if cell[5] != other_cell[5]
    ]
    assert moved == ["sliding"] * 3
    with pytest.raises(
        ConfigError,
        match="evaluate.stride=8 sets the advance of windows that overlap, and .*by_position",
    ):
        cells(text_folder, "evaluate.protocol=[fixed_targets,by_position]", "evaluate.stride=8")


def test_what_a_protocol_says_of_itself_is_known_without_torch():
    expression = f"print([protocol(name).__name__ for name in {ALL}], 'torch' in sys.modules)"
    code = f"import sys; from posbench.evaluation.registry import protocol; {expression}"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert "FixedTargets" in output and output.endswith("] False\n")
