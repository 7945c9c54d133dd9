"""scripts/harness.py: what it asks for, and, where lm-evaluation-harness is installed, a local task
with and without an extension.
"""

import importlib.util
import json
import re
from pathlib import Path

import pytest
import torch
from families import tiny, transformers
from script_calls import call
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from posbench.common.errors import ConfigError
from posbench.config.compose import Request
from posbench.data.tokenizers import pretrained_json
from posbench.model.inplace.extend import hook_of
from posbench.pretrained.checkpoint import Checkpoint
from posbench.tools.harness import command
from posbench.tools.harness.command import (
    _check_length,
    _longest_text,
    _prefix_without_bos,
    _run_tasks,
    _tokenizer_of,
    _usual_path,
    _write_tasks,
    their_tokenizer,
)

BLANK = "\u2581"  # of SentencePiece
LM_EVAL = importlib.util.find_spec("lm_eval") is not None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny checkpoint of random weights, with a tokenizer of single bytes."""
    path = tmp_path_factory.mktemp("checkpoint")
    tiny("gpt_neox", vocab_size=258, max_position_embeddings=512).save_pretrained(path)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[])
    )
    tokenizer.pre_tokenizer, tokenizer.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def sentencepiece() -> bytes:
    """A tokenizer.json of single characters in the form of Llama 2's: a blank stands before every
    text, and decoding removes one.
    """
    tokens = ["<unk>", "<s>", *(f"<0x{value:02X}>" for value in range(256)), BLANK]
    tokens += map(chr, range(33, 127))
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>")
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(BLANK), normalizers.Replace(" ", BLANK)]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(BLANK, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>"])
    return tokenizer.to_str().encode()


def test_an_answer_keeps_its_blank_in_a_tokenizer_of_sentencepiece(tmp_path):
    raw = {"evaluate": {"lengths": [600], "windows": 3, "seed": 0}}
    assert _write_tasks("passkey", sentencepiece(), raw, tmp_path) == ["passkey_600"]
    for line in (tmp_path / "passkey_600.jsonl").read_text().splitlines():
        row = json.loads(line)
        key = re.search(r"The pass key is (\d+)\. Remember it", row["prompt"])[1]
        assert row["prompt"].endswith("The pass key is") and row["answer"] == f" {key}"


def test_a_typed_tokenizer_is_taken_and_asked_for_where_there_is_none(tmp_path, folder):
    default = {"data": {"tokenizer": "bpe"}}  # of data=pysource
    bare = Checkpoint(str(tmp_path), tmp_path)
    with pytest.raises(ConfigError, match="has no tokenizer.json.*add data.tokenizer=FOLDER"):
        _tokenizer_of(bare, default)
    own = (folder / "tokenizer.json").read_bytes()
    assert pretrained_json(_tokenizer_of(Checkpoint(str(folder), folder), default)) == own
    other = tmp_path / "tokenizer.json"
    other.write_bytes(sentencepiece())
    typed = {"data": {"tokenizer": str(other)}}
    for checkpoint in (bare, Checkpoint(str(folder), folder)):
        assert pretrained_json(_tokenizer_of(checkpoint, typed)) == sentencepiece()


def test_results_of_two_checkpoints_have_two_files():
    raw = {
        "results_dir": "results/runs",
        "extension": {"_target_": "posbench.extensions.none.NoExtension"},
        "scale_attention": {"_target_": "posbench.scale_attention.none.NoScale"},
        "evaluate": {},
        "include": None,
        "data": {"tokenizer": "bpe"},
    }

    def path(name: str, place: str) -> Path:
        return _usual_path(Checkpoint(name, Path(place)), raw, {})

    places = [
        "/m/Llama-3.1-8B",
        "/m/Llama-3.2-1B",
        "/one/final",
        "/two/final",
        "/m/Qwen2.5-0.5B.Q4_0.gguf",
    ]
    paths = [path(place, place) for place in places]
    paths.append(path("org/SmolLM2-135M@ab12", "/hub/snapshots/ab12"))
    assert len(set(paths)) == len(paths)
    assert [file.parent.name for file in paths] == [
        "Llama-3.1-8B",
        "Llama-3.2-1B",
        "final",
        "final",
        "Qwen2.5-0.5B.Q4_0",
        "SmolLM2-135M",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "add model.path=FOLDER"),
        (["tasks=passkey"], "must be a list of names"),
        (["tasks=[]"], "must be a list of names"),
        (["model.own_scaling=false"], "model.own_scaling=false has no effect"),
        (["evaluate.tasks=[niah_single_1]"], "give tasks=[niah_single_1], or evaluate with"),
        (["evaluate.chat=true"], "evaluate.chat=true has no effect on scripts/harness.py"),
        (["evaluate.protocol=accuracy"], "evaluate.protocol=accuracy has no effect"),
        (["tasks=[niah_single_2]"], "tasks=niah_single_2 takes its haystack from the documents"),
    ],
)
def test_words_that_would_do_nothing_are_refused(
    tmp_path, capfd, monkeypatch, folder, words, message
):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: True if name == "lm_eval" else find_spec(name, *more),
    )
    done = call(capfd, tmp_path, "harness", *([f"model.path={folder}"] if words else []), *words)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(("words", "train_len"), [([], 512), (["train.length=64"], 64)])
def test_a_typed_training_length_is_taken(tmp_path, capfd, monkeypatch, folder, words, train_len):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: True if name == "lm_eval" else find_spec(name, *more),
    )
    seen = []

    def run_nothing(model, *_):
        seen.append(hook_of(model).train_len)
        return {}

    monkeypatch.setattr(command, "_run_tasks", run_nothing)
    words = [*words, "extension=yarn", "target_len=1024", "device=cpu"]
    done = call(capfd, tmp_path, "harness", f"model.path={folder}", *words)
    assert (done.returncode or 0) == 0, done.stderr
    assert seen == [train_len]


def test_a_run_is_to_be_exported_first(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: True)
    request = Request([{"run": "results/runs/ID", "model": {}}], {}, False)
    with pytest.raises(ConfigError, match=r"export_hf.py run=results/runs/ID out=FOLDER\.$"):
        command.harness(request)


@pytest.mark.skipif(LM_EVAL, reason="lm-eval is installed")
def test_without_lm_eval_it_says_what_to_install(tmp_path, capfd, folder):
    done = call(capfd, tmp_path, "harness", f"model.path={folder}")
    assert done.returncode == 2 and "pip install 'posbench[harness]'" in done.stderr


@pytest.mark.skipif(not LM_EVAL, reason="lm-eval is not installed: pip install 'posbench[harness]'")
def test_a_local_task_with_and_without_an_extension(tmp_path, capfd, monkeypatch, folder):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    words = [
        "extension=none,yarn",
        "evaluate.lengths=[600]",
        "evaluate.windows=3",
        "device=cpu",
        "evaluate.dtype=fp32",
    ]
    done = call(capfd, tmp_path, "harness", "-m", f"model.path={folder}", *words)
    assert done.returncode == 0, done.stderr
    results = [
        json.loads(path.read_text())
        for path in sorted((tmp_path / "results/harness").rglob("*.json"))
    ]
    assert len(results) == 2 and "passkey_600" in done.stdout
    done = call(capfd, tmp_path, "harness", f"model.path={folder}", "tasks=[passkeys]")
    assert done.returncode == 2 and "passkey?" in done.stderr
    assert all(
        result["dtype"] == "fp32"
        and result["max_length"] == 600
        and result["results"]["passkey_600"]["acc,none"] == 0
        for result in results
    )


def test_the_bos_of_the_harness_is_a_token_of_a_text(tmp_path):
    """With single characters as tokens, a text of 600 tokens and its last target are the blank at
    its start and 600 characters, with a BOS 599.
    """
    raw = {"evaluate": {"lengths": [600], "windows": 1, "seed": 0}}
    for bos, characters in ((None, 600), (1, 599)):
        _write_tasks("passkey", sentencepiece(), raw, tmp_path, bos)
        row = json.loads((tmp_path / "passkey_600.jsonl").read_text())
        assert len(row["prompt"] + row["answer"]) == characters


def test_texts_that_the_harness_would_cut_are_refused():
    raw = {"evaluate": {"lengths": None}}
    with pytest.raises(ConfigError, match=r"1024 tokens here.* at 512: add evaluate.lengths=\[512"):
        _check_length("passkey", raw, 512)
    _check_length("passkey", raw, 1024)
    config = transformers.MptConfig(max_seq_len=4096)
    assert _longest_text(config, None) == 4096 and _longest_text(config, 8192) == 8192


@pytest.mark.skipif(not LM_EVAL, reason="lm-eval is not installed: pip install 'posbench[harness]'")
def test_the_longest_text_begins_with_the_bos(tmp_path, monkeypatch, folder):
    from lm_eval.models.huggingface import HFLM

    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 256)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    sizes = {"vocab_size": 258, "max_position_embeddings": 600}
    model = tiny("gpt_neox", **sizes, bos_token_id=256, eos_token_id=257)
    read = []
    model_call = HFLM._model_call
    monkeypatch.setattr(
        HFLM,
        "_model_call",
        lambda self, ids, *more: read.append(ids) or model_call(self, ids, *more),
    )
    raw = {
        "tasks": ["passkey"],
        "evaluate": {"lengths": [600], "windows": 1, "seed": 0},
        "data": {"tokenizer": "bpe"},
        "batch": 1,
        "limit": None,
        "include": None,
    }
    _run_tasks(model, Checkpoint(str(tmp_path), tmp_path), raw, None)
    assert [(ids.shape[-1], int(ids[0, 0])) for ids in read] == [(600, 256)]


@pytest.mark.skipif(not LM_EVAL, reason="lm-eval is not installed: pip install 'posbench[harness]'")
def test_a_text_is_scored_whole_by_a_model_without_bos_and_eos(folder):
    """As an export of a training. A line's end is byte 10, whose letter in ByteLevel is U+010A."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    model = tiny("llama", vocab_size=258)
    model.config.bos_token_id = model.config.eos_token_id = None
    tokenizer = their_tokenizer((folder / "tokenizer.json").read_bytes(), model)
    prefix = _prefix_without_bos(tokenizer)
    assert prefix == sorted(pre_tokenizers.ByteLevel.alphabet()).index("\u010a")
    reader = HFLM(pretrained=model, tokenizer=tokenizer, prefix_token_id=prefix)
    (loss,) = reader.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, ("abc",), 0)])
    ids_T = torch.tensor([prefix, *tokenizer.encode("abc")])
    log_p_TV = model(ids_T[None, :-1]).logits[0].log_softmax(dim=-1)
    assert loss == pytest.approx(float(log_p_TV.gather(1, ids_T[1:, None]).sum()), rel=1e-4)


@pytest.mark.skipif(not LM_EVAL, reason="lm-eval is not installed: pip install 'posbench[harness]'")
def test_generation_pads_left_and_is_that_of_each_text_alone(folder):
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    import posbench

    model = posbench.extend(
        tiny("gpt_neox", vocab_size=258, max_position_embeddings=512), "yarn", target_len=2048
    )
    tokenizer = their_tokenizer((folder / "tokenizer.json").read_bytes(), model)
    texts = ["a short one", "a text that is longer than the others " * 20, "a third"]

    def generated(batch: int) -> list[str]:
        reader = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch)
        settings = {"until": ["\n\n\n\n"], "max_gen_toks": 8, "do_sample": False}
        return reader.generate_until(
            [Instance("generate_until", {}, (text, dict(settings)), 0) for text in texts]
        )

    assert generated(3) == generated(1)
