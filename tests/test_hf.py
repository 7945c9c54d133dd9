"""Checkpoints in Hugging Face format, out and in: transformers itself is the judge of both."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import CONFIGS, node
from safetensors.torch import load_file

from posbench import hf_import, hf_weights
from posbench.build import load_model, make_model
from posbench.checkpoint import save_weights
from posbench.cli import Request
from posbench.config import TrainConfig, resolve
from posbench.data.corpus import Corpus
from posbench.errors import ConfigError, RunError
from posbench.hf_export import export
from posbench.make import make
from posbench.plan import make_plan
from posbench.runs import Run, run_id

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

VOCAB, TRAIN_LEN, LENGTHS = 50, 32, (5, 32, 33, 100)
FIXED = {"mode": "fixed", "target_len": 128}


def method(group: str, name: str, **changed) -> dict:
    return {**node(group, name), **changed}


def job(encoding: dict | None = None, model: dict | None = None, **changed) -> dict:
    """A configuration as Hydra would compose it."""
    data = {"tokenizer": "bytes", "vocab_size": 1024, "bos": False, "name": "local", "path": "/nowhere", "source": {"_target_": "none"}}
    return {
        "encoding": encoding or node("encoding", "rope"),
        "extension": node("extension", "none"),
        "scale_attention": node("scale_attention", "none"),
        "model": {"d_model": 32, "n_layer": 2, "n_head": 2, "n_kv_head": 1, "d_ff": 48, **(model or {})},
        "data": data,
        "train": {"length": TRAIN_LEN},
        "evaluate": {},
        "log": {},
        "seed": 0,
        **changed,
    }


@torch.no_grad()
def randomize(model: torch.nn.Module) -> None:
    """Every parameter random, norms and biases too, so that none can be forgotten unseen."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.normal_(mean=float(parameter.ndim == 1), std=0.3)


def trained(folder: Path, cfg: dict) -> Run:
    """A finished run of random weights."""
    run, cfg = Run(folder / "run"), resolve(cfg)
    model = make_model(cfg, VOCAB)
    randomize(model)
    with run.lock():
        run.write_config(cfg)
        run.write_summary({"sha256": save_weights(run.weights, model)})
    return run


def exported(training: Run, extension: dict | None = None, **changed) -> Path:
    out = training.path.parent / "out"
    cfg = {"run": str(training.path), "out": str(out), "extension": extension or node("extension", "none"), "cache_dir": str(training.path)}
    export(Request([{**cfg, "scale_attention": node("scale_attention", "none"), **changed}], {}, False))
    return out


@torch.no_grad()
def assert_equal_logits(run: Run, theirs: torch.nn.Module, extension: dict | None = None, vocab_size: int = VOCAB) -> None:
    ours = load_model(run, run.read_config(), vocab_size, "cpu")
    for length in LENGTHS:  # ascending: their dynamic type remembers the longest text
        text_BT = torch.randint(0, vocab_size, (2, length))
        plan = make_plan(ours.encoding, make(extension) if extension else None, length=length)
        torch.testing.assert_close(ours(text_BT, plan), theirs(text_BT).logits, rtol=1e-4, atol=1e-4)


MODELS = {
    "plain": ({}, {}, "LlamaForCausalLM"),
    "interleaved": ({"layout": "interleaved"}, {}, "LlamaForCausalLM"),
    "base": ({"base": 500.0}, {"n_kv_head": None, "norm_eps": 1e-3}, "LlamaForCausalLM"),
    "tied": ({}, {"tied": True}, "LlamaForCausalLM"),
    "head_dim": ({}, {"head_dim": 24}, "LlamaForCausalLM"),
    "qk_norm": ({}, {"qk_norm": "rms", "head_dim": 24}, "Qwen3ForCausalLM"),
    "qk_norm interleaved": ({"layout": "interleaved"}, {"qk_norm": "rms"}, "Qwen3ForCausalLM"),
    "biases": ({"layout": "interleaved"}, {"qkv_bias": True}, "Qwen2ForCausalLM"),
}


