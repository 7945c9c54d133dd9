"""A setting in the words of a tool, read again, is the same setting; posbench's own words and
export are judges of both.
"""

import json
import shlex

import numpy as np
import pytest
from conftest import node, small_shape
from gguf_models import write_gguf
from hf_models import checkpoint
from omegaconf import OmegaConf

from posbench.common.errors import ConfigError
from posbench.position.fixed_frequencies import pure_spectrum as of_extension
from posbench.position.geometry import Span
from posbench.position.instantiate import make_method
from posbench.tools.explanation.explain import explain_words
from posbench.tools.explanation.words import HF, SGLANG, TOOL_FLAGS, TOOL_POSBENCH, VLLM

SIZES = {
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "max_position_embeddings": 4096,
    "rope_theta": 2e4,
}
DIVISORS = {
    "short_factor": [1.0 + pair / 8 for pair in range(32)],
    "long_factor": [1.5 + pair for pair in range(32)],
}
LONG = {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 4096}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
SETTINGS = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": YARN,
    "yarn_bounds": {
        **YARN,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "original_max_position_embeddings": 2048,
    },
    "yarn_flat": {**YARN, "attention_factor": 1.0},
    "yarn_sharp": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 4096,
    },
    "longrope": {**LONG, **DIVISORS},
    "longrope_alike": {
        **LONG,
        "short_factor": DIVISORS["long_factor"],
        "long_factor": DIVISORS["long_factor"],
        "attention_factor": 1.1,
    },
    "base": {"rope_type": "default", "rope_theta": 5e5},
    "base_and_yarn": {**YARN, "rope_theta": 5e5},
    "base_and_linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5},
}
# Tools that cannot express a setting; all others must.
CANNOT = {
    "dynamic": {VLLM, SGLANG, TOOL_FLAGS, "GGUF keys"},
    "yarn_bounds": {"GGUF keys"},
    "yarn_sharp": {TOOL_POSBENCH},
    "llama3": {TOOL_FLAGS},
    "longrope": {VLLM, TOOL_FLAGS},
    "longrope_alike": {TOOL_FLAGS, TOOL_POSBENCH},
}


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    path = tmp_path_factory.mktemp("bare") / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **SIZES}))
    return str(path)


def alike(explanation, other, length=None):
    a, b = (each.setting.turning[0].rope for each in (explanation, other))
    assert np.isclose(a.amplitude, b.amplitude, rtol=1e-9), (a, b)
    np.testing.assert_allclose(explanation.frequencies(), other.frequencies(), rtol=1e-9)


@pytest.mark.parametrize("name", SETTINGS)
def test_words_of_every_tool_are_read_back(bare, name, tmp_path):
    for length in (100, 16384):
        explanation = explain_words(
            bare, [f"rope_parameters={json.dumps(SETTINGS[name])}", f"length={length}"]
        )
        words = {line.tool: line for line in explanation.words}
        assert {tool for tool, line in words.items() if not line.serves} == CANNOT.get(
            name, set()
        ), words
        for tool in (VLLM, SGLANG, TOOL_FLAGS):
            if words[tool].serves:
                alike(
                    explain_words(bare, [*shlex.split(words[tool].text), f"length={length}"]),
                    explanation,
                )
        (tmp_path / "config.json").write_text(
            json.dumps(
                {"model_type": "llama", **SIZES, **json.loads(words[HF].text.partition(": ")[2])}
            )
        )
        alike(explain_words(str(tmp_path), [f"length={length}"]), explanation)
        keys = words["GGUF keys"]
        if keys.serves and " and the tensor" not in keys.text:
            alike(explain_words(bare, shlex.split(keys.text)), explanation)


@pytest.mark.parametrize(
    "name",
    sorted(
        set(SETTINGS) - {setting for setting, tools in CANNOT.items() if TOOL_POSBENCH in tools}
    ),
)
def test_posbench_with_its_words_has_the_same_frequencies(bare, name):
    """The extension that the words name, made by posbench itself on the bare checkpoint."""
    for length in (100, 16384):
        explanation = explain_words(
            bare, [f"rope_parameters={json.dumps(SETTINGS[name])}", f"length={length}"]
        )
        typed = [word.lstrip("+") for word in shlex.split(explanation.words[0].text)]
        words = dict(word.split("=", 1) for word in typed)
        trained = int(words.get("train.length", 4096))
        typed_arguments = OmegaConf.from_dotlist(
            [word.removeprefix("extension.") for word in typed if word.startswith("extension.")]
        )
        extension = make_method(
            OmegaConf.to_container(
                OmegaConf.merge(node("extension", words["extension"]), typed_arguments)
            )
        )
        encoding = make_method(
            {**node("encoding", "rope"), "base": 2e4}, small_shape(trained, d_model=256, n_head=4)
        )
        span = Span(trained, max(trained, length), extension.target_len(length))
        spectrum = of_extension(
            extension,
            encoding.spectrum_at(length),
            Span(trained, length, extension.target_len(length)),
        )
        np.testing.assert_allclose(explanation.frequencies(), spectrum.freq_F.numpy(), rtol=1e-9)
        amplitude = explanation.setting.turning[0].rope.amplitude
        assert np.isclose(extension.temperature(span), amplitude**2, rtol=1e-9) or (
            name == "dynamic" and amplitude == 1
        )


def test_a_file_of_llama_cpp_says_what_its_config_json_says(tmp_path):
    """Keys and divisors as convert_hf_to_gguf.py writes them."""
    scaling = "llama.rope.scaling."
    smooth = np.clip((4096 / (2 * np.pi / 1e4 ** (-np.arange(4) / 4)) - 1) / 3, 0, 1)
    for number, (words, keys, tensors) in enumerate(
        (
            (None, {}, {}),
            (SETTINGS["linear"], {f"{scaling}type": "linear", f"{scaling}factor": 4.0}, {}),
            (
                YARN,
                {
                    f"{scaling}type": "yarn",
                    f"{scaling}factor": 4.0,
                    f"{scaling}original_context_length": 4096,
                },
                {},
            ),
            (
                SETTINGS["llama3"],
                {},
                {"rope_freqs.weight": (1 / ((1 - smooth) / 8 + smooth)).astype(np.float32)},
            ),
        )
    ):
        path = checkpoint(
            tmp_path / str(number),
            max_position_embeddings=16384,
            rope_parameters={"rope_theta": 1e4, **(words or {})},
        )
        file = explain_words(str(write_gguf(path, metadata=keys, extra=tensors)), [])
        folder = explain_words(str(path), [])
        np.testing.assert_allclose(file.frequencies(), folder.frequencies(), rtol=1e-6)
        assert np.isclose(
            file.setting.kinds[0].rope.amplitude, folder.setting.kinds[0].rope.amplitude
        )
        assert (
            file.setting.longest == folder.setting.longest == 16384 and file.reader == "llama.cpp"
        )
        with pytest.raises(ConfigError, match="no config.json, which vLLM reads"):
            explain_words(file.what, ["--max-model-len", "100k"])
