"""Mistakes and their warnings; what transformers does with them is asked of transformers."""

import json
import warnings

import numpy as np
import pytest
from script_calls import call

from posbench.common.errors import ConfigError
from posbench.tools.explanation.explain import explain_words
from posbench.tools.explanation.facts import TABLES

SIZES = {
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "max_position_embeddings": 4096,
}
LLAMA = {"model_type": "llama", **SIZES, "rope_theta": 5e5}
GEMMA = {
    "model_type": "gemma3_text",
    **SIZES,
    "num_hidden_layers": 12,
    "head_dim": 64,
    "sliding_window": 512,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
TWICE = json.dumps({**YARN, "original_max_position_embeddings": 16384})
NESTED = {"full_attention": YARN, "sliding_attention": {"rope_type": "default"}}


def explained(tmp_path, config: dict, *words: str):
    (tmp_path / "config.json").write_text(json.dumps(config))
    return explain_words(str(tmp_path), list(words))


def scaled(family=LLAMA, **words) -> dict:
    return {**family, "rope_scaling": words}


def override(**words) -> str:
    return json.dumps({"rope_parameters": words})


DYNAMIC = scaled(rope_type="dynamic", factor=2.0)
MSCALE = {"attention_factor": 1.2, "mscale": 1.0, "mscale_all_dim": 0.5}
FLAT_LLAMA3 = scaled(rope_type="llama3", factor=8.0, original_max_position_embeddings=2048)
CUT = {**NESTED, "full_attention": {**YARN, "truncate": False}}
OF_SGLANG = json.dumps(scaled({}, type="yarn", factor=4.0, original_max_position_embeddings=4096))
YARN_FLAGS = ("--rope-scaling", "yarn", "--rope-scale", "4", "--yarn-attn-factor", "1.2")
OF_VLLM = ("--hf-overrides", override(**YARN, rope_theta=5e5))
OWN_LENGTH = {**LLAMA, "original_max_position_embeddings": 2048}
MISTAKES = {  # {mistake: (config.json, a part of its warning, words typed)}
    "original missing": (
        scaled(type="yarn", factor=4.0),
        "original_max_position_embeddings is missing",
    ),
    "original multiplied": (LLAMA, "before scaling", f"rope_parameters={TWICE}"),
    "original beside": (
        OWN_LENGTH,
        "2,048 beside the mapping and 4,096",
        f"rope_parameters={json.dumps(YARN)}",
    ),
    "factor against lengths": (
        {**LLAMA, "max_position_embeddings": 8192, "rope_scaling": YARN},
        "factor=4, but",
    ),
    "length not raised": (scaled(**YARN), "serve no more,"),
    "dynamic beside a cache": (DYNAMIC, "keys in a cache"),
    "dynamic in vLLM": (DYNAMIC, "max_trained_positions"),
    "type against rope_type": (scaled(**YARN, type="linear"), "contradict"),
    "unknown type": (scaled(**{**YARN, "rope_type": "yarm"}), "did you mean yarn?"),
    "unknown key": (scaled(**YARN, beta_fst=32), "did you mean beta_fast?"),
    "a type that the family refuses": (
        {**scaled(rope_type="linear", factor=4.0), "model_type": "phi3"},
        "takes default and longrope alone",
    ),
    "key of another type": (
        scaled(rope_type="linear", factor=4.0, beta_fast=16),
        "it belongs to yarn",
    ),
    "key of another engine": (scaled(**YARN, attn_factor=1.2), "only SGLang reads it"),
    "attention_factor against mscale": (scaled(**YARN, **MSCALE), "SGLang mscale"),
    "mscale alone": (scaled(**YARN, mscale=0.7), "only together with mscale_all_dim"),
    "truncate": (scaled(**YARN, truncate=False), "llama.cpp rounds"),
    "truncate by kind": ({**GEMMA, "rope_parameters": CUT}, "looks for it beside them"),
    "llama3 without its keys": (FLAT_LLAMA3, "llama3 lacks low_freq_factor, high_freq_factor"),
    "flat for kinds": ({**GEMMA, "rope_parameters": YARN}, "does nothing in gemma3_text"),
    "unknown kind": (
        {**GEMMA, "rope_parameters": {**NESTED, "global_attention": YARN}},
        "global_attention names no kind",
    ),
    "both mappings": (
        {**scaled(**YARN), "rope_parameters": {"rope_type": "default"}},
        "are both there",
    ),
    "rope_theta twice": (
        {**LLAMA, "rope_parameters": {**YARN, "rope_theta": 1e4}},
        "the one in the mapping is read",
    ),
    "a number as text": (scaled(**{**YARN, "factor": "4"}), 'factor="4" is not a number'),
    "a base of 0": ({**LLAMA, "rope_theta": 0}, "rope_theta=0 is not a number above 1"),
    "a share of 0": (
        {**LLAMA, "partial_rotary_factor": 0},
        "partial_rotary_factor=0 is not a number",
    ),
    "window unused": (
        {**LLAMA, "sliding_window": 512, "use_sliding_window": False},
        "sliding_window=512 does nothing",
    ),
    "vLLM loses the base": (
        LLAMA,
        "the base falls from 500,000 to 10,000",
        "--hf-overrides",
        override(**YARN),
    ),
    "vLLM's base of its own": (
        LLAMA,
        "as an override of its own does nothing",
        "--hf-overrides",
        '{"rope_theta": 1e6}',
    ),
    "vLLM's rope_scaling": (
        LLAMA,
        "sets rope_theta to null",
        "--hf-overrides",
        json.dumps(scaled({}, **YARN)),
    ),
    "SGLang's type": (LLAMA, "type=yarn does nothing", "--json-model-override-args", OF_SGLANG),
    "SGLang's family": (
        {**LLAMA, "model_type": "mixtral", "rope_scaling": YARN},
        "never passes a scaling on",
    ),
    "longer than vLLM serves": (
        LLAMA,
        "16,000 is more than the 4,096 tokens that vLLM derives",
        "--max_model_len",
        "16k",
    ),
    "YaRN of the same length in vLLM": (
        LLAMA,
        "16,384 is more than the 4,096 tokens",
        "--max-model-len=16K",
        *OF_VLLM,
    ),
    "longer than SGLang serves": (
        LLAMA,
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 lets it start",
        "--context-length",
        "8192",
    ),
    "scale with none": (
        LLAMA,
        "--rope-scale does nothing",
        "--rope-scaling",
        "none",
        "--rope-scale",
        "4",
    ),
    "yarn without a factor": (LLAMA, "changes nothing", "--rope-scaling", "yarn"),
    "amplitude overwritten": (LLAMA, "overwritten", *YARN_FLAGS),
    "bounds without yarn": (
        LLAMA,
        "--yarn-beta-fast does nothing",
        "--rope-scale",
        "4",
        "--yarn-beta-fast",
        "16",
    ),
    "a longer context alone": (LLAMA, "scales nothing", "-c", "16384"),
    "a key that nobody reads": (
        LLAMA,
        "reads it in files of grok",
        "llama.rope.scaling.yarn_beta_fast=16",
    ),
    "self-extend": (LLAMA, "llama-server does not know it", "--grp-attn-n", "4"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_is_told_with_its_source_and_right_settings_are_silent(tmp_path, name):
    config, part, *words = MISTAKES[name]
    explanation = explained(tmp_path, config, *words)
    assert any(part in finding.text for finding in explanation.findings), [
        finding.text for finding in explanation.findings
    ]
    assert all(
        finding.source and finding.text.endswith((".", ")")) for finding in explanation.findings
    )
    for right in (
        LLAMA,
        {**LLAMA, "max_position_embeddings": 16384, "rope_scaling": YARN},
        {**GEMMA, "rope_local_base_freq": 1e4},
    ):
        assert not explained(tmp_path, right).findings


# vLLM 0.32 starts with these lengths: it multiplies by the factor of linear, and takes YaRN's as
# multiplied
SERVED = {
    "linear": override(rope_type="linear", rope_theta=5e5, factor=4.0),
    "yarn": json.dumps(
        {"rope_parameters": {**YARN, "rope_theta": 5e5}, "max_position_embeddings": 16384}
    ),
}


@pytest.mark.parametrize("name", SERVED)
def test_a_length_that_vllm_serves_and_keys_behind_dots_are_the_mapping(tmp_path, name):
    words = ["--max-model-len", "16384"]
    explanation = explained(tmp_path, LLAMA, *words, "--hf-overrides", SERVED[name])
    assert not explanation.findings
    served = json.loads(SERVED[name])
    dotted = {
        f"rope_parameters.{key}": value for key, value in served.pop("rope_parameters").items()
    } | served
    again = explained(
        tmp_path, LLAMA, *(f"--hf_overrides.{key}={value}" for key, value in dotted.items()), *words
    )
    assert again.setting == explanation.setting and not again.findings


def test_families_without_rope_are_refused_and_transformers_knows_them_so(tmp_path):
    import transformers

    for family in TABLES:
        config = transformers.AutoConfig.for_model(family)
        assert (
            config.max_position_embeddings and getattr(config, "rope_parameters", None) is None
        ), family
        with pytest.raises(ConfigError, match="has no key of RoPE"):
            explained(tmp_path, {**SIZES, "model_type": family})


STOPPING = [
    {"rope_theta": -5},
    scaled({}, rope_type="linear", factor=0),
    scaled({}, **{**YARN, "factor": -4}),
    {"head_dim": 7},
]


@pytest.mark.parametrize("change", [*STOPPING, {"rope_scaling": "yarn"}])
def test_transformers_stops_where_it_is_said_to(tmp_path, change):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    text, stops = explained(tmp_path, {**LLAMA, **change}).text, False
    try:
        LlamaRotaryEmbedding(LlamaConfig(**{**LLAMA, **change}))
    except Exception:
        stops = True
    assert (
        ("transformers stops" in text) == stops
        and "factor is missing" not in text
        and "What is read above" in text
    )


def test_pairs_that_turn_faster_are_not_called_slower(tmp_path):
    assert "pairs turn faster than with the base alone" in explained(
        tmp_path, scaled(**{**YARN, "factor": 0.5})
    ).text.replace("\n", " ")
    assert "31 of 32 pairs turn faster than trained" in explained(
        tmp_path, LLAMA, "--rope-freq-base", "10000"
    ).text.replace("\n", " ")


IGNORED = (
    "flat for kinds",
    "both mappings",
    "rope_theta twice",
    "original beside",
    "original missing",
    "truncate by kind",
    "mscale alone",
)


@pytest.mark.parametrize("name", IGNORED)
def test_a_mistake_has_the_frequencies_that_transformers_gives_it(tmp_path, name):
    import transformers
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config, _, *words = MISTAKES[name]
    typed = dict(word.split("=", 1) for word in words)
    config = {**config, **{key: json.loads(value) for key, value in typed.items()}}
    explanation = explained(tmp_path, config)
    family = {"llama": transformers.LlamaConfig, "gemma3_text": transformers.Gemma3TextConfig}[
        config["model_type"]
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = family(
            **{
                key: value
                for key, value in json.loads(json.dumps(config)).items()
                if key != "model_type"
            }
        )
    for kind in explanation.setting.turning:
        params = theirs.rope_parameters.get(kind.name, theirs.rope_parameters)
        layer = kind.name if kind.name in theirs.rope_parameters else None
        if params["rope_type"] == "default":
            frequencies, amplitude = params["rope_theta"] ** (-np.arange(0, 64, 2) / 64), 1.0
        else:
            frequencies, amplitude = ROPE_INIT_FUNCTIONS[params["rope_type"]](
                theirs, "cpu", layer_type=layer
            )
        np.testing.assert_allclose(
            explanation.frequencies(kind.name), np.asarray(frequencies), rtol=1e-6
        )
        assert np.isclose(kind.rope.amplitude, amplitude)


@pytest.mark.parametrize(
    "words, message",
    [
        (["--rope-scalling", "yarn"], "did you mean --rope-scaling?"),
        (["rope_paramters={}"], "did you mean rope_parameters?"),
        (["llama.rope.scaling.tpye=yarn"], "did you mean rope.scaling.type?"),
        (["rope_parameters={'rope_type': 'yarn'}"], "JSON has double quotes"),
        (["-m", "x.gguf", "-ngl", "99"], "-m, -ngl cannot set positions: leave out all flags but"),
        (
            ["-m", "x.gguf", "--rope-freq-bse", "1e6"],
            "-m, --rope-freq-bse (did you mean --rope-freq-base?) cannot set positions",
        ),
        (["-1", "5"], "-1 cannot set positions"),
        (["-c", "32k"], "reads without k and m"),
        (["--rope-scale"], "has no value"),
        (["--rope-scale", "-4"], "must be above 0"),
        (["figure=x.pdf"], "and no .pdf"),
        (["--rope-scale", "four"], "must be a number"),
        (["--rope-scaling", '{"type": "yarn"'], "is not JSON"),
        (["head_dim=15000000000"], "15,000,000,000 channels, and 65,536 is the most"),
        (["--override-kv", "llama.rope.freq_base=1e6"], "KEY=TYPE:VALUE"),
        (["head_dim=0"], "head_dim=0, where a whole number above 0 belongs"),
        (["rope_parameters=4"], "must be a mapping"),
    ],
)
def test_words_that_nobody_knows_are_one_sentence(tmp_path, capfd, words, message):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    done = call(capfd, tmp_path, "explain", str(tmp_path), f"figure={tmp_path}/x", *words)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1, (
        done.stderr
    )
    assert not done.stdout and [path.name for path in tmp_path.iterdir()] == ["config.json"]
