"""Trainings and extensions written in Hugging Face format: transformers itself is the judge; words
for the engines.
"""

import fcntl
import json
import os
import shlex
import shutil
from pathlib import Path

import pytest
from conftest import node
from hf_models import (
    FIXED,
    TRAIN_LEN,
    VOCAB,
    adopted,
    assert_equal_logits,
    checkpoint,
    exported,
    imported,
    job,
    method,
    trained,
    transformers,
)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from posbench.common.errors import ConfigError, RunError
from posbench.config.defaults import resolved_config
from posbench.config.identity import run_id
from posbench.config.schema import FinetuneConfig, JobConfig
from posbench.runs.directory import Run
from posbench.sweep.finetune import child_config
from posbench.sweep.take_checkpoint import take_checkpoint
from posbench.tools.advice.settings import engine_words
from posbench.tools.export import command as hf_export
from posbench.tools.export.command import config_json, rope_settings

MODELS = {
    "plain": ({}, {}, "LlamaForCausalLM"),
    "interleaved": ({"layout": "interleaved"}, {}, "LlamaForCausalLM"),
    "base": ({"base": 500.0}, {"n_kv_head": None, "norm_eps": 1e-3}, "LlamaForCausalLM"),
    "tied": ({}, {"tied": True}, "LlamaForCausalLM"),
    "window": ({"window": 7}, {}, "MistralForCausalLM"),
    "head_dim": ({}, {"head_dim": 24}, "LlamaForCausalLM"),
    "qk_norm": ({}, {"qk_norm": "rms", "head_dim": 24}, "Qwen3ForCausalLM"),
    "qk_norm interleaved": ({"layout": "interleaved"}, {"qk_norm": "rms"}, "Qwen3ForCausalLM"),
    "unturned": (node("encoding", "smollm3"), {"n_layer": 5, "tied": True}, "SmolLM3ForCausalLM"),
    "unturned window": (
        {"unturned": [0], "window": [5, None], "layout": "interleaved"},
        {},
        "SmolLM3ForCausalLM",
    ),
    "biases": ({"layout": "interleaved"}, {"qkv_bias": True}, "Qwen2ForCausalLM"),
}


