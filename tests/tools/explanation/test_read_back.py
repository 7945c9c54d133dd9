"""Every printed line, read as its tool reads it on the same checkpoint, is the same setting, in
every family.
"""

import json
import shlex
import warnings
from dataclasses import replace

import numpy as np
import pytest

from posbench.tools.explanation.explain import explain_words
from posbench.tools.explanation.frequencies import frequencies
from posbench.tools.explanation.read_back import REASON_IF_MISREAD
from posbench.tools.explanation.words import CONFIG_PREFIX, HF, SGLANG, TOOL_FLAGS, TOOL_KEYS, VLLM

SIZES = {
    "hidden_size": 512,
    "num_attention_heads": 8,
    "head_dim": 64,
    "num_hidden_layers": 12,
    "max_position_embeddings": 32768,
}
WINDOWS = {**SIZES, "sliding_window": 512}
LATENT = {
    **SIZES,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "kv_lora_rank": 512,
    "rope_theta": 10000,
}
DEEPSEEK = {
    "factor": 40,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
    "type": "yarn",
}
KINDS = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_theta": 1e4},
}
IMAGES = {
    "mrope_section": [11, 11, 10],
    "mrope_interleaved": True,
    "rope_type": "default",
    "rope_theta": 1e7,
}
QWEN35 = {
    **SIZES,
    "head_dim": 256,
    "layer_types": (
        ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 3
    ),
}
OLD_YARN = {
    "type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 8192,
    "attention_factor": 1.2,
    "beta_fast": 16,
}


def of_text(family: str, text: dict, part: str = "text_config") -> dict:
    return {"model_type": family, part: text, "vision_config": {"hidden_size": 64}}


