"""Covered lengths against the angles of pairs written out, and what is said of lengths and bases
that are asked for.
"""

import json
import math

import numpy as np
import pytest
from test_read_back import described

from posbench.tools.explanation.explain import explain_words
from posbench.tools.explanation.reach import reach_of, turn_alike

LLAMA2 = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 2,
    "max_position_embeddings": 4096,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
CODELLAMA = [
    "--rope-freq-base",
    "57200",
    "--rope-freq-scale",
    "0.75",
]  # a public measurement finds 16,384 tokens fine


def explained(tmp_path, *words: str, config: dict = LLAMA2):
    return explain_words(described(tmp_path, config), list(words))


def findings_where(explanation) -> str:
    return " ".join(finding.text for finding in explanation.findings)


def covers(explanation) -> float | None:
    return reach_of(explanation.setting, explanation.before).tokens


def farthest(scaled, trained: int = 4096, base: float = 1e4) -> float:
    """Longest text in which no pair that made less than one turn in training turns farther than
    there, pair by pair.
    """
    lengths = []
    for pair, frequency in enumerate(scaled):
        unscaled = base ** (-pair / 64)
        if trained * unscaled < 2 * math.pi:
            lengths.append(trained * unscaled / frequency)
    return min(lengths)


def test_a_raised_base_and_a_factor_cover_what_the_slow_pairs_do(tmp_path):
    explanation = explained(tmp_path, *CODELLAMA, "-c", "16384")
    assert (
        covers(explanation)
        == math.floor(farthest(0.75 * 57200.0 ** (-np.arange(64) / 64)))
        == 19128
    )
    assert "is beyond" not in findings_where(
        explanation
    ) and "The base rises from 10,000 to 57,200" in findings_where(explanation)
    assert "on the base 57,200 instead of 10,000" in explanation.text
    assert (
        "5461.33" not in explanation.text.replace("target_len: 5461.33", "")
        and '"max_position_embeddings": 19128' in explanation.text
    )


@pytest.mark.parametrize(
    "words, length",
    [
        ({"rope_type": "linear", "factor": 4.0}, 16384),
        (YARN, 16384),
        ({**YARN, "factor": 1.5}, 6144),
        (
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
            32768,
        ),
        (
            {"rope_type": "default", "rope_theta": 1e6},
            math.floor(farthest(1e6 ** (-np.arange(64) / 64))),
        ),
        (
            {
                "rope_type": "longrope",
                "factor": 8.0,
                "long_factor": [8.0] * 64,
                "short_factor": [1.0] * 64,
            },
            32768,
        ),
    ],
)
def test_factors_cover_their_multiple_of_the_training_length(tmp_path, words, length):
    words = (
        {"original_max_position_embeddings": 4096, **words}
        if words["rope_type"] in ("llama3", "longrope")
        else words
    )
    assert covers(explained(tmp_path, f"rope_parameters={json.dumps(words)}")) == length


def test_longropes_that_change_their_frequencies_at_different_lengths_do_not_turn_alike(tmp_path):
    def rope_with_original(length):
        words = {"rope_type": "longrope", "original_max_position_embeddings": length}
        words |= {"long_factor": [8.0] * 64, "short_factor": [1.0] * 64}
        explanation = explained(tmp_path, f"rope_parameters={json.dumps(words)}")
        return explanation.setting.turning[0].rope

    assert turn_alike(rope_with_original(2048), rope_with_original(2048))
    assert not turn_alike(rope_with_original(2048), rope_with_original(4096))


def test_dynamic_covers_as_long_as_its_base_grows_fast_enough(tmp_path):
    length = covers(explained(tmp_path, 'rope_parameters={"rope_type": "dynamic", "factor": 2.0}'))
    for tokens, holds in ((length, True), (length + 2, False)):
        grown = 2 * tokens / 4096 - 1
        pairs = np.arange(64)
        assert (farthest(1e4 ** (-pairs / 64) * grown ** (-2 * pairs / 126)) >= tokens) == holds
    assert 4 * 4096 < length < 8 * 4096


def test_pairs_that_turn_faster_than_in_training_leave_no_length_to_name(tmp_path):
    explanation = explained(tmp_path, "rope_theta=10000", config={**LLAMA2, "rope_theta": 1e6})
    assert (
        covers(explanation) is None
        and "What length it covers is not said: pairs turn faster than in training."
        in explanation.text
    )
    assert "The base falls from 1,000,000 to 10,000: 63 of 64 pairs turn faster" in findings_where(
        explanation
    )
    scaled = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = {
        **LLAMA2,
        "max_position_embeddings": 131072,
        "rope_theta": 5e5,
        "rope_scaling": scaled,
    }
    assert covers(explained(tmp_path, config=config)) == 131072
    yarn = {**YARN, "original_max_position_embeddings": 131072, "rope_theta": 5e5}
    explanation = explained(tmp_path, f"rope_scaling={json.dumps(yarn)}", config=config)
    assert covers(explanation) is None and explanation.as_json()["covers"] is None


def test_a_longer_statement_alone_covers_no_more(tmp_path):
    assert covers(explained(tmp_path, "max_position_embeddings=128000")) == 4096


@pytest.mark.parametrize("flag", ["-c", "--max-model-len", "--context-length"])
def test_within_the_trained_length_scaling_is_said_to_cost_only(tmp_path, flag):
    engine = {
        "--max-model-len": "--hf-overrides",
        "--context-length": "--json-model-override-args",
    }.get(flag)
    override = json.dumps(
        {"rope_parameters": {**YARN, "rope_theta": 1e4}, "max_position_embeddings": 16384}
    )
    words = [engine, override] if engine else ["--rope-scaling", "yarn", "--rope-scale", "4"]
    assert "is within the 4,096 tokens of the checkpoint" in findings_where(
        explained(tmp_path, *words, flag, "4096")
    )
    assert "is within" not in findings_where(explained(tmp_path, *words, flag, "8192"))
    assert "is within" not in findings_where(explained(tmp_path, flag, "4096"))


def test_the_mapping_of_older_vllm_is_read_as_there(tmp_path):
    config = {**LLAMA2, "rope_theta": 5e5}
    typed = ["--rope-scaling", json.dumps({**YARN, "type": "yarn"}), "--max-model-len", "16384"]
    explanation = explained(tmp_path, *typed, config=config)
    rope = explanation.setting.turning[0].rope
    assert (rope.kind, rope.factor, rope.base) == (
        "yarn",
        4.0,
        5e5,
    ) and explanation.reader == "vLLM"
    assert "up to 0.11" in findings_where(explanation) and "it stops." not in findings_where(
        explanation
    )
    explanation = explained(tmp_path, "--rope-theta", "1000000", *typed, config=config)
    assert explanation.setting.turning[0].rope.base == 1e6
    beyond = explained(tmp_path, *typed[:3], "20000", config=config)
    assert "20,000 is more than the 16,384 tokens" in findings_where(beyond)


def test_the_version_that_no_longer_multiplies_is_named(tmp_path):
    override = json.dumps({"rope_parameters": {**YARN, "rope_theta": 1e4}})
    explanation = explained(tmp_path, "--hf-overrides", override, "--max-model-len", "16384")
    assert "vLLM up to 0.29 served 16,384 tokens here" in findings_where(
        explanation
    ) and "it stops. VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 lets it start." in findings_where(explanation)
    linear = json.dumps(
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}
    )
    assert "it stops" not in findings_where(
        explained(tmp_path, "--hf-overrides", linear, "--max-model-len", "16384")
    )
