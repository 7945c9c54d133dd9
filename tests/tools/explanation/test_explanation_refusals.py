"""Configurations that posbench does not explain, and words that they do not take."""

import pytest
from test_checks import LLAMA, SIZES
from test_reach import LLAMA2
from test_read_back import CHECKPOINTS, described

from posbench.common.errors import ConfigError
from posbench.tools.explanation.explain import explain_words

NO_KEY = "has no key of RoPE"
TOO_WIDE = "65,536 is the most that is explained"
MPT = {
    "model_type": "mpt",
    "d_model": 512,
    "n_heads": 8,
    "n_layers": 2,
    "max_seq_len": 65536,
    "attn_config": {"alibi": True, "rope": False},
}
REFUSED = {
    "jamba": ({"model_type": "jamba", **SIZES}, "", NO_KEY),
    "nemotron_h": ({"model_type": "nemotron_h", **SIZES}, "", NO_KEY),
    "mpt": (MPT, "", NO_KEY),
    "granite hybrid": (
        {
            "model_type": "granitemoehybrid",
            **SIZES,
            "position_embedding_type": "nope",
            "rope_theta": 1e4,
        },
        "",
        NO_KEY,
    ),
    "falcon with alibi": ({"model_type": "falcon", **SIZES, "alibi": True}, "", NO_KEY),
    # As llama.cpp reads Cohere2 without a window.
    "cohere2": (
        {**LLAMA, "model_type": "cohere2"},
        "--rope-scale 4",
        "no layer in which RoPE turns a channel",
    ),
    "hidden_size": ({**LLAMA2, "hidden_size": 60_000_000_000}, "", TOO_WIDE),
    "head_dim": ({**LLAMA2, "head_dim": 2**17}, "", TOO_WIDE),
    "qk_rope_head_dim": ({**LLAMA2, "qk_rope_head_dim": 2**30}, "", TOO_WIDE),
    "part for text": (CHECKPOINTS["qwen3_vl"], "text_config=4", "must be a mapping"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_configuration_is_not_explained(tmp_path, name):
    config, typed, words = REFUSED[name]
    with pytest.raises(ConfigError, match=words):
        explain_words(described(tmp_path, config), typed.split())


@pytest.mark.parametrize(
    "word", ["length=-5", "length=0", "--max-model-len=-5", "--context-length=0", "-c=-5"]
)
def test_a_length_that_no_text_has_is_refused(tmp_path, word):
    name, value = word.split("=")
    with pytest.raises(ConfigError, match=f"{name} {value} must be at least 1 token"):
        explain_words(described(tmp_path, LLAMA), [word])


def test_minus_c_0_is_the_length_of_the_file(tmp_path):
    assert not explain_words(described(tmp_path, LLAMA), ["-c", "0"]).length  # none is named


@pytest.mark.parametrize("value", ["auto", "-1"])
def test_a_length_that_vllm_fits_to_the_memory_is_none_that_is_known(tmp_path, value):
    assert not explain_words(described(tmp_path, LLAMA), ["--max-model-len", value]).length
