"""The benchmark of a checkpoint: cases, ratios, table and figure, and words that are refused."""

import importlib.util
import json

import pytest
import torch
from gguf_models import write_gguf
from hf_models import checkpoint
from script_calls import call

from posbench.config.names import CONFIGS_FOLDER
from posbench.tools.benchmark import checkpoint as bench
from posbench.tools.benchmark import measure
from posbench.tools.benchmark.measure import Measurement
from posbench.tools.benchmark.report import speed_table

BEYOND = 80  # the checkpoints were trained for 32 tokens


def figures_of(path, kind="checkpoint", **changed) -> dict:
    settings = {
        "dtype": "bf16",
        "lengths": [BEYOND],
        "repeats": 2,
        "only": ["rerope", "window"],
        **changed,
    }
    measured = (
        figure for figures in bench.measure_checkpoint(str(path), **settings) for figure in figures
    )
    return {(figure.case, figure.length): figure for figure in measured if figure.kind == kind}


def test_every_case_is_measured_beside_the_plain_model_and_transformers(tmp_path):
    figures = figures_of(checkpoint(tmp_path), only=[])
    assert {case for case, _ in figures} == {"none", "transformers", *bench.USUAL_EXTENSIONS}
    assert all(
        figure.ratio > 0
        and figure.of_theirs > 0
        and figure.mib > 0
        and figure.tokens_per_second > 0
        for figure in figures.values()
    )
    assert figures["none", BEYOND].ratio == figures["transformers", BEYOND].of_theirs == 1


def test_what_changes_nothing_or_reads_less_is_left_out_with_a_reason(tmp_path):
    figures = figures_of(
        checkpoint(tmp_path),
        lengths=[16, BEYOND],
        only=["window", "recompute_window", "table_linear"],
    )
    notes = {key: figure.note for key, figure in figures.items() if figure.ratio is None}
    assert notes["window", 16] == "changes nothing" and ("window", BEYOND) not in notes
    assert notes["recompute_window", BEYOND] == "has a text of its own for each target"
    assert "learned" in notes["table_linear", BEYOND]


def test_the_passes_are_those_of_the_checkpoint_in_both_libraries(tmp_path, monkeypatch):
    seen = {}
    monkeypatch.setattr(
        bench,
        "measure_cases",
        lambda _, cases, text_BT, *__: seen.update({k: c(text_BT) for k, c in cases.items()}) or [],
    )
    monkeypatch.setattr(bench, "_measure_tokens", lambda *_: [])
    pytest.importorskip("accelerate")
    for path in (checkpoint(tmp_path), write_gguf(checkpoint(tmp_path / "other", vocab_size=130))):
        figures_of(path, dtype="fp32")
        theirs = seen["transformers"].logits
        assert seen["none"].shape == theirs.shape and torch.allclose(
            seen["none"], theirs, atol=1e-4
        )
        assert not torch.allclose(seen["window"], theirs, atol=1e-4)
        assert seen["none"].dtype == torch.float32
        figures_of(path)
        assert seen["none"].dtype == seen["transformers"].logits.dtype == torch.bfloat16


def test_a_slow_case_is_timed_once(tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "MOST_SECONDS", 0.0)
    figures = figures_of(checkpoint(tmp_path))
    assert all(
        figure.note == "one pass" and figure.ratio > 0 and figure.of_theirs > 0
        for figure in figures.values()
    )


def test_without_transformers_it_says_so(tmp_path, monkeypatch):
    path = checkpoint(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    figures = figures_of(path)
    assert figures["transformers", BEYOND].note.startswith("transformers is not installed")
    assert figures["window", BEYOND].ratio > 0 and figures["window", BEYOND].of_theirs is None


def test_files_of_the_script(tmp_path, capfd):
    path = checkpoint(tmp_path)
    done = call(
        capfd,
        tmp_path,
        "benchmark",
        f"model.path={path}",
        f"lengths=16,{BEYOND}",
        "only=window",
        "repeats=1",
        "out=here",
    )
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "here/benchmark.json").read_text())
    assert {Measurement(**figure).kind for figure in content["figures"]} == {
        "checkpoint",
        "token",
    } and "1 rounds in bf16" in content["machine"]
    table = (tmp_path / "here/table.md").read_text()
    assert f"| {BEYOND} | window |" in table and "- window (changes nothing) at 16 tokens" in table


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dtype=fp32"], "add model.path=PATH"),
        (["model.path="], "model.path= is empty"),
        (["only=t5,fx"], "only=fx is no encoding, extension or attention scale (did you mean"),
        (["model.path=DIR", "train_len=32"], "is not trained, so leave it out"),
        (["model.path=DIR", "dtype=fp16"], "dtype=fp16 must be bf16 or fp32"),
        (["model.path=DIR", "only=rerop"], "only=rerop is not an extension (did you mean rerope?)"),
        (["model.path=nowhere/at/all"], "not a folder with a config.json"),
        (["train_len=2049", "only=fox"], "train_len=2049 exceeds the 2048 tokens of a training"),
    ],
)
def test_words_that_would_do_nothing_are_refused(tmp_path, capfd, words, message):
    path = checkpoint(tmp_path) if "DIR" in words[0] else ""
    done = call(capfd, tmp_path, "benchmark", *(word.replace("DIR", str(path)) for word in words))
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("name", "word", "message"),
    [
        ("compat", "config_dir=nosuch", "config_dir=nosuch is not a folder"),
        ("gallery", "out", "out= is empty"),
    ],
)
def test_words_of_the_other_plain_scripts_that_would_do_nothing_are_refused(
    tmp_path, capfd, name, word, message
):
    done = call(capfd, tmp_path, name, word)
    assert done.returncode == 2 and message in done.stderr and not [*tmp_path.iterdir()]


def test_a_token_after_a_cache_and_a_family_of_transformers_are_measured(tmp_path):
    from families import tiny

    tiny("gpt_neox").save_pretrained(tmp_path / "neox")
    for path in (checkpoint(tmp_path), tmp_path / "neox"):
        tokens = figures_of(path, "token", dtype="fp32", only=["rerope"])
        assert set(tokens) == {(case, BEYOND) for case in ("none", "rerope", "transformers")}
        assert all(figure.of_theirs > 0 and figure.seconds > 0 for figure in tokens.values())


def test_the_reported_table_is_made_of_the_reported_figures():
    folder = CONFIGS_FOLDER.parent / "results/reported/benchmark"
    content = json.loads((folder / "benchmark.json").read_text())
    assert (
        speed_table([Measurement(**figure) for figure in content["figures"]], content["machine"])
        == (folder / "table.md").read_text()
    )


def test_methods_of_the_small_model_are_chosen_by_their_names():
    figures = [
        figure
        for some in measure.measure_evaluation(16, [64], 1, ["window", "t5"])
        for figure in some
    ]
    assert {figure.case for figure in figures} == {"rope", "t5", "rope + window"}
    assert {figure.case for figure in measure.measure_training(16, 1, ["learned_sink"])} == {
        "rope",
        "rope, learned_sink trained in",
    }
    assert all(
        figure.ratio == 1 and figure.seconds > 0 and figure.mib > 0
        for figure in figures
        if figure.case == "rope"
    )