# Checkpoints as they are released: where positions stand, under which names, and with which
# scaling.
CHECKPOINTS = {
    "llama": {"model_type": "llama", **SIZES, "rope_theta": 5e5},
    "scaled llama": {"model_type": "llama", **SIZES, "rope_theta": 5e5, "rope_scaling": OLD_YARN},
    "llama of 2023": {
        "model_type": "llama",
        **SIZES,
        "rope_scaling": {"type": "linear", "factor": 8.0},
    },
    "qwen2": {
        "model_type": "qwen2",
        **WINDOWS,
        "use_sliding_window": False,
        "rope_parameters": {**OLD_YARN, "rope_theta": 1e6},
    },
    "phi3": {
        "model_type": "phi3",
        **SIZES,
        "original_max_position_embeddings": 4096,
        "partial_rotary_factor": 0.75,
    },
    "glm4_moe": {
        "model_type": "glm4_moe",
        **SIZES,
        "partial_rotary_factor": 0.5,
        "rope_theta": 1e6,
    },
    "glm": {"model_type": "glm", **SIZES},
    "gpt_neox": {"model_type": "gpt_neox", **SIZES, "rotary_pct": 0.25, "rotary_emb_base": 20000},
    "chatglm": {
        "model_type": "chatglm",
        "kv_channels": 128,
        "num_layers": 4,
        "hidden_size": 512,
        "seq_length": 32768,
        "rope_ratio": 50,
    },
    "command r": {
        "model_type": "cohere",
        **SIZES,
        "max_position_embeddings": 8192,
        "model_max_length": 131072,
        "rope_theta": 8e6,
    },
    "mistral": {"model_type": "mistral", **WINDOWS, "rope_theta": 1e4},
    "gemma3": of_text(
        "gemma3",
        {
            "model_type": "gemma3_text",
            **WINDOWS,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
    ),
    "gemma3 of today": of_text(
        "gemma3", {"model_type": "gemma3_text", **WINDOWS, "rope_parameters": KINDS}
    ),
    "gemma3 text": {
        "model_type": "gemma3_text",
        **WINDOWS,
        "rope_local_base_freq": 1e4,
        "rope_theta": 1e6,
    },
    "qwen3_5": of_text(
        "qwen3_5",
        {
            "model_type": "qwen3_5_text",
            **QWEN35,
            "rope_parameters": IMAGES | {"partial_rotary_factor": 0.25},
        },
    ),
    "qwen3_vl": of_text(
        "qwen3_vl", {"model_type": "qwen3_vl_text", **SIZES, "rope_parameters": IMAGES}
    ),
    "scaled text": of_text("llava", {"model_type": "llama", **SIZES, "rope_scaling": OLD_YARN}),
    "internvl": of_text(
        "internvl_chat", {"model_type": "qwen2", **SIZES, "rope_theta": 1e6}, "llm_config"
    ),
    "deepseek_v3": {
        "model_type": "deepseek_v3",
        **LATENT,
        "rope_scaling": {**DEEPSEEK, "mscale": 1.0, "mscale_all_dim": 1.0},
    },
    "deepseek_v2": {
        "model_type": "deepseek_v2",
        **LATENT,
        "rope_scaling": {**DEEPSEEK, "mscale": 0.707, "mscale_all_dim": 0.707},
    },
    "deepseek_v32": {
        "model_type": "deepseek_v32",
        **LATENT,
        "rope_scaling": {**DEEPSEEK, "mscale": 1.0, "mscale_all_dim": 0.8},
    },
    "latent": {"model_type": "deepseek_v3", **LATENT},
    "minicpm3": {"model_type": "minicpm3", **LATENT},
    "ministral3": {
        "model_type": "ministral3",
        **SIZES,
        "rope_parameters": {**DEEPSEEK, "mscale": 1.0, "mscale_all_dim": 1.0},
    },
    "hunyuan": {
        "model_type": "hunyuan_v1_moe",
        **SIZES,
        "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0},
    },
    "gpt_oss": {
        "model_type": "gpt_oss",
        **WINDOWS,
        "rope_scaling": {**DEEPSEEK, "factor": 32.0, "truncate": False},
    },
    "olmo3": {"model_type": "olmo3", **WINDOWS, "rope_scaling": {**OLD_YARN}},
    "smollm3": {"model_type": "smollm3", **SIZES},
    "cohere2": {"model_type": "cohere2", **WINDOWS},
}
YARN = {
    "rope_type": "yarn",
    "factor": 2.0,
    "original_max_position_embeddings": 32768,
    "rope_theta": 5e5,
}
DIVISORS = [1.0 + pair / 8 for pair in range(32)]
SETTINGS = {
    "as it is": None,
    "default": {"rope_type": "default", "rope_theta": 3e5},
    "linear": {"rope_type": "linear", "factor": 3.0, "rope_theta": 5e5},
    "yarn": YARN,
    "yarn with bounds": {**YARN, "beta_fast": 24.0, "beta_slow": 2.0},
    "yarn without amplitude": {**YARN, "attention_factor": 1.0},
    "yarn with mscale": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.5},
    "yarn of latent attention": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "rope_theta": 5e5,
    }
    | {"original_max_position_embeddings": 8192},
    "longrope": {
        "rope_type": "longrope",
        "factor": 4.0,
        "long_factor": DIVISORS,
        "short_factor": DIVISORS,
        "rope_theta": 5e5,
    }
    | {"original_max_position_embeddings": 32768},
}


def described(tmp_path, config: dict) -> str:
    (tmp_path / "config.json").write_text(json.dumps(config))
    return str(tmp_path)


def over(config: dict, keys: dict) -> dict:
    """A config.json with keys written into it, as a user does by hand."""
    result = dict(config)
    for key, value in keys.items():
        inner = key in ("text_config", "llm_config")
        result[key] = over(config[key], value) if inner else value
    return result


def numbers(setting) -> dict:
    """{kind of layers: (frequencies of short and long texts, factors)}."""
    result = {}
    for kind in setting.turning:
        rope = kind.rope
        both = [frequencies(rope, length) for length in (1, 1e7)]
        result[kind.name] = (*both, np.array([rope.amplitude, rope.sharper]))
    return result


def assert_alike(setting, other, names):
    ours, theirs = numbers(setting), numbers(other)
    for name in names if names else ours:
        for a, b in zip(ours[name], theirs[name], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, err_msg=name)


