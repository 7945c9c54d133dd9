"""What an extension is set by: transformers, given the written config.json, computes what posbench computes; words for the engines."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
from hf_models import TRAIN_LEN, adopted, assert_equal_logits, checkpoint, imported, method, transformers

from posbench.advice.settings import engine_words
from posbench.common.errors import ConfigError
from posbench.config.schema import JobConfig
from posbench.huggingface.export import config_json, settings

FIXED = {"mode": "fixed", "target_len": 4 * TRAIN_LEN}
ENGINES = ("transformers", "vLLM", "SGLang", "llama.cpp")
CASES = {  # {extension: (rope type, its arguments, engines that express it)}
    "pi": ("linear", FIXED, {*ENGINES}),
    "ntk": ("default", FIXED, {*ENGINES}),
    "yarn": ("yarn", FIXED, {*ENGINES}),
    "yarn flat": ("yarn", {**FIXED, "temperature": False}, {*ENGINES}),
    "llama3": ("llama3", FIXED, {*ENGINES[:3]}),
    "dynamic_ntk": ("dynamic", {}, {"transformers"}),
    "longrope": ("longrope", FIXED, {*ENGINES[:3]}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_config_json_is_the_extension(tmp_path, name):
    kind, arguments, served = CASES[name]
    assert_set(checkpoint(tmp_path), method("extension", name.split()[0], **arguments), kind, served)


def assert_set(path: Path, extension: dict, kind: str, served: set[str]) -> None:
    """A checkpoint with the written config.json is the extension, and `served` are the engines that express it."""
    cfg, own = adopted(path), json.loads((path / "config.json").read_text())
    config = config_json(own, cfg, extension)
    assert config["rope_parameters"]["rope_type"] == kind
    assert {key for key in config if config[key] != own.get(key)} <= {
        "rope_parameters", "rope_theta", "rope_scaling", "max_position_embeddings",
        "original_max_position_embeddings", "partial_rotary_factor",
    }  # fmt: skip
    run, changed = imported(path), path.parent / "set"
    changed.mkdir()
    shutil.copy(path / "model.safetensors", changed)
    (changed / "config.json").write_text(json.dumps(config))
    assert_equal_logits(run, transformers.AutoModelForCausalLM.from_pretrained(changed).eval(), extension, relative=True)
    told = engine_words(cfg, settings(cfg, extension, own), own)
    assert all(one["words"] for one in told.values())
    assert {engine for engine, one in told.items() if one["serves"]} == served


HALF = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
DIVISORS = {**HALF, "rope_type": "longrope", "long_factor": [1.0, 1.5, 2.0, 4.0], "short_factor": [1.0, 1.5, 2.0, 4.0]}
MODELS = {
    "Mistral": {"sliding_window": 7},
    "Ministral": {"layer_types": ["sliding_attention", "full_attention"]},
    "Qwen2": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    "Qwen3": {},
    "SmolLM3": {},
    "Phi3": {},
    "Phi3 half": {"rope_parameters": HALF, "hidden_size": 64},
    "Phi3 longrope": {"rope_parameters": DIVISORS, "original_max_position_embeddings": 16, "hidden_size": 64},
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", ["pi", "ntk", "yarn"])
def test_the_config_json_of_every_type_of_model_is_the_extension(tmp_path, model, name):
    """Phi-3 knows the types default and longrope alone; a layer without rotation and a half that turns stay as they are."""
    path = checkpoint(tmp_path, model.split()[0], **MODELS[model])
    kind, arguments, served = CASES[name]
    extension = method("extension", name.split()[0], **arguments)
    if name == "yarn" and model in ("SmolLM3", "Phi3 half", "Phi3 longrope"):
        with pytest.raises(ConfigError, match="extension=yarn has a temperature for all layers and channels"):
            settings(adopted(path), extension, json.loads((path / "config.json").read_text()))
        return
    if model.startswith("Phi3") and (name != "ntk" or model == "Phi3 longrope"):  # ntk is another base, which beside divisors is not enough
        kind, served = "longrope", {*ENGINES[:3]}
    assert_set(path, extension, kind, served)


def test_what_phi3_has_no_type_for_is_refused(tmp_path):
    path = checkpoint(tmp_path, "Phi3")
    with pytest.raises(ConfigError, match="extension=dynamic_ntk has another factor at each length"):
        settings(adopted(path), method("extension", "dynamic_ntk"), json.loads((path / "config.json").read_text()))


def test_a_new_config_json_is_that_of_the_checkpoint(tmp_path):
    """As it is written for a GGUF file, which has none."""
    path = checkpoint(tmp_path)
    extension, run = method("extension", "yarn", **FIXED), imported(path)
    (path / "config.json").write_text(json.dumps(config_json(None, adopted(path), extension)))
    assert_equal_logits(run, transformers.LlamaForCausalLM.from_pretrained(path).eval(), extension, relative=True)


def test_the_words_for_each_engine(tmp_path):
    cfg = adopted(checkpoint(tmp_path))
    yarn = _words(cfg, "yarn")
    words = shlex.split(yarn["vLLM"])
    assert words[0] == "--hf-overrides" and words[2:] == ["--max-model-len", "128"]
    assert json.loads(words[1])["rope_parameters"]["original_max_position_embeddings"] == TRAIN_LEN
    assert json.loads(shlex.split(yarn["SGLang"])[1])["rope_parameters"]["rope_type"] == "yarn"
    assert yarn["llama.cpp"].startswith("--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 32 --yarn-beta-slow 1 ")
    assert json.loads(words[1])["max_position_embeddings"] == 128  # vLLM 0.33 multiplies it for linear alone
    assert json.loads(shlex.split(_words(cfg, "pi")["vLLM"])[1]).keys() == {"rope_parameters"}
    assert json.loads(shlex.split(_words(cfg, "ntk")["vLLM"])[1])["max_position_embeddings"] == 128
    ntk = _words(cfg, "ntk")["llama.cpp"]
    assert ntk.startswith("--rope-scaling none --rope-freq-base ") and float(ntk.split()[3]) > 40000
    assert _words(cfg, "pi")["llama.cpp"].startswith("--rope-scaling linear --rope-scale 4 ")


def _words(cfg: JobConfig, name: str) -> dict[str, str]:
    told = settings(cfg, method("extension", name, **FIXED))
    return {engine: one["words"] for engine, one in engine_words(cfg, told, None).items()}


def test_what_frequencies_cannot_say_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not only change frequencies"):
        settings(adopted(checkpoint(tmp_path)), method("extension", "rerope"))
    own = {"model_type": "llama", "rope_parameters": {"full_attention": {"rope_type": "default"}}}
    with pytest.raises(ConfigError, match="separate RoPE settings"):
        config_json(own, adopted(checkpoint(tmp_path)), method("extension", "pi", **FIXED))