@pytest.mark.parametrize("name", MODELS)
def test_an_exported_training_is_the_same_function(tmp_path, name):
    encoding, model, architecture = MODELS[name]
    run = trained(tmp_path, job(method("encoding", "rope", **encoding), model))
    out = exported(run, method("extension", "pi", **FIXED))
    theirs, info = getattr(transformers, architecture).from_pretrained(out, output_loading_info=True)
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
    "yarn coarse": ("longrope", {**FIXED, "alpha": 6.0}),  # a bound before the first pair: their code makes no ramp there
    "yarn turns": ("longrope", {**FIXED, "ramp": "turns"}),
    "llama3": ("llama3", FIXED),
    "longrope": ("longrope", FIXED),
    "longrope two": ("longrope", {**FIXED, "factors": DIVISORS, "short_factors": [1.0] * 7 + [1.5]}),
    "compose": ("longrope", {"parts": [method("extension", "pi", **FIXED), method("extension", "yarn", **FIXED)]}),
}


@pytest.mark.parametrize("name", EXTENSIONS)
def test_an_extension_is_exported_as_their_own(tmp_path, name):
    kind, arguments = EXTENSIONS[name]
    extension = method("extension", name.split()[0], **arguments)
    run = trained(tmp_path, job())
    out = exported(run, extension)
    scaling = json.loads((out / "config.json").read_text())["rope_scaling"] or {"rope_type": "default"}
    assert scaling["rope_type"] == kind
    theirs = transformers.LlamaForCausalLM.from_pretrained(out).eval()
    assert_equal_logits(run, theirs, extension)


@pytest.mark.parametrize("extension", ["none", "pi", "ntk"])
@pytest.mark.parametrize("arguments", [{"p": 0.7}, {"cut": "full_turns", "layout": "interleaved"}])
def test_p_rope_is_their_proportional_type(tmp_path, extension, arguments):
    extension = method("extension", extension, **({} if extension == "none" else FIXED))
    run = trained(tmp_path, job(method("encoding", "p_rope", **arguments)))
    out = exported(run, extension)
    assert json.loads((out / "config.json").read_text())["rope_scaling"]["rope_type"] == "proportional"
    assert_equal_logits(run, transformers.LlamaForCausalLM.from_pretrained(out).eval(), extension)


@pytest.mark.parametrize(
    ("cfg", "extension", "said"),
    [
        (job(node("encoding", "alibi")), {}, "encoding=alibi has no place in the format: it knows encoding=rope"),
        (job(method("encoding", "rope", fraction=0.5)), {}, "encoding.fraction=0.5"),
        (job(method("encoding", "rope", resonance=True)), {}, "encoding.resonance=True"),
        (job(method("encoding", "p_rope", p=0.0)), {}, "turns no pair"),
        (job(method("encoding", "p_rope")), method("extension", "yarn", **FIXED), "choose none, pi, ntk or abf"),
        (job(model={"qk_norm": "l2"}), {}, "model.qk_norm=l2"),
        (job(model={"qk_norm": "rms", "qkv_bias": True}), {}, "rms or biases"),
        (job(model={"n_head": 3, "head_dim": 8}), {}, "no multiple of model.n_head=3"),
        (job(train={"length": 32, "scale_attention": node("scale_attention", "ssmax")}), {}, "train.scale_attention=ssmax"),
        (job(), node("extension", "rerope"), "extension=rerope is no set of frequencies"),
        (job(), method("extension", "window", window=10**6), "extension=window is no set of frequencies"),
        (job(), node("extension", "recompute_window"), "extension=recompute_window is no set of frequencies"),
        (job(), method("extension", "longrope", **FIXED, exact_first=4), "extension=longrope is no set of frequencies"),
        (job(), node("extension", "pi"), "add extension.mode=fixed extension.target_len=TOKENS"),
        (job(), node("extension", "yarn"), "add extension.mode=fixed extension.target_len=TOKENS"),
    ],
    ids=str,
)
def test_what_the_format_cannot_say_is_refused(tmp_path, cfg, extension, said):
    run = trained(tmp_path, cfg)
    with pytest.raises(ConfigError, match=said.replace(".", r"\.")):
        exported(run, extension)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"run": None}, "give run=results/runs/ID and out=FOLDER"),
        ({"out": None}, "give run=results/runs/ID and out=FOLDER"),
        ({"run": "/nowhere"}, "holds no finished training"),
        ({"out": str(CONFIGS)}, "not empty"),
        ({"scale_attention": node("scale_attention", "log_n")}, "scale_attention=log_n has no place"),
    ],
)
def test_an_export_that_is_not_one_thing_is_refused(tmp_path, changed, said):
    with pytest.raises(ConfigError, match=said):
        exported(trained(tmp_path, job()), **changed)


