"""Released configurations with keys of positions beside rope_parameters: each is read, or named,
and then no length is.
"""

import json
import re

import gguf
import numpy as np
import pytest
from test_read_back import LATENT, SIZES, assert_alike, check_lines, described

from posbench.common.errors import ConfigError
from posbench.tools.explanation.config_json import (
    kinds_with_own_mapping,
    rope_mapping,
    text_description,
)
from posbench.tools.explanation.explain import explain_words
from posbench.tools.explanation.facts import FACTS
from posbench.tools.explanation.gguf_words import ARCHITECTURES, architecture_of
from posbench.tools.explanation.reach import reach_of
from posbench.tools.explanation.rope_parameters import CannotExpress
from posbench.tools.explanation.settings import read_setting

# Reasons for which a configuration cannot be explained.
REFUSED = re.compile("no key of RoPE|no layer in which|lacks head_dim|max_position_embeddings")
CHUNKS = {"chunk_size": 262144, "local_size": 8192, "original_max_position_embeddings": 262144}
QWEN_1M = {
    "model_type": "qwen2",
    **SIZES,
    "max_position_embeddings": 1010000,
    "rope_theta": 1e7,
    "dual_chunk_attention_config": CHUNKS,
}
CHATGLM = {
    "model_type": "chatglm",
    "kv_channels": 128,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_layers": 2,
    "original_rope": True,
}
QWEN = {
    "model_type": "qwen",
    **SIZES,
    "seq_length": 8192,
    "kv_channels": 64,
    "rotary_emb_base": 10000,
    "rotary_pct": 1.0,
    "use_logn_attn": True,
}
DIVISORS = {
    "long_factor": [4.0] * 32,
    "short_factor": [1.0] * 32,
    "original_max_position_embeddings": 32768,
}
COMMAND_R = {
    "model_type": "cohere",
    **SIZES,
    "max_position_embeddings": 8192,
    "model_max_length": 131072,
    "rope_theta": 8e6,
}
GROK = {
    "original_max_position_embeddings": 8192,
    "scaling_factor": 16.0,
    "attn_factor": 1.0,
    "beta_fast": 8,
    "beta_slow": 1,
}
# {checkpoint: (its config.json, keys that are named and leave no length to say)}
NAMED = {
    "Qwen2.5-1M": (QWEN_1M, ["dual_chunk_attention_config"]),
    "Qwen-7B": (
        {**QWEN, "use_dynamic_ntk": True, "use_logn_attn": True},
        ["use_dynamic_ntk", "use_logn_attn"],
    ),
    "MiniCPM without a type": (
        {"model_type": "minicpm", **SIZES, "rope_scaling": DIVISORS},
        ["rope_type"],
    ),
    "Phi-3-small": (
        {
            "model_type": "phi3small",
            **SIZES,
            "rope_embedding_base": 1e6,
            "rope_position_scale": 1.0,
        },
        ["rope_embedding_base"],
    ),
    "OpenELM": (
        {"model_type": "openelm", **SIZES, "rope_freq_constant": 10000},
        ["rope_freq_constant"],
    ),
    "TeleChat": (
        {"model_type": "telechat", **SIZES, "base_seqlen": 8192, "training_seqlen": 16384},
        ["base_seqlen", "training_seqlen"],
    ),
    "Grok-2": (
        {"model_type": "grok-1", **SIZES, "rope_theta": 2e8, **GROK},
        ["scaling_factor", "beta_fast"],
    ),
    "LongChat": (
        {"model_type": "llama", **SIZES, "rope_condense_ratio": 8},
        ["rope_condense_ratio"],
    ),
    "MiMo": (
        {"model_type": "mimo_v2", **SIZES, "rope_theta": 5e6, "swa_rope_theta": 10000},
        ["swa_rope_theta"],
    ),
    "Granite SWA": (
        {"model_type": "granite_swa", **SIZES, "layer_rope_theta": [1e4, 1e6]},
        ["layer_rope_theta"],
    ),
    "StripedHyena": (
        {
            "model_type": "stripedhyena",
            **SIZES,
            "rotary_emb_base": 1e4,
            "rotary_emb_scaling_factor": 16,
            "use_interpolated_rotary_pos_emb": True,
        },
        ["rotary_emb_scaling_factor", "use_interpolated_rotary_pos_emb"],
    ),
}
OLD_NAMES = {"d_model": 512, "n_heads": 8, "n_layers": 2, "max_seq_len": 65536}
# {checkpoint: (its config.json, covered tokens, base, channels that turn)}
READ = {
    "Yi-34B-200K": (
        {"model_type": "llama", **SIZES, "max_position_embeddings": 200000, "rope_theta": 5e6},
        200000,
        5e6,
        64,
    ),
    "glm-4-9b-chat-1m": ({**CHATGLM, "rope_ratio": 10000, "seq_length": 1048576}, 1048576, 1e8, 64),
    "chatglm3-6b-32k": ({**CHATGLM, "rope_ratio": 50, "seq_length": 32768}, 32768, 5e5, 64),
    "Command R": (COMMAND_R, 131072, 8e6, 64),
    "InternLM2.5-1M": (
        {
            "model_type": "internlm2",
            **SIZES,
            "max_position_embeddings": 262144,
            "rope_theta": 5e7,
            "rope_scaling": {"type": "dynamic", "factor": 2.5},
        },
        262144,
        5e7,
        64,
    ),
    "Nemotron": (
        {"model_type": "nemotron", **SIZES, "rope_percent": 0.5, "partial_rotary_factor": 0.5},
        32768,
        1e4,
        32,
    ),
    "GPT-J": (
        {
            "model_type": "gptj",
            "n_embd": 4096,
            "n_head": 16,
            "n_layer": 2,
            "n_positions": 2048,
            "rotary_dim": 64,
        },
        2048,
        1e4,
        64,
    ),
    "MiniMax": (
        {"model_type": "minimax", **SIZES, "head_dim": 128, "rotary_dim": 64, "rope_theta": 1e7},
        32768,
        1e7,
        64,
    ),
    "DBRX": (
        {
            "model_type": "dbrx",
            "d_model": 512,
            "n_heads": 8,
            "n_layers": 2,
            "max_seq_len": 32768,
            "attn_config": {"rope_theta": 5e5},
        },
        32768,
        5e5,
        64,
    ),
    "gpt-oss": (
        {"model_type": "gpt_oss", **SIZES, "rope_theta": 150000, "initial_context_length": 4096},
        32768,
        150000,
        64,
    ),
    "Hunyuan": (
        {
            "model_type": "hunyuan_v1_moe",
            **SIZES,
            "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0},
        },
        32768,
        1e4 * 1000 ** (64 / 62),
        64,
    ),
}
# Architectures of llama.cpp's converter that the released package gguf does not name yet.
NEWER = {
    "cohere2moe",
    "deepseek32",
    "deepseek4",
    "dots3note",
    "gemma4-assistant",
    "glm5-next",
    "granite_swa",
    "hrm_text",
    "hy_v3",
    "hy_v4",
    "laguna",
    "mellum",
    "minimax-m3",
    "muse-glimmer",
    "qwen4exp",
}


