"""Checkpoints in Hugging Face format, read: transformers itself is the judge."""

import json
import os
import re
import shutil
import subprocess

import pytest
import script_calls
import torch
from hf_models import (
    TRAIN_LEN,
    VOCAB,
    adopted,
    assert_equal_logits,
    checkpoint,
    exported,
    imported,
    job,
    transformers,
)
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import posbench
from posbench.common import machine
from posbench.common.errors import RunError
from posbench.common.machine import multiplies_bf16
from posbench.config.identity import run_id
from posbench.config.schema import JobConfig, ModelConfig, TrainConfig
from posbench.data.corpus import Corpus, fit_corpus
from posbench.model.build import load_model
from posbench.position.trusted import trained_config
from posbench.runs.directory import Run
from posbench.sweep import take_checkpoint as hf_weights


@pytest.mark.parametrize("kind", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_an_imported_checkpoint_is_the_same_function_and_comes_back_as_it_was(tmp_path, kind):
    path = checkpoint(tmp_path, kind, shard="10KB")
    assert (path / "model.safetensors.index.json").exists()
    run = imported(path)
    assert run.id.startswith(f"hf-{TRAIN_LEN}-s0-")
    theirs = getattr(transformers, f"{kind}ForCausalLM").from_pretrained(path).eval()
    assert_equal_logits(run, theirs)

    out = exported(run)
    before = {
        name: value
        for file in path.glob("*.safetensors")
        for name, value in load_file(file).items()
    }
    after = load_file(out / "model.safetensors")
    assert before.keys() == after.keys() and all(
        torch.equal(value, after[name]) for name, value in before.items()
    )
    assert_equal_logits(run, transformers.AutoModelForCausalLM.from_pretrained(out).eval())


def test_16_bit_weights_are_read_in_32_and_exported_as_they_are(tmp_path):
    run = imported(checkpoint(tmp_path, dtype=torch.bfloat16))
    assert not run.weights.exists()
    assert (
        load_model(run, trained_config(run), VOCAB, "cpu").embed_tokens.weight.dtype
        == torch.float32
    )
    assert json.loads((exported(run) / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_identity_is_the_content_and_the_length_and_neither_path_nor_recipe_nor_machine(
    tmp_path, monkeypatch
):
    first = adopted(checkpoint(tmp_path / "a"))
    monkeypatch.setattr(machine, "multiplies_bf16", lambda: not multiplies_bf16())
    assert run_id(adopted(tmp_path / "a/Llama").as_dict(), "f") == run_id(first.as_dict(), "f")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    recipe = {"length": TrainConfig().length, "steps": 7, "lr": 0.5}
    assert run_id(adopted(tmp_path / "b/Llama", seed=5, train=recipe).as_dict(), "f") == run_id(
        first.as_dict(), "f"
    )
    assert run_id(adopted(tmp_path / "b/Llama", train={"length": 16}).as_dict(), "f").startswith(
        "hf-16-"
    )
    assert adopted(tmp_path / "b/Llama", train={"length": [64]}).train.length == [64]
    checkpoint(tmp_path / "b", rms_norm_eps=1e-4)
    assert run_id(adopted(tmp_path / "b/Llama").as_dict(), "f") != run_id(first.as_dict(), "f")


def test_a_head_of_another_size_and_stored_frequencies_are_passed_over(tmp_path):
    file = checkpoint(tmp_path) / "model.safetensors"
    beside = {
        "lm_head.weight": torch.ones(2),
        "model.layers.0.rotary_emb.inv_freq": torch.ones(2),
    }
    save_file({**load_file(file), **beside}, file)
    assert imported(file.parent).finished


def test_a_tied_checkpoint_that_stores_its_head_alone_is_read(tmp_path):
    path = checkpoint(tmp_path, tie_word_embeddings=True)
    weights = load_file(path / "model.safetensors")
    before = adopted(path)
    expected = load_model(imported(path), before, VOCAB, "cpu").state_dict()
    weights["lm_head.weight"] = weights.pop("model.embed_tokens.weight")
    save_file(weights, path / "model.safetensors")
    loaded = load_model(imported(path), adopted(path), VOCAB, "cpu").state_dict()
    assert loaded.keys() == expected.keys() and all(
        torch.equal(value, loaded[name]) for name, value in expected.items()
    )
    weights["model.embed_tokens.weight"] = weights["lm_head.weight"].clone()
    save_file(weights, path / "model.safetensors")
    assert imported(path).finished


def test_a_run_notices_that_its_checkpoint_changed(tmp_path):
    path = checkpoint(tmp_path)
    run, file = imported(path), path / "model.safetensors"
    assert sorted(entry.name for entry in run.path.iterdir()) == [
        ".lock",
        "config.yaml",
        "provenance.json",
        "train.json",
    ]
    content, stat = file.read_bytes(), file.stat()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(RunError, match="changed .SHA-256 .*: put them back"):
        load_model(run, trained_config(run), VOCAB, "cpu")
    with pytest.raises(RunError, match="changed"):
        exported(run)


def test_weights_that_change_after_the_run_was_named_are_not_taken(tmp_path):
    path = checkpoint(tmp_path)
    file, cfg = path / "model.safetensors", adopted(path)
    before, content = file.stat(), file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # as some tools that copy do
    run = Run(tmp_path / "run")
    with (
        run.lock(),
        pytest.raises(
            RunError, match="changed after run was named by them: run the same command again"
        ),
    ):
        hf_weights.take_checkpoint(run, cfg, VOCAB, "cpu", "f")
    assert not run.finished and not run.weights.exists()
    assert adopted(path).model.checkpoint != cfg.model.checkpoint
    assert imported(path).finished


def tokenized(ids: int, bos: bool, rows: int, theirs: int | None) -> tuple[Corpus, JobConfig]:
    """A corpus whose tokenizer has so many ids, and a job on a checkpoint of so many rows whose BOS
    is `theirs`.
    """
    corpus = Corpus(None, None, None, "f", "local", "t", ids + bos, ids if bos else None, None)
    model = ModelConfig(path="DIR", checkpoint={"vocab_size": rows, "bos": theirs})
    return corpus, JobConfig(data={"tokenizer": "t"}, model=model)


@pytest.mark.parametrize(
    ("ids", "bos", "rows", "theirs"),
    [(256, False, 300, None), (151665, True, 152064, 7), (50257, False, 51200, None)],
)
def test_a_tokenizer_takes_the_checkpoints_rows_and_bos(ids, bos, rows, theirs):
    corpus, cfg = tokenized(ids, bos, rows, theirs)
    fitted = fit_corpus(corpus, cfg)
    assert fitted.vocab_size == rows and fitted.bos == theirs
    assert fit_corpus(corpus, JobConfig()) is corpus


def test_there_and_back_on_the_command_line(tmp_path, text_folder, capfd):
    path = checkpoint(tmp_path, "Llama", vocab_size=300, max_position_embeddings=16)
    common = [
        "data=local",
        f"data.path={text_folder}",
        f"results_dir={tmp_path}/runs",
        f"cache_dir={tmp_path}/cache",
        "device=cpu",
    ]
    common += [
        "log.mode=disabled",
        "evaluate.windows=8",
        "evaluate.lengths=[16,32]",
        "evaluate.max_length=64",
    ]

    def call(script: str, *overrides: str, code: int = 0) -> subprocess.CompletedProcess:
        done = script_calls.call(capfd, tmp_path, script, *overrides, *common)
        assert done.returncode == code and "Traceback" not in done.stderr, (
            f"{done.stdout}\n{done.stderr}"
        )
        return done

    assert "add model.path=FOLDER" in call("run", "model=hf", code=2).stderr
    chosen = [
        "model=hf",
        f"model.path={path}",
        "extension=pi",
        "data.tokenizer=bytes",
        "data.bos=true",
    ]
    output = call("run", *chosen, "check=true").stderr
    assert "check: one passage costs " in output and re.search(
        r"at 16 tokens differ from those of transformers by \d\.\de-0[678]", output
    )
    (run,) = (tmp_path / "runs").glob("hf-16-s0-*")
    (rows,) = (
        json.loads(file.read_text())["rows"]
        for file in run.glob("evals/fixed_targets/pi+none-*.json")
    )
    assert [row["length"] for row in rows] == [16, 32] and all(
        row["train_len"] == 16 and row["nll"] > 0 for row in rows
    )
    assert len(list(run.glob("evals/fixed_targets/recompute_window+none-*.json"))) == 2

    common.append("data.bos=true")
    path.rename(tmp_path / "moved")
    output = call("run", f"run={run}", "extension=ntk", code=1).stderr
    assert (
        "The weights of this run are no longer in model.path=" in output
        and "by run.py model=hf model.path=PATH" in output
    )
    (tmp_path / "moved").rename(path)
    call("run", f"run={run}", "extension=ntk", "scale_attention=log_n")
    assert list(run.glob("evals/fixed_targets/ntk+log_n-*.json"))
    call("run", f"run={run}", "evaluate.split=all")
    (eval_path,) = run.glob("evals/fixed_targets/none+none-*.json")
    nlls = [row["nll"] for row in json.loads(eval_path.read_text())["rows"]]
    loaded = posbench.load(run, device="cpu", cache_dir=tmp_path / "cache")
    settings = {"lengths": [16, 32], "windows": 8, "max_length": 64}
    assert (
        loaded.evaluate(split="all", **settings)["nll"].tolist()
        == nlls
        != loaded.evaluate(**settings)["nll"].tolist()
    )
    arguments = ["extension=yarn", "extension.mode=fixed", "extension.target_len=64"]
    output = call("export_hf", f"run={run}", f"out={tmp_path}/out", *arguments).stdout
    assert (
        "LlamaForCausalLM" in output
        and "rope_type yarn, up to 64 tokens" in output
        and "no tokenizer" in output
    )
    assert json.loads((tmp_path / "out/config.json").read_text())["bos_token_id"] == 1
    assert "not empty" in call("export_hf", f"run={run}", f"out={tmp_path}/out", code=2).stderr


def test_dry_refuses_weights_that_the_command_would_refuse(tmp_path, text_folder, capfd):
    path = checkpoint(tmp_path, "Llama", vocab_size=256)
    words = [
        "model=hf",
        f"model.path={path}",
        "data=local",
        f"data.path={text_folder}",
        "dry=true",
        f"cache_dir={tmp_path}/cache",
    ]
    words += [f"results_dir={tmp_path}/runs", "evaluate.lengths=[32,64]", "evaluate.max_length=64"]
    assert script_calls.call(capfd, tmp_path, "run", *words).returncode == 0
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    for script, more in (("run", []), ("advise", ["target=64"]), ("search_factors", ["target=64"])):
        typed = [word for word in words if script == "run" or not word.startswith("evaluate.")]
        done = script_calls.call(capfd, tmp_path, script, *typed, *more)
        assert (
            done.returncode == 2
            and "model.safetensors" in done.stdout + done.stderr
            and "Traceback" not in done.stderr
        ), done


@pytest.mark.parametrize("adds", [True, False])
def test_a_bos_that_is_left_out_is_said(tmp_path, capfd, adds):
    path = checkpoint(tmp_path, vocab_size=258, bos_token_id=256)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: at for at, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<s>"])
    if adds:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 256)]
        )
    tokenizer.save(str(path / "tokenizer.json"))
    imported(path)
    said = "without the BOS, token 256, that the tokenizer" in capfd.readouterr().err
    assert said == adds
    cfg = adopted(path, data={**job()["data"], "bos": True})
    run = Run(tmp_path / "with")
    with run.lock():
        hf_weights.take_checkpoint(run, cfg, 258, "cpu", "f")
    assert "without the BOS" not in capfd.readouterr().err