def test_a_damaged_training_is_not_exported(tmp_path):
    run = trained(tmp_path, job())
    content = run.weights.read_bytes()
    run.weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(RunError, match="damaged"):
        exported(run)


SIZES = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": TRAIN_LEN,
}  # fmt: skip
THEIRS = {
    "Llama": {"tie_word_embeddings": True, "rms_norm_eps": 1e-3},
    "Mistral": {"head_dim": 12, "sliding_window": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "Qwen2": {"bos_token_id": None},
    "Qwen3": {"head_dim": 16},
}


def checkpoint(folder: Path, kind: str = "Llama", shard: str = "1GB", dtype: torch.dtype = torch.float32, **changed) -> Path:
    """A random model of theirs, on disk."""
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **THEIRS[kind], **changed})
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    randomize(model)
    model.to(dtype).save_pretrained(folder / kind, max_shard_size=shard)
    return folder / kind


def adopted(path: Path, **changed) -> dict:
    cfg = {**job(model={"path": str(path)}, train={"length": TrainConfig().length}, cache_dir=str(path.parent)), **changed}
    return resolve(hf_import.adopt(cfg))


def imported(path: Path) -> Run:
    cfg = adopted(path)
    run = Run(path.parent / run_id(cfg, "f"))
    with run.lock():
        hf_weights.take(run, cfg, cfg["model"]["checkpoint"]["vocab_size"], "cpu", "f")
    assert run.finished and run.provenance.exists()
    return run


@pytest.mark.parametrize("kind", THEIRS)
def test_an_imported_checkpoint_is_the_same_function_and_comes_back_as_it_was(tmp_path, kind):
    path = checkpoint(tmp_path, kind, shard="10KB")
    assert (path / "model.safetensors.index.json").exists()
    run = imported(path)
    assert run.id.startswith(f"hf-{TRAIN_LEN}-s0-")
    theirs = getattr(transformers, f"{kind}ForCausalLM").from_pretrained(path).eval()
    assert_equal_logits(run, theirs)

    out = exported(run)
    before = {name: value for file in path.glob("*.safetensors") for name, value in load_file(file).items()}
    after = load_file(out / "model.safetensors")
    assert before.keys() == after.keys() and all(torch.equal(value, after[name]) for name, value in before.items())
    assert_equal_logits(run, transformers.AutoModelForCausalLM.from_pretrained(out).eval())