@pytest.mark.parametrize("name", NAMED)
def test_a_key_about_positions_that_is_not_read_is_named_and_no_length_is(tmp_path, name):
    config, keys = NAMED[name]
    explanation = explain_words(described(tmp_path, config), [])
    messages = [finding.text for finding in explanation.findings]
    assert all(any(key in text for text in messages) for key in keys), messages
    assert (
        set(keys) <= set(explanation.setting.unread)
        and "Covers" not in explanation.text
        and "What length it covers is not said: " in explanation.text
    )
    assert explanation.as_json()["covers"] is None and explanation.as_json()["covers_limit"]
    assert not [
        line for line in explanation.words if "--max-model-len" in line.text or "-c " in line.text
    ]


@pytest.mark.parametrize("name", READ)
def test_a_key_that_is_read_sets_the_numbers_and_length(tmp_path, name):
    config, length, base, turned = READ[name]
    explanation = explain_words(described(tmp_path, config), [])
    rope = explanation.setting.turning[0].rope
    assert np.isclose(rope.base, base, rtol=1e-9) and rope.turned == turned
    assert reach_of(explanation.setting, explanation.before).tokens == length, (
        explanation.setting.unread
    )
    check_lines(tmp_path, config, [])


def test_a_key_whose_value_asks_for_nothing_is_not_named(tmp_path):
    off = {
        "alibi": False,
        "rope_condense_ratio": 1,
        "use_dynamic_ntk": False,
        "position_embedding_type": "rope_gptj",
        "compression_ratio": 1.0,
    }
    lengths = {"seq_length": 32768, "context_length": 32768}
    explanation = explain_words(
        described(tmp_path, {"model_type": "llama", **SIZES, **off, **lengths}), []
    )
    assert not explanation.findings and not explanation.setting.unread
    llama4 = {
        "model_type": "llama4_text",
        **SIZES,
        "attn_temperature_tuning": True,
        "floor_scale": 8192,
        "attn_scale": 0.1,
    }
    explanation = explain_words(described(tmp_path, llama4), [])
    assert "Covers 32,768 tokens" in explanation.text and any(
        "attn_temperature_tuning" in finding.text for finding in explanation.findings
    )