@pytest.mark.parametrize("name", MODELS)
def test_an_exported_training_is_the_same_function(tmp_path, name):
    encoding, model, architecture = MODELS[name]
    run = trained(tmp_path, job(method("encoding", "rope", **encoding), model))
    out = exported(run, method("extension", "pi", **FIXED))
    theirs, info = getattr(transformers, architecture).from_pretrained(
        out, output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    assert type(transformers.AutoModelForCausalLM.from_pretrained(out)) is type(theirs)
    assert_equal_logits(run, theirs.eval(), method("extension", "pi", **FIXED))


DIVISORS = [1.0, 1.1, 1.3, 1.7, 2.0, 2.5, 3.0, 4.0]
EXTENSIONS = {
    "none": ("default", {}),
    "pi": ("linear", FIXED),
    "ntk": ("default", {**FIXED, "multiplier": 1.5}),
    "ntk dynamic": ("dynamic", {}),
    "dynamic_ntk": ("dynamic", {"factor": 3.0}),
    "dynamic_ntk fixed": ("default", FIXED),
    "abf": ("default", {}),
    "ntk_fixed": ("longrope", FIXED),
    "ntk_mixed": ("longrope", FIXED),
    "ntk_by_parts": ("llama3", FIXED),
    "ntk_by_parts index": ("yarn", {**FIXED, "ramp": "index", "truncate": False}),
    "yarn": ("yarn", FIXED),
    "yarn published": ("yarn", {**FIXED, "beta": 32.0}),
    "yarn turns": ("longrope", {**FIXED, "ramp": "turns"}),
    "yarn_radix": ("longrope", FIXED),
    "llama3": ("llama3", FIXED),
    "longrope": ("longrope", FIXED),
    "longrope two": (
        "longrope",
        {**FIXED, "factors": DIVISORS, "short_factors": [1.0] * 7 + [1.5]},
    ),
    "compose": (
        "longrope",
        {"parts": [method("extension", "pi", **FIXED), method("extension", "yarn", **FIXED)]},
    ),
}


@pytest.mark.parametrize("name", EXTENSIONS)
def test_an_extension_is_exported_as_their_own(tmp_path, name):
    kind, arguments = EXTENSIONS[name]
    extension = method("extension", name.split()[0], **arguments)
    run = trained(tmp_path, job())
    out = exported(run, extension)
    scaling = json.loads((out / "config.json").read_text())["rope_scaling"] or {
        "rope_type": "default"
    }
    assert scaling["rope_type"] == kind
    theirs = transformers.LlamaForCausalLM.from_pretrained(out).eval()
    assert_equal_logits(run, theirs, extension)


@pytest.mark.parametrize(
    ("extension", "arguments"),
    [
        ("none", {"p": 0.7}),
        ("pi", {"cut": "full_turns", "layout": "interleaved"}),
        ("ntk", {"p": 0.7}),
    ],
)
def test_p_rope_is_their_proportional_type(tmp_path, extension, arguments):
    extension = method("extension", extension, **({} if extension == "none" else FIXED))
    run = trained(tmp_path, job(method("encoding", "p_rope", **arguments)))
    out = exported(run, extension)
    assert (
        json.loads((out / "config.json").read_text())["rope_scaling"]["rope_type"] == "proportional"
    )
    assert_equal_logits(run, transformers.LlamaForCausalLM.from_pretrained(out).eval(), extension)


@pytest.mark.parametrize("last", ["write_theirs", "write_json"])
def test_an_export_that_ended_early_is_made_by_the_same_command(tmp_path, monkeypatch, last):
    run = trained(tmp_path, job())

    def killed(*_):
        shutil.copytree(
            tmp_path / ".out.part", tmp_path / "left"
        )  # as it stands at a kill, which cleans nothing up
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(hf_export, last, killed)
        exported(run)
    (tmp_path / "left").rename(tmp_path / ".out.part")
    (tmp_path / ".out.part/of-another-attempt").touch()
    out = exported(run)
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "model.safetensors"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


def test_an_export_into_an_empty_folder_or_one_that_another_process_writes(tmp_path):
    run = trained(tmp_path, job())
    (tmp_path / "out").mkdir()
    (tmp_path / ".out.part").mkdir()
    handle = os.open(tmp_path / ".out.part", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(ConfigError, match="Another process writes out=.*: wait for it"):
        exported(run)
    os.close(handle)
    assert (exported(run) / "config.json").is_file()


def test_a_damaged_training_is_not_exported(tmp_path):
    run = trained(tmp_path, job())
    content = run.weights.read_bytes()
    run.weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(RunError, match="damaged"):
        exported(run)


def test_a_child_of_a_model_with_dynamic_scaling_keeps_its_frequencies(tmp_path):
    scaling = method("extension", "dynamic_ntk")
    parent = resolved_config(
        job(encoding={**node("encoding", "rope"), "scaling": scaling, "scaling_len": 32})
    )
    run = trained(tmp_path, child_config(parent, "rope-32-s0-0", FinetuneConfig(length=128)))
    out = exported(run)
    assert json.loads((out / "config.json").read_text())["max_position_embeddings"] == 32
    assert_equal_logits(run, transformers.AutoModelForCausalLM.from_pretrained(out).eval())


def test_a_training_on_a_task_has_no_tokenizer_and_its_mix_stands_behind_the_bos(tmp_path, capfd):
    mqar = node("data", "mqar")
    data = {
        "name": "mqar",
        "tokenizer": "task",
        "vocab_size": VOCAB,
        "bos": False,
        "source": mqar["source"],
    }
    out = exported(trained(tmp_path / "task", job(data=data)))
    assert "data=mqar is a task" in capfd.readouterr().out and not (out / "tokenizer.json").exists()
    mixed = {
        **job()["data"],
        "bos": True,
        "mix": {"task": "mqar", "share": 0.5, "vocab_size": 20, "source": mqar["source"]},
    }
    out = exported(trained(tmp_path / "mix", job(data=mixed)))
    assert json.loads((out / "config.json").read_text())["bos_token_id"] == VOCAB - 20 - 1
    assert "begins with the BOS, token 29, as in training" in capfd.readouterr().out


def test_an_export_of_a_checkpoint_ends_a_text_as_it_did(tmp_path, text_folder):
    """Special tokens, chat template and generation_config.json are the checkpoint's, also where its
    vocabulary is nearly one of bytes.
    """
    path = checkpoint(
        tmp_path, vocab_size=258, bos_token_id=256, eos_token_id=[257, 3], pad_token_id=257
    )
    alphabet = sorted(
        pre_tokenizers.ByteLevel.alphabet(), reverse=True
    )  # ids that are not the values of the bytes
    model = Tokenizer(models.BPE({character: at for at, character in enumerate(alphabet)}, []))
    model.pre_tokenizer, model.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    model.add_special_tokens(["<s>", "</s>"])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=model, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    tokenizer.chat_template = "{{ messages[0]['content'] }}</s>"
    tokenizer.save_pretrained(path)
    transformers.GenerationConfig(eos_token_id=[257, 3]).save_pretrained(path)
    data = {**job()["data"], "tokenizer": "bytes", "name": "local", "path": str(text_folder)}
    data |= {
        "source": {
            "_target_": "posbench.data.local.LocalFiles",
            "column": "text",
            "validation_share": 0.05,
            "test_share": 0.1,
        }
    }
    cfg = adopted(path, data=data)
    assert cfg.data["tokenizer"] == str(path)
    run = Run(tmp_path / run_id(cfg.as_dict(), "f"))
    with run.lock():
        take_checkpoint(run, cfg, 258, "cpu", "f")
    out = exported(run, cache_dir=str(tmp_path / "cache"))
    theirs = transformers.AutoTokenizer.from_pretrained(out)
    assert (theirs.bos_token_id, theirs.eos_token, theirs.pad_token) == (
        256,
        "</s>",
        "</s>",
    ) and theirs("ab")["input_ids"] == tokenizer("ab")["input_ids"]
    assert (
        theirs.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi</s>"
    )
    config = transformers.AutoConfig.from_pretrained(out)
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (256, [257, 3], 257)
    assert transformers.GenerationConfig.from_pretrained(out).eos_token_id == [257, 3]


def test_a_tokenizer_of_the_corpus_comes_along(tmp_path, text_folder):
    source = {
        "_target_": "posbench.data.local.LocalFiles",
        "column": "text",
        "validation_share": 0.05,
        "test_share": 0.1,
    }
    data = {
        "tokenizer": "bpe",
        "vocab_size": 280,
        "bos": False,
        "name": "local",
        "path": str(text_folder),
        "source": source,
    }
    out = exported(trained(tmp_path, job(data=data)), cache_dir=str(tmp_path / "cache"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    text = "train document 3 says word 7 and number 9."
    from posbench.data import prepare
    from posbench.data.tokenizers import load_tokenizer

    ours = load_tokenizer("bpe-280", prepare(data, tmp_path / "cache").folder)
    assert (
        tokenizer(text)["input_ids"] == ours.encode([text])[0][0].tolist()
        and tokenizer.decode(tokenizer(text)["input_ids"]) == text
    )


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
    assert_set(
        checkpoint(tmp_path), method("extension", name.split()[0], **arguments), kind, served
    )


def assert_set(path: Path, extension: dict, kind: str, served: set[str]) -> None:
    """A checkpoint with the written config.json is the extension, and `served` are the engines that
    express it.
    """
    cfg, original = adopted(path), json.loads((path / "config.json").read_text())
    config = config_json(original, cfg, extension)
    assert config["rope_parameters"]["rope_type"] == kind
    assert {key for key in config if config[key] != original.get(key)} <= {
        "rope_parameters", "rope_theta", "rope_scaling", "max_position_embeddings",
        "original_max_position_embeddings", "partial_rotary_factor",
    }  # fmt: skip
    run, changed = imported(path), path.parent / "set"
    changed.mkdir()
    shutil.copy(path / "model.safetensors", changed)
    (changed / "config.json").write_text(json.dumps(config))
    assert_equal_logits(
        run,
        transformers.AutoModelForCausalLM.from_pretrained(changed).eval(),
        extension,
        relative=True,
    )
    words_by_engine = engine_words(cfg, rope_settings(cfg, extension, original), original)
    assert all(entry["words"] for entry in words_by_engine.values())
    assert {engine for engine, entry in words_by_engine.items() if entry["serves"]} == served


HALF = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
HALF_DIVISORS = {
    **HALF,
    "rope_type": "longrope",
    "long_factor": [1.0, 1.5, 2.0, 4.0],
    "short_factor": [1.0, 1.5, 2.0, 4.0],
}
FAMILIES = {
    "Mistral": {"sliding_window": 7},
    "Ministral": {"layer_types": ["sliding_attention", "full_attention"]},
    "Qwen2": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    "Qwen3": {},
    "SmolLM3": {},
    "Phi3": {},
    "Phi3 half": {"rope_parameters": HALF, "hidden_size": 64},
    "Phi3 longrope": {
        "rope_parameters": HALF_DIVISORS,
        "original_max_position_embeddings": 16,
        "hidden_size": 64,
    },
}


PARTLY_TURNED = ("SmolLM3", "Phi3 half", "Phi3 longrope")  # where yarn's temperature is refused


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (model, name)
        for name in ("pi", "ntk", "yarn")
        for model in FAMILIES
        if name != "yarn" or model not in PARTLY_TURNED
    ],
)
def test_the_config_json_of_every_type_of_model_is_the_extension(tmp_path, model, name):
    """Phi-3 knows the types default and longrope alone; a layer without rotation and a half that
    turns stay as they are.
    """
    path = checkpoint(tmp_path, model.split()[0], **FAMILIES[model])
    kind, arguments, served = CASES[name]
    extension = method("extension", name.split()[0], **arguments)
    if model.startswith("Phi3") and (
        name != "ntk" or model == "Phi3 longrope"
    ):  # ntk is another base, which beside divisors is not enough
        kind, served = "longrope", {*ENGINES[:3]}
    if model == "Ministral":
        served = served - {"llama.cpp"}  # whose converter does not know this type of model
    assert_set(path, extension, kind, served)


def test_a_new_config_json_is_that_of_the_checkpoint(tmp_path):
    """As it is written for a GGUF file, which has none."""
    path = checkpoint(tmp_path)
    extension, run = method("extension", "yarn", **FIXED), imported(path)
    (path / "config.json").write_text(json.dumps(config_json(None, adopted(path), extension)))
    assert_equal_logits(
        run, transformers.LlamaForCausalLM.from_pretrained(path).eval(), extension, relative=True
    )


def test_the_words_for_each_engine(tmp_path):
    cfg = adopted(checkpoint(tmp_path))
    yarn = _words(cfg, "yarn")
    words = shlex.split(yarn["vLLM"])
    assert words[0] == "--hf-overrides" and words[2:] == ["--max-model-len", "128"]
    assert json.loads(words[1])["rope_parameters"]["original_max_position_embeddings"] == TRAIN_LEN
    assert json.loads(shlex.split(yarn["SGLang"])[1])["rope_parameters"]["rope_type"] == "yarn"
    assert yarn["llama.cpp"].startswith(
        "--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 32 --yarn-beta-slow 1 "
    )
    assert (
        json.loads(words[1])["max_position_embeddings"] == 128
    )  # vLLM 0.33 multiplies it for linear alone
    assert json.loads(shlex.split(_words(cfg, "pi")["vLLM"])[1]).keys() == {"rope_parameters"}
    assert json.loads(shlex.split(_words(cfg, "ntk")["vLLM"])[1])["max_position_embeddings"] == 128
    ntk = _words(cfg, "ntk")["llama.cpp"]
    assert ntk.startswith("--rope-scaling none --rope-freq-base ") and float(ntk.split()[3]) > 40000
    assert _words(cfg, "pi")["llama.cpp"].startswith("--rope-scaling linear --rope-scale 4 ")


def _words(cfg: JobConfig, name: str) -> dict[str, str]:
    settings = rope_settings(cfg, method("extension", name, **FIXED))
    return {engine: entry["words"] for engine, entry in engine_words(cfg, settings, None).items()}


def test_what_frequencies_cannot_say_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not only change frequencies"):
        rope_settings(adopted(checkpoint(tmp_path)), method("extension", "rerope"))
    original = {
        "model_type": "llama",
        "rope_parameters": {"full_attention": {"rope_type": "default"}},
    }
    with pytest.raises(ConfigError, match="separate RoPE settings"):
        config_json(original, adopted(checkpoint(tmp_path)), method("extension", "pi", **FIXED))