def check_lines(tmp_path, config: dict, words: list[str]) -> set[str]:
    """Assert that each line gives the same numbers when it is typed on the same checkpoint; the
    tools that have one.
    """
    explanation = explain_words(described(tmp_path, config), words)
    lines = {line.tool: line for line in explanation.words}
    assert not [line for line in explanation.words if REASON_IF_MISREAD in line.text], (
        words,
        [line for line in explanation.words if REASON_IF_MISREAD in line.text],
    )
    for tool in (VLLM, SGLANG):
        if lines[tool].serves:
            assert_alike(
                explanation.setting,
                explain_words(str(tmp_path), shlex.split(lines[tool].text)).setting,
                None,
            )
    if lines[HF].serves:
        edited = over(config, json.loads(lines[HF].text.removeprefix(CONFIG_PREFIX)))
        assert_alike(
            explanation.setting, explain_words(described(tmp_path, edited), []).setting, None
        )
        described(tmp_path, config)
    full = explanation.setting.turning[0].name
    for tool in (TOOL_FLAGS, TOOL_KEYS):
        line = lines[tool].text
        if lines[tool].serves and not line.startswith("none:") and "and the tensor" not in line:
            again = explain_words(str(tmp_path), shlex.split(line)).setting
            kind = replace(again.turning[0], name=full)
            assert_alike(explanation.setting, replace(again, kinds=(kind,)), [full])
    return {tool for tool, line in lines.items() if line.serves}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_every_line_gives_the_same_numbers(tmp_path, name, setting):
    config, words = CHECKPOINTS[name], SETTINGS[setting]
    if words and ("gemma3" in name or name == "olmo3"):
        words = {
            "full_attention": words,
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        }
    serving = check_lines(
        tmp_path,
        config,
        [f"rope_parameters={json.dumps(words)}", "rope_scaling=null"] if words else [],
    )
    assert HF in serving


OF_TRANSFORMERS = (
    "llama",
    "scaled llama",
    "qwen2",
    "phi3",
    "glm4_moe",
    "deepseek_v3",
    "deepseek_v2",
    "ministral3",
    "gemma3 text",
    "olmo3",
)


@pytest.mark.parametrize("setting", ["yarn", "yarn with mscale", "llama3", "linear", "as it is"])
@pytest.mark.parametrize("name", OF_TRANSFORMERS)
def test_transformers_itself_has_the_numbers_of_its_line(tmp_path, name, setting):
    """The line is written into config.json, and transformers' own functions compute from it."""
    import transformers
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config, words = CHECKPOINTS[name], SETTINGS[setting]
    if words and name in ("gemma3 text", "olmo3"):
        words = {
            "full_attention": words,
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        }
    explanation = explain_words(
        described(tmp_path, config),
        [f"rope_parameters={json.dumps(words)}", "rope_scaling=null"] if words else [],
    )
    (line,) = (line.text for line in explanation.words if line.tool == HF)
    edited = over(config, json.loads(line.removeprefix(CONFIG_PREFIX)))
    family = edited.pop("model_type")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = transformers.AutoConfig.for_model(family, **json.loads(json.dumps(edited)))
    for kind in explanation.setting.turning:
        parameters = theirs.rope_parameters.get(kind.name, theirs.rope_parameters)
        assert parameters["rope_type"] == kind.rope.kind or (
            name == "phi3" and parameters["rope_type"] == "longrope"
        )
        if parameters["rope_type"] == "default":
            assert parameters["rope_theta"] == kind.rope.base
            continue
        layer = kind.name if kind.name in theirs.rope_parameters else None
        computed, amplitude = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](
            theirs, "cpu", layer_type=layer
        )
        np.testing.assert_allclose(explanation.frequencies(kind.name), computed.numpy(), rtol=1e-6)
        assert np.isclose(amplitude, kind.rope.amplitude, rtol=1e-6)
        if kind.rope.unturned_beside:
            mscale = parameters.get("mscale_all_dim") or 0
            assert np.isclose(
                kind.rope.sharper,
                (0.1 * mscale * np.log(parameters["factor"]) + 1) ** 2
                if parameters["rope_type"] == "yarn"
                else 1,
            )
