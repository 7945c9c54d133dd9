"""by_position: windows that begin alike at every length, and lengths that are read together,
wherever that gives the same losses.
"""

import json
from dataclasses import asdict

import numpy as np
import pytest
from conftest import TRAIN_LEN, choices, node, small_model, small_shape
from test_cli import InProcess
from test_evaluate import evaluation, naive

from posbench.common.errors import ConfigError
from posbench.evaluation.protocols.by_position import ByPosition
from posbench.evaluation.registry import protocol
from posbench.extensions.rerope import Rerope
from posbench.position.effect import shared_texts
from posbench.position.instantiate import make_method
from posbench.position.legality import verdict_of
from posbench.position.plan import make_plan
from posbench.runs.rows import read_eval
from posbench.runs.setting import Setting

LENGTHS = [16, 32, 64]
CHOSEN = [("rope", name, "none") for name in choices("extension") if name != "recompute_window"]
CHOSEN += [("rope", "none", name) for name in choices("scale_attention")]
CHOSEN += [(name, "none", "none") for name in choices("encoding") if name != "rope"]


@pytest.mark.parametrize(("encoding", "extension", "scale"), CHOSEN)
def test_lengths_that_are_read_together_have_the_losses_of_each_alone(encoding, extension, scale):
    scorer = evaluation(
        make_method(node("extension", extension)),
        make_method(node("scale_attention", scale), small_shape()),
        windows=3,
    )
    scorer.model = small_model(make_method(node("encoding", encoding), small_shape()))
    try:
        verdict_of(scorer.model.encoding, scorer.extension, scorer.scale, LENGTHS, True)
    except ConfigError as refused:
        pytest.skip(str(refused))
    texts = ByPosition(scorer).lengths_by_text(LENGTHS)
    assert sorted(length for inside in texts.values() for length in inside) == LENGTHS
    shared = ByPosition(scorer)
    for text, inside in texts.items():
        assert inside[0] == text == max(inside)
        for length in inside:
            alone = ByPosition(scorer).score(length)[0]
            assert np.allclose(shared.score(length)[0], alone, atol=2e-5), (text, length)


@pytest.mark.parametrize(
    "name", ["pi", "ntk", "yarn", "dynamic_ntk", "string", "longrope", "llama3"]
)
def test_a_method_that_depends_on_the_length_takes_a_pass_for_each(name):
    scorer = evaluation(make_method(node("extension", name)))
    each = {length: [length] for length in LENGTHS}
    assert ByPosition(scorer).lengths_by_text(LENGTHS) == each
    by_position = ByPosition(scorer)
    long, short = by_position.score(64)[0], by_position.score(32)[0]
    assert not np.allclose(long[:, :32], short, atol=1e-3)  # it would have been wrong


def test_of_a_method_that_changes_only_beyond_the_training_length_shorter_ones_are_read_together():
    encoding, scale = (
        make_method(node("encoding", "rope"), small_shape()),
        make_method(node("scale_attention", "log_n"), small_shape()),
    )
    assert shared_texts(
        lambda length: make_plan(encoding, None, scale, length=length), [4, 8, TRAIN_LEN, 64]
    ) == {64: [64, TRAIN_LEN, 8, 4]}
    pi = make_method(node("extension", "pi"))
    assert shared_texts(
        lambda length: make_plan(encoding, pi, length=length), [4, TRAIN_LEN, 32, 64]
    ) == {16: [16, 4], 32: [32], 64: [64]}


@pytest.mark.parametrize("bos", [None, 49])
def test_every_length_begins_with_the_windows_first_token_and_one_text_serves_all(bos):
    scorer, reports = evaluation(Rerope(), bos=bos), []
    scorer.scale = make_method(node("scale_attention", "none"), small_shape())
    scorer.progress = lambda n, part=False: reports.append(n)
    by_position = ByPosition(scorer)
    texts = by_position.lengths_by_text(LENGTHS)
    for length in texts[64]:
        rows, arrays = by_position.run(length)
        first = by_position.windows.last_N[1] - 64
        for position in (1, 5, length):
            assert arrays["nll"][1, position - 1] == pytest.approx(
                naive(scorer, first + position, position), abs=1e-4
            )
        low, n_bytes = first + 1, scorer.corpus.test.n_bytes
        assert (
            rows[0]["n_bytes"] == sum(n_bytes[start + 1] for start in by_position.start_N)
            and low - 1 == by_position.start_N[1]
        )
        assert sum(row["n_bytes"] for row in rows) == sum(
            int(n_bytes[s + 1 : s + 1 + length].sum()) for s in by_position.start_N
        )
    assert sum(reports) == by_position.tokens_to_read(64) and set(texts) == {64}
    assert (
        by_position.shared_arrays()["offset"]
        == by_position.start_N + 1 - scorer.file.starts[by_position.windows.document_N]
    ).all()


def test_a_run_reads_one_text_adds_lengths_later_and_says_where_it_takes_a_pass_for_each(
    tmp_path, text_folder, capfd
):
    cli = InProcess(tmp_path, text_folder, capfd)
    words = ["evaluate.protocol=by_position", "evaluate.max_length=64", "evaluate.windows=4"]
    plain = cli(*words, "evaluate.lengths=[16,32]")
    assert "a pass for each" not in plain.stderr
    (file,) = tmp_path.glob("runs/*/evals/by_position/none+none-*.json")
    before = read_eval(file)
    assert json.loads(file.read_text())["texts"] == {"16": 32, "32": 32}
    cli(*words, "evaluate.lengths=[16,24,64]")
    content, after = json.loads(file.read_text()), read_eval(file)
    assert (
        content["texts"] == {"16": 32, "32": 32, "24": 64, "64": 64}
        and content["config"]["version"] == 2
    )
    assert [row for row in after if row["length"] in (16, 32)] == before
    assert [row["length"] for row in after] == sorted(row["length"] for row in after)
    at = {(row["length"], row["position"]): row["nll"] for row in after}
    assert at[64, 16] == pytest.approx(at[16, 16], abs=1e-5) and at[24, 8] == pytest.approx(
        at[64, 8], abs=1e-5
    )
    dynamic = cli(*words, "evaluate.lengths=[16,64]", "extension=pi")
    assert (
        "by_position pi+none: a pass for each of 16, 64 tokens, since the method depends on the"
        " length" in dynamic.stderr
    )
    (file,) = tmp_path.glob("runs/*/evals/by_position/pi+none-*.json")
    assert json.loads(file.read_text())["texts"] == {"16": 16, "64": 64}


def test_an_evaluation_of_before_has_another_id_and_another_setting():
    assert protocol("fixed_targets").version == 1 and ByPosition.version == 2
    evaluate = {
        "windows": 4,
        "targets": 2,
        "max_length": 64,
        "split": "test",
        "dtype": "fp32",
        "seed": 0,
    }
    old, new = Setting.of(evaluate), Setting.of(evaluate, 2)
    assert old != new and old.unstrided == new.unstrided
    assert Setting.of(asdict(new)) == new and Setting.of(asdict(old)) == old
    assert str(new) == str(old).replace(", test split", ", version 2 of the protocol, test split")