def test_chatglm_reads_its_ratio_alone(tmp_path):
    config = {**CHATGLM, "rope_ratio": 50, "seq_length": 32768}
    explanation = explain_words(
        described(tmp_path, config), ['rope_parameters={"rope_type": "yarn", "factor": 4.0}']
    )
    assert_alike(explanation.setting, explanation.before, None)
    assert any("rope_ratio alone" in finding.text for finding in explanation.findings)
    raised = explain_words(str(tmp_path), ["rope_ratio=500"])
    assert (
        raised.setting.turning[0].rope.base == 5e6 and '{"rope_ratio": 500' in raised.words[1].text
    )


def test_a_model_file_that_passes_no_scaling_on_has_no_line_with_one(tmp_path):
    yarn = {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 32768,
        "rope_theta": 1e6,
    }
    place = described(tmp_path, {"model_type": "mixtral", **SIZES, "rope_theta": 1e6})
    explanation = explain_words(place, [f"rope_parameters={json.dumps(yarn)}"])
    (line,) = (line for line in explanation.words if line.tool == "SGLang")
    assert not line.serves and "never passes a scaling on" in line.text
    of_sglang = explain_words(
        place, ["--json-model-override-args", json.dumps({"rope_parameters": yarn})]
    )
    assert_alike(of_sglang.setting, of_sglang.before, None)
    assert any("never passes a scaling on" in finding.text for finding in of_sglang.findings)


@pytest.mark.parametrize("mscale", [0.5, 1.0, 1.3])
def test_the_factor_of_mscale_all_dim_is_in_every_line(tmp_path, mscale):
    """DeepSeek V3: logits times (0.1 ln 40 + 1)^2 = 1.87, which attention_factor alone would
    lose.
    """
    words = {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 4096,
        "mscale": mscale,
        "mscale_all_dim": mscale,
    }
    config = {"model_type": "deepseek_v3", **LATENT, "rope_scaling": words}
    explanation = explain_words(described(tmp_path, config), [])
    rope = explanation.setting.turning[0].rope
    assert np.isclose(rope.sharper, (0.1 * mscale * np.log(40) + 1) ** 2) and rope.amplitude == 1
    assert check_lines(tmp_path, config, []) == {line.tool for line in explanation.words}


def test_names_of_architectures_are_llama_cpps():
    unknown = {*FACTS["gguf_families"], *FACTS["gguf_alike"]} - {*gguf.MODEL_ARCH_NAMES.values()}
    assert unknown <= NEWER
    expected = {
        "glm4_moe": "glm4moe",
        "qwen3_5_text": "qwen35",
        "deepseek_v3": "deepseek2",
        "mistral": "llama",
        "phi": "phi2",
    }
    assert {family: ARCHITECTURES[family] for family in expected} == expected
    with pytest.raises(CannotExpress, match="does not know opt"):
        architecture_of("opt")


def test_keys_of_another_architecture_do_nothing(tmp_path):
    place = described(tmp_path, {"model_type": "glm4_moe", **SIZES, "partial_rotary_factor": 0.5})
    explanation = explain_words(
        place,
        ["glm4_moe.rope.freq_base=5e5", "--override-kv", "glm4moe.rope.scaling.factor=float:2"],
    )
    assert (
        explanation.setting.turning[0].rope.base == 1e4
        and explanation.setting.turning[0].rope.factor == 2
    )
    assert any(
        "glm4_moe.rope.freq_base does nothing in this file: llama.cpp reads keys of glm4moe"
        in finding.text
        for finding in explanation.findings
    )


@pytest.mark.slow
def test_every_family_of_transformers_has_lines_that_are_read_back(tmp_path):
    """All causal families with their default configuration, scaled by YaRN; of those that are
    refused, the reason is one of four.
    """
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    count = 0
    for family in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        try:
            config = json.loads(
                json.dumps(transformers.AutoConfig.for_model(family).to_dict(), default=str)
            )
        except Exception:  # a composite that has no default
            continue
        try:
            setting = read_setting(config, family)
            kinds = [kind.name for kind in setting.turning]
        except ConfigError as error:
            assert REFUSED.search(str(error)), error
            continue
        count += 1
        yarn = {
            "rope_type": "yarn",
            "factor": 2.0,
            "original_max_position_embeddings": setting.longest,
            "rope_theta": 1e6,
        }
        by_kind = kinds_with_own_mapping(rope_mapping(text_description(config)))
        mapping = json.dumps(dict.fromkeys(kinds, yarn) if by_kind else yarn)
        check_lines(tmp_path, config, [])
        check_lines(tmp_path, config, [f"rope_parameters={mapping}"])
    assert count > 100
