"""A config.json with a part for text: what each engine reads of an override, and what is printed to
be copied.
"""

import json
import shlex

import pytest
from test_read_back import CHECKPOINTS, IMAGES, described

from posbench.tools.explanation.explain import explain_words
from posbench.tools.explanation.words import CONFIG_PREFIX, HF, SGLANG, TOOL_POSBENCH, VLLM

TRAINED = 32768
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED}
PUBLISHED = {**IMAGES, **YARN, "partial_rotary_factor": 0.25}  # as Qwen3.5's page writes it
FLAG = {VLLM: "--hf-overrides", SGLANG: "--json-model-override-args"}


def findings_where(explanation) -> str:
    return " ".join(finding.text for finding in explanation.findings)


def lines(explanation) -> dict:
    return {line.tool: line for line in explanation.words}


@pytest.mark.parametrize("tool", FLAG)
def test_the_published_override_is_applied_and_no_key_of_it_is_called_unread(tmp_path, tool):
    place = described(tmp_path, CHECKPOINTS["qwen3_5"])
    explanation = explain_words(
        place, [FLAG[tool], json.dumps({"text_config": {"rope_parameters": PUBLISHED}})]
    )
    rope = explanation.setting.turning[0].rope
    assert (rope.kind, rope.factor, rope.original, rope.turned, rope.base) == (
        "yarn",
        4.0,
        TRAINED,
        64,
        1e7,
    )
    assert (
        "text_config" not in findings_where(explanation)
        and "nobody reads" not in findings_where(explanation)
        and "no engine reads" not in findings_where(explanation)
    )
    typed = json.loads(shlex.split(lines(explanation)[tool].text)[1])
    assert (
        typed["text_config"]["rope_parameters"].items()
        >= {
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        }.items()
    )
    again = json.loads(lines(explanation)[HF].text.removeprefix(CONFIG_PREFIX))
    assert (
        set(again) == {"text_config"}
        and again["text_config"]["max_position_embeddings"] == 4 * TRAINED
    )
    assert (
        lines(explanation)[TOOL_POSBENCH].text.startswith("model=hf ")
        and "extension=yarn" in lines(explanation)[TOOL_POSBENCH].text
    )


@pytest.mark.parametrize("tool", FLAG)
def test_an_override_beside_the_part_for_text_does_nothing(tmp_path, tool):
    place = described(tmp_path, CHECKPOINTS["qwen3_5"])
    explanation = explain_words(
        place,
        [FLAG[tool], json.dumps({"rope_parameters": YARN, "max_position_embeddings": 131072})],
    )
    assert (
        explanation.setting.turning == explain_words(place, []).setting.turning
        and explanation.setting.longest == TRAINED
    )
    assert (
        "rope_parameters, max_position_embeddings beside text_config does nothing"
        in findings_where(explanation)
    )


def test_inside_the_part_for_text_vllm_merges_and_sglang_replaces(tmp_path):
    """vLLM's _update_nested keeps the base of the old mapping; SGLang's config.update sets the new
    one in its place.
    """
    place = described(tmp_path, CHECKPOINTS["qwen3_vl"])
    override = json.dumps({"text_config": {"rope_parameters": YARN}})
    merged, replaced = (explain_words(place, [flag, override]) for flag in FLAG.values())
    assert merged.setting.turning[0].rope.base == 1e7 and "the base falls" not in findings_where(
        merged
    )
    assert replaced.setting.turning[
        0
    ].rope.base == 1e4 and "the base falls from 10,000,000 to 10,000" in findings_where(replaced)
    assert "mrope_section, mrope_interleaved of the checkpoint's mapping is lost" in findings_where(
        replaced
    )


def test_a_description_of_text_alone_is_the_other_way_round(tmp_path):
    place = described(tmp_path, CHECKPOINTS["llama"])
    override = json.dumps({"rope_parameters": YARN})
    replaced, merged = (explain_words(place, [flag, override]) for flag in FLAG.values())
    assert (replaced.setting.turning[0].rope.base, merged.setting.turning[0].rope.base) == (
        1e4,
        5e5,
    )
    explanation = explain_words(
        place, [FLAG[VLLM], json.dumps({"text_config": {"rope_parameters": YARN}})]
    )
    assert explanation.setting.turning[
        0
    ].rope.kind == "default" and "this config.json has no such part" in findings_where(explanation)


@pytest.mark.parametrize("words", ['text_config={"rope_parameters": %s}', "rope_parameters=%s"])
def test_a_key_of_config_json_is_meant_for_the_part_for_text(tmp_path, words):
    place = described(tmp_path, CHECKPOINTS["qwen3_5"])
    assert (
        explain_words(place, [words % json.dumps(PUBLISHED)]).setting.turning[0].rope.kind == "yarn"
    )


def test_behind_dots_the_part_for_text_is_named_too(tmp_path):
    place = described(tmp_path, CHECKPOINTS["qwen3_vl"])
    dotted = [
        f"--hf-overrides.text_config.rope_parameters.{key}={value}" for key, value in YARN.items()
    ]
    assert explain_words(place, dotted).setting.turning[0].rope.factor == 4.0