def test_16_bit_weights_stay_so_on_disk_and_are_read_in_32(tmp_path):
    run = imported(checkpoint(tmp_path, dtype=torch.bfloat16))
    assert {value.dtype for value in load_file(run.weights).values()} == {torch.bfloat16}
    assert load_model(run, run.read_config(), VOCAB, "cpu").embed_tokens.weight.dtype == torch.float32
    assert json.loads((exported(run) / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_a_config_of_earlier_transformers_is_read(tmp_path):
    path = checkpoint(tmp_path, "Mistral")
    config = json.loads((path / "config.json").read_text())
    del config["rope_parameters"], config["head_dim"]
    old = {"rope_theta": 777.0, "rope_scaling": None, "hidden_size": 48, "torch_dtype": "float16"}
    (path / "config.json").write_text(json.dumps({**config, **old}))
    cfg = adopted(path)
    assert cfg["encoding"]["base"] == 777.0 and cfg["model"]["head_dim"] is None


def test_identity_is_the_content_and_the_length_and_neither_path_nor_recipe(tmp_path):
    first = adopted(checkpoint(tmp_path / "a"))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    recipe = {"length": TrainConfig().length, "steps": 7, "lr": 0.5}
    assert run_id(adopted(tmp_path / "b/Llama", seed=5, train=recipe), "f") == run_id(first, "f")
    assert run_id(adopted(tmp_path / "b/Llama", train={"length": 16}), "f").startswith("hf-16-")
    assert adopted(tmp_path / "b/Llama", train={"length": [64]})["train"]["length"] == [64]
    checkpoint(tmp_path / "b", rms_norm_eps=1e-4)
    assert run_id(adopted(tmp_path / "b/Llama"), "f") != run_id(first, "f")


@pytest.mark.parametrize(
    ("config", "changed", "said"),
    [
        ({"model_type": "gpt2"}, {}, "type gpt2, and only llama, mistral, qwen2, qwen3"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0}}, {}, r"extended already \(rope_type=llama3\)"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, {}, r"extended already \(rope_type=linear\)"),
        ({"partial_rotary_factor": 0.5}, {}, "turns 0.5 of each head"),
        ({"hidden_act": "gelu"}, {}, "hidden_act=gelu"),
        ({"attention_bias": True}, {}, "attention_bias=True"),
        ({"quantization_config": {"bits": 4}}, {}, "quantization_config"),
        ({"hidden_size": None}, {}, "does not say hidden_size"),
        ({"model_type": "mistral", "sliding_window": 100}, {}, "the last 100 alone"),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}, {}, "the last 64 alone"),
        ({}, {"encoding": node("encoding", "alibi")}, "encoding=alibi is not what"),
        ({}, {"encoding": method("encoding", "rope", base=5e5)}, "encoding.base=500000.0"),
        ({}, {"encoding": method("encoding", "rope", layout="interleaved")}, "encoding.layout=interleaved"),
        ({}, {"model": {"path": "/nowhere"}}, "/nowhere is no folder with a config.json"),
        ({}, {"model": {"path": ""}}, "add model.path=FOLDER"),
        ({}, {"train": {"length": 64, "scale_attention": node("scale_attention", "ssmax")}}, "train.scale_attention was not trained"),
    ],
    ids=str,
)
def test_a_checkpoint_that_is_another_model_is_refused(tmp_path, config, changed, said):
    path = checkpoint(tmp_path)
    written = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**written, **config}))
    with pytest.raises(ConfigError, match=said):
        hf_import.check_window(adopted(path, **changed))


def test_a_window_that_nothing_evaluated_exceeds_is_no_obstacle(tmp_path):
    path = checkpoint(tmp_path, "Mistral", sliding_window=32)
    hf_import.check_window(adopted(path, train={"length": 16}, evaluate={"lengths": [16, 32], "max_length": 32}))
    # Layers from the 28th on, of which there are none.
    config = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 28}
    hf_import.check_window(adopted(checkpoint(tmp_path, "Qwen2", **config)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda weights: weights.pop("model.norm.weight"), "norm.weight is missing"),
        (lambda weights: weights.update({"model.norm.weight": torch.ones(31)}), r"norm.weight is \[31\]"),
        (lambda weights: weights.update({"model.norm.weight": torch.ones(32, dtype=torch.int8)}), "of torch.int8"),
        (lambda weights: weights.update({"model.adapter.weight": torch.ones(2)}), "holds model.adapter.weight"),
        (lambda weights: weights.update({"lm_head.weight": torch.ones(2), "model.layers.0.rotary_emb.inv_freq": torch.ones(2)}), None),
        (None, "cannot be read"),
    ],
)
def test_weights_that_are_not_those_described_are_refused(tmp_path, change, said):
    from safetensors.torch import save_file

    file = checkpoint(tmp_path) / "model.safetensors"
    weights = load_file(file)
    if change:
        change(weights)
        save_file(weights, file)
    else:
        file.write_bytes(b"nothing of the kind")
    if said is None:
        assert imported(file.parent).finished
        return
    with pytest.raises(ConfigError, match=said):
        imported(file.parent)
    file.unlink()
    with pytest.raises(ConfigError, match="holds no model.safetensors"):
        adopted(file.parent)


