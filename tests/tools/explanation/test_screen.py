"""The screen, its picture, the figure and the numbers on disk, as a new user meets them."""

import json

import huggingface_hub.constants
import numpy as np
from script_calls import call

import posbench
from posbench.data import hub
from posbench.tools.explanation.show import picture_of_marks, state_marks

SIZES = {
    "hidden_size": 512,
    "num_attention_heads": 4,
    "num_hidden_layers": 12,
    "max_position_embeddings": 8192,
}
LLAMA = {"model_type": "llama", **SIZES, "rope_theta": 1e5}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}


def test_the_picture_has_a_mark_for_each_pair(tmp_path):
    """Against the bounds of the paper: pairs with 32 turns and more are kept, those with less than
    one divided.
    """
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    explanation = posbench.explain(tmp_path, rope_parameters=YARN)
    rope = explanation.setting.kinds[0].rope
    turned = 8192 * 1e5 ** (-np.arange(64) / 64) / (2 * np.pi)
    marks = state_marks(explanation.slower(explanation.setting.kinds[0]))
    assert (
        len(marks) == 64
        and marks.count("#") == (turned > 32).sum() + 0
        and marks.count("-") in ((turned < 1).sum() - 1, (turned < 1).sum())
    )
    assert (
        marks == "#" * marks.count("#") + "+" * marks.count("+") + "-" * marks.count("-")
        and f"           {marks}\n" in explanation.text
    )
    assert picture_of_marks("##++--" * 20) == "#+-" * 20 and picture_of_marks("#+" * 60) == "+" * 60
    assert (
        f"model.path={tmp_path} extension="
        in posbench.explain(tmp_path / "config.json", rope_parameters=YARN).text
    )
    assert "extension=" not in posbench.explain(tmp_path, max_position_embeddings=128).text
    assert (
        f"times {rope.amplitude**2:.6g}" in explanation.text
        and "Covers 32,768 tokens" in explanation.text
        and "Short prompts pay" in explanation.text
    )


def test_numbers_and_a_figure_are_written(tmp_path, capfd):
    words = {
        "full_attention": YARN,
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    config = {**LLAMA, "model_type": "gemma3_text", "sliding_window": 512, "rope_parameters": words}
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = ("config.json", "figure=out/a.png", "json=out/a.json")
    done = call(capfd, tmp_path, "explain", *words, pictures=True)
    assert (
        done.returncode == 0
        and not done.stderr
        and max(map(len, done.stdout.partition("in the words")[0].splitlines())) <= 110
    )
    content = json.loads((tmp_path / "out" / "a.json").read_text())
    assert [kind["name"] for kind in content["kinds"]] == [
        "sliding_attention",
        "full_attention",
    ] and content["covers"] == 32768
    for kind in content["kinds"]:
        frequencies = posbench.explain(tmp_path).frequencies(kind["name"])
        np.testing.assert_allclose(kind["frequencies"], frequencies)
    assert (tmp_path / "out" / "a.png").stat().st_size > 10_000 and "sliding_attention" in (
        tmp_path / "out" / "a.svg"
    ).read_text()


def test_a_hub_name_is_its_config_json_in_the_cache_alone(tmp_path, monkeypatch):
    snapshot = tmp_path / "models--org--tiny" / "snapshots" / ("ab" * 20)
    snapshot.mkdir(parents=True)
    (tmp_path / "models--org--tiny" / "refs").mkdir()
    (tmp_path / "models--org--tiny" / "refs" / "main").write_text("ab" * 20)
    (snapshot / "config.json").write_text(json.dumps(LLAMA))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(
        hub, "quiet_hub", lambda: (_ for _ in ()).throw(AssertionError("the hub was asked"))
    )
    assert posbench.explain("org/tiny").setting.kinds[0].rope.base == 1e5