@pytest.mark.parametrize(
    ("ids", "bos", "rows", "theirs", "said"),
    [
        (50, False, 50, None, None),
        (256, False, 300, None, None),
        (151665, True, 152064, 7, None),
        (300, False, 256, None, "has 300 ids"),
        (256, False, 32000, None, "give data.tokenizer=DIR"),
        (50, True, 50, None, "asks for a BOS token"),
    ],
)
def test_the_tokenizer_has_to_be_the_checkpoints(ids, bos, rows, theirs, said):
    corpus = Corpus(None, None, None, "f", "local", "t", ids + bos, ids if bos else None, None)
    cfg = {"data": {"tokenizer": "t"}, "model": {"path": "DIR", "checkpoint": {"vocab_size": rows, "bos": theirs}}}
    if said:
        with pytest.raises(ConfigError, match=said):
            hf_import.fit_corpus(corpus, cfg)
        return
    fitted = hf_import.fit_corpus(corpus, cfg)
    assert fitted.vocab_size == rows and fitted.bos == theirs
    assert hf_import.fit_corpus(corpus, {"model": {}}) is corpus


def test_there_and_back_on_the_command_line(tmp_path, text_folder):
    path = checkpoint(tmp_path, "Llama", vocab_size=300, max_position_embeddings=16)
    common = ["data=local", f"data.path={text_folder}", f"results_dir={tmp_path}/runs", f"cache_dir={tmp_path}/cache", "device=cpu"]
    common += ["log.mode=disabled", "evaluate.windows=8", "evaluate.lengths=[16,32]", "evaluate.max_length=64"]

    def call(script: str, *overrides: str, code: int = 0) -> subprocess.CompletedProcess:
        command = [sys.executable, str(CONFIGS.parent / "scripts" / f"{script}.py"), *overrides, *common]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
        assert done.returncode == code and "Traceback" not in done.stderr, f"{done.stdout}\n{done.stderr}"
        return done

    assert "add model.path=FOLDER" in call("run", "model=hf", code=2).stderr
    chosen = ["model=hf", f"model.path={path}", "extension=pi", "data.tokenizer=bytes", "data.bos=true"]
    call("run", *chosen)
    (run,) = (tmp_path / "runs").glob("hf-16-s0-*")
    (rows,) = (json.loads(file.read_text())["rows"] for file in run.glob("evals/fixed_targets/pi+none-*.json"))
    assert [row["length"] for row in rows] == [16, 32] and all(row["train_len"] == 16 and row["nll"] > 0 for row in rows)
    assert len(list(run.glob("evals/fixed_targets/recompute_window+none-*.json"))) == 2

    shutil.rmtree(path)
    call("run", f"run={run}", "extension=ntk", "scale_attention=log_n")
    assert list(run.glob("evals/fixed_targets/ntk+log_n-*.json"))
    arguments = ["extension=yarn", "extension.mode=fixed", "extension.target_len=64"]
    said = call("export_hf", f"run={run}", f"out={tmp_path}/out", *arguments).stdout
    assert "LlamaForCausalLM" in said and "rope_type yarn, up to 64 tokens" in said and "no tokenizer" in said
    assert json.loads((tmp_path / "out/config.json").read_text())["bos_token_id"] == 1
    assert "not empty" in call("export_hf", f"run={run}", f"out={tmp_path}/out", code=2).stderr


def test_a_tokenizer_of_the_corpus_comes_along(tmp_path, text_folder):
    source = {"_target_": "posbench.data.local.LocalFiles", "column": "text", "validation_share": 0.05, "test_share": 0.1}
    data = {"tokenizer": "bpe", "vocab_size": 280, "bos": False, "name": "local", "path": str(text_folder), "source": source}
    out = exported(trained(tmp_path, job(data=data)), cache_dir=str(tmp_path / "cache"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    text = "train document 3 says word 7 and number 9."
    from posbench.data import prepare
    from posbench.data.tokenizers import load_tokenizer

    ours = load_tokenizer("bpe-280", prepare(data, tmp_path / "cache").folder)
    assert tokenizer(text)["input_ids"] == ours.encode([text])[0][0].tolist() and tokenizer.decode(tokenizer(text)["input_ids"]) == text
