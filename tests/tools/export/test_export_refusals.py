"""Refusals of both directions: checkpoints whose description, files or weights are not read,
trainings and extensions that the format has no words for, and fine-tuned children.
"""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import CONFIGS, node
from hf_models import FIXED, VOCAB, adopted, checkpoint, exported, imported, job, method, trained
from safetensors.torch import load_file, save_file
from script_calls import call
from test_hf_export import FAMILIES, PARTLY_TURNED
from test_hf_finetune import LONGER, TUNED
from test_hf_finetune import YARN as TRAINED_YARN
from test_hf_finetune import checkpoint as chosen_checkpoint
from test_hf_import import tokenized

from posbench.common.errors import ConfigError
from posbench.data.corpus import fit_corpus
from posbench.encodings.as_trained import AsTrained
from posbench.encodings.none import NoEncoding
from posbench.position.geometry import Shape
from posbench.position.interfaces import Layer
from posbench.tools.export.command import rope_settings


def scaled(kind: str, **parameters) -> dict:
    return {
        "rope_parameters": {
            "rope_theta": 1e4,
            "original_max_position_embeddings": 16,
            "rope_type": kind,
            **parameters,
        }
    }


DESCRIBED = [  # changes of config.json, changes of the job, part of the message
    ({"model_type": "xglm"}, {}, "type xglm, whose attention"),
    (
        {"model_type": "gpt_neox", "hidden_size": "32"},
        {},
        "hidden_size='32', where a whole number above 0 belongs",
    ),
    ({"model_type": "gpt_neox", "vocab_size": None}, {}, "lacks vocab_size"),
    ({"model_type": "gpt_neox", "is_encoder_decoder": True}, {}, "with an encoder"),
    ({"quantization_config": {"bits": 4}}, {}, "quantization_config"),
    ({"hidden_size": None}, {}, "lacks hidden_size"),
    ({}, {"encoding": node("encoding", "alibi")}, "encoding=alibi is not model.path"),
    ({}, {"encoding": method("encoding", "rope", base=5e5)}, "encoding.base=500000.0"),
    (
        {},
        {"encoding": method("encoding", "rope", layout="interleaved")},
        "encoding.layout=interleaved",
    ),
    ({}, {"model": {"path": "/nowhere"}}, "/nowhere is not a folder with a config.json"),
    ({}, {"model": {"path": ""}}, "add model.path=FOLDER, FILE.gguf or a name"),
    ({}, {"encoding": method("encoding", "rope", window=5)}, "encoding.window=5"),
    ({}, {"encoding": method("encoding", "rope", unturned=[0])}, "encoding.unturned="),
    (
        {},
        {"train": {"length": 64, "scale_attention": node("scale_attention", "ssmax")}},
        "train.scale_attention was not trained",
    ),
    ({"is_causal": False}, {}, "is_causal=False, so queries see later tokens"),
    (
        {"transformers_weights": "other.safetensors"},
        {},
        "transformers_weights=other.safetensors, which is not read",
    ),
    (scaled("mrope", factor=2.0), {}, "rope_type=mrope, and only default, linear"),
    (scaled("llama3", factor=8.0), {}, "lacks low_freq_factor and high_freq_factor"),
    (scaled("linear", factor=0.5), {}, "factor=0.5, not above 1"),
    (
        scaled("longrope", factor=1.0, long_factor=[2.0] * 4, short_factor=[1.0] * 4),
        {},
        "factor=1, not above 1",
    ),
    (scaled("yarn", factor=4.0, beta_slow=6.0), {}, "beta_slow=6.0, more turns"),
    (
        {
            "model_type": "smollm3",
            "no_rope_layers": [0, 1],
            **scaled("proportional", partial_rotary_factor=0.5),
        },
        {},
        "rope_type=proportional and layers without RoPE",
    ),
]


@pytest.mark.parametrize(
    ("config", "changed", "message"), DESCRIBED, ids=[message for *_, message in DESCRIBED]
)
def test_a_checkpoint_that_is_another_model_is_refused(tmp_path, config, changed, message):
    path = checkpoint(tmp_path)
    written = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**written, **config}))
    with pytest.raises(ConfigError, match=message):
        adopted(path, **changed)


YARN, LINEAR = {"rope_type": "yarn", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}
WRONG = {
    "vocab_size": ("260", 0, 2.5, True, 10**30),
    "hidden_size": ({}, 10**9),
    "num_hidden_layers": ([2],),
    "num_attention_heads": (-4,),
    "num_key_value_heads": (0,),
    "head_dim": ("8",),
    "intermediate_size": (None,),
    "max_position_embeddings": (None, [32]),
    "sliding_window": (-1, "4096"),
    "max_window_layers": (None, -1),
    "bos_token_id": ([1], VOCAB),
    "rms_norm_eps": (None, float("nan")),
    "tie_word_embeddings": ("yes",),
    "rope_theta": (-1, float("inf")),
    "partial_rotary_factor": ("x",),
    "rope_scaling": (
        5,
        "yarn",
        ["yarn"],
        {**YARN, "factor": "4"},
        {**LINEAR, "factor": 1e308},
        {**LINEAR, "factor": 31.0},
    ),
    "rope_parameters": (
        5,
        ["yarn"],
        {"rope_type": 5},
        {"rope_type": ["yarn"]},
        {**YARN, "beta_fast": "32"},
        {**YARN, "truncate": "no"},
    ),
    "layer_types": (
        5,
        "full_attention",
        [],
        [5, 5],
        ["full_attention"],
        ["full_attention", "chunked_attention"],
    ),
    "model_type": (5, None, ["llama"]),
    "hidden_act": (5, ["silu"]),
    "quantization_config": ({"bits": 4}, "x"),
}
OF_QWEN3 = ("max_window_layers", "layer_types", "head_dim")
WRONG_TYPES = [(key, value) for key, values in WRONG.items() for value in values]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> dict[str, Path]:
    return {
        kind: checkpoint(tmp_path_factory.mktemp("checkpoints"), kind)
        for kind in ("Llama", "Qwen3")
    }


@pytest.mark.parametrize(
    ("key", "value"), WRONG_TYPES, ids=[f"{key}={value}"[:60] for key, value in WRONG_TYPES]
)
def test_a_config_of_wrong_types_is_refused_with_the_key(checkpoints, tmp_path, key, value):
    kind = "Qwen3" if key in OF_QWEN3 else "Llama"
    path = shutil.copytree(checkpoints[kind], tmp_path / "copy")
    written = json.loads((path / "config.json").read_text())
    config = {**written, "rope_parameters": None, key: value}
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ConfigError, match=r"again|choose another|without it|only llama|a checkpoint"
    ) as error:
        adopted(path)
    assert key.removeprefix("model_") in str(error.value) or "rope_type" in str(error.value)


NO_JSON = (b"", b"[]", b'{"a": \xff}')
NO_MAP = (b'{"weight_map": 5}', b'{"weight_map": {"a": 5}}', b'{"weight_map": {"a": "../b"}}')
FILES = [  # name, its content or None without it, part of the message
    *(
        (name, content, "(download|model of type|holds no)")
        for name in ("config.json", "model.safetensors.index.json")
        for content in (*NO_JSON, *NO_MAP)
    ),
    ("model.safetensors", None, "holds no model.safetensors"),
]


@pytest.mark.parametrize(
    ("name", "content", "message"), FILES, ids=[f"{name} {content}" for name, content, _ in FILES]
)
def test_a_file_that_cannot_be_read_is_refused_with_the_folder(
    checkpoints, tmp_path, name, content, message
):
    path = shutil.copytree(checkpoints["Llama"], tmp_path / "copy")
    if name != "config.json":
        (path / "model.safetensors").unlink()
    if content is not None:
        (path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message) as error:
        adopted(path)
    assert str(path) in str(error.value) and str(error.value).isprintable()


NORM, EMBEDDING = "model.norm.weight", "model.embed_tokens.weight"


def untie(weights: dict[str, torch.Tensor]) -> None:
    weights["lm_head.weight"] = weights[EMBEDDING].clone()
    weights[EMBEDDING][3, 4] += 1


WEIGHTS = [  # change of the weights, None for a file of something else; part of the message
    (lambda weights: weights.pop(NORM), "norm.weight is missing"),
    (lambda weights: weights.update({NORM: torch.ones(31)}), r"norm.weight is \[31\]"),
    (lambda weights: weights.update({NORM: torch.ones(32, dtype=torch.int8)}), "of I8"),
    (
        lambda weights: weights.update({"model.adapter.weight": torch.ones(2)}),
        "has model.adapter.weight",
    ),
    (untie, "tie_word_embeddings=true and another lm_head.weight"),
    (None, "cannot be read"),
]


@pytest.mark.parametrize(("change", "message"), WEIGHTS, ids=[message for _, message in WEIGHTS])
def test_weights_that_are_not_those_described_are_refused(tmp_path, change, message):
    file = checkpoint(tmp_path) / "model.safetensors"
    if change is None:
        file.write_bytes(b"nothing of the kind")
    else:
        weights = load_file(file)
        change(weights)
        save_file(weights, file)
    with pytest.raises(ConfigError, match=message):
        imported(file.parent)


TOKENIZERS = [  # ids, with a BOS; rows of the checkpoint, its BOS; part of the message
    (300, False, 256, None, "has 300 ids"),
    (256, False, 32000, None, "give data.tokenizer=DIR"),
    (256, True, 321, 7, "has 256 ids and model.path=DIR 321"),
    (50, True, 50, None, "needs a BOS token"),
]


@pytest.mark.parametrize(("ids", "bos", "rows", "theirs", "message"), TOKENIZERS)
def test_the_tokenizer_has_to_be_the_checkpoints(ids, bos, rows, theirs, message):
    corpus, cfg = tokenized(ids, bos, rows, theirs)
    with pytest.raises(ConfigError, match=message):
        fit_corpus(corpus, cfg)


def test_a_folder_without_a_tokenizer_is_not_named_as_one(tmp_path):
    """As an export of a training on bytes."""
    corpus, cfg = tokenized(1024, False, 256, None)
    cfg = replace(cfg, model=replace(cfg.model, path=str(tmp_path)))
    with pytest.raises(ConfigError, match="has no tokenizer.json, so give data.tokenizer=bytes"):
        fit_corpus(corpus, cfg)
    (tmp_path / "tokenizer.json").touch()
    with pytest.raises(ConfigError, match=f": give data.tokenizer={tmp_path}."):
        fit_corpus(corpus, cfg)


SCALED = {"scaling": method("extension", "pi", **FIXED), "scaling_len": 32}
YARN_TO_128 = method("extension", "yarn", **FIXED)
EXPORTED = [  # job of the training, what is typed otherwise, part of the message
    (job(node("encoding", "lerope")), {}, "encoding=lerope"),
    (
        job(node("encoding", "smollm3"), {"qk_norm": "rms"}),
        {},
        "encoding.unturned=[1] cannot be exported with model.qk_norm=rms",
    ),
    (
        job(node("encoding", "smollm3")),
        {"extension": YARN_TO_128},
        "add extension.temperature=false",
    ),
    (
        job(node("encoding", "alibi")),
        {},
        "encoding=alibi cannot be exported: the format has encoding=rope",
    ),
    (job(method("encoding", "rope", fraction=0.5)), {}, "encoding.fraction=0.5"),
    (job(method("encoding", "rope", resonance=True)), {}, "encoding.resonance=True"),
    (job(method("encoding", "p_rope", p=0.0)), {}, "turns no pair"),
    (job(method("encoding", "p_rope")), {"extension": YARN_TO_128}, "choose none, pi, ntk or abf"),
    (job(model={"qk_norm": "l2"}), {}, "model.qk_norm=l2"),
    (job(model={"output_gate": "headwise"}), {}, "model.output_gate=headwise"),
    (job(model={"qk_norm": "rms", "qkv_bias": True}), {}, "rms or biases"),
    (job(model={"n_head": 3, "head_dim": 8}), {}, "not a multiple of model.n_head=3"),
    (
        job(train={"length": 32, "scale_attention": node("scale_attention", "ssmax")}),
        {},
        "train.scale_attention=ssmax",
    ),
    (
        job(),
        {"extension": node("extension", "rerope")},
        "extension=rerope does not only change frequencies",
    ),
    (
        job(),
        {"extension": method("extension", "longrope", **FIXED, exact_first=4)},
        "extension=longrope does not only change frequencies",
    ),
    (
        job(),
        {"extension": method("extension", "dynamic_ntk", fed=4)},
        "does not only change frequencies",
    ),
    (
        job(),
        {"extension": node("extension", "pi")},
        "add extension.mode=fixed extension.target_len=TOKENS",
    ),
    (job(method("encoding", "rope", window=[4, None])), {}, "window=[4, None] cannot be exported"),
    (
        job(method("encoding", "rope", **SCALED)),
        {"extension": node("extension", "dynamic_ntk")},
        "a factor for each length",
    ),
    (job(), {"run": None}, "give run=results/runs/ID and out=FOLDER"),
    (job(), {"run": "/nowhere"}, "has no finished training"),
    (job(), {"out": str(CONFIGS)}, "not empty"),
    (
        job(),
        {"scale_attention": node("scale_attention", "log_n")},
        "scale_attention=log_n cannot be exported",
    ),
    # the last step's weights would be written under the name of an earlier one
    (job(), {"step": 7}, "step=7 does not choose from run="),
]


@pytest.mark.parametrize(
    ("cfg", "changed", "message"), EXPORTED, ids=[message for *_, message in EXPORTED]
)
def test_what_the_format_cannot_say_is_not_exported(tmp_path, cfg, changed, message):
    run = trained(tmp_path, cfg)
    with pytest.raises(ConfigError, match=re.escape(message)):
        exported(run, **changed)
    assert not (tmp_path / "out").exists()


SETTINGS = [  # model, extension, its arguments, part of the message
    *(
        (model, "yarn", FIXED, "extension=yarn has a temperature where nothing turns")
        for model in PARTLY_TURNED
    ),
    ("Phi3", "dynamic_ntk", {}, "extension=dynamic_ntk has a factor for each length"),
]


@pytest.mark.parametrize(
    ("model", "name", "arguments", "message"),
    SETTINGS,
    ids=[f"{model} {name}" for model, name, *_ in SETTINGS],
)
def test_a_type_of_model_has_no_settings_for_an_extension(
    tmp_path, model, name, arguments, message
):
    path = checkpoint(tmp_path, model.split()[0], **FAMILIES[model])
    original = json.loads((path / "config.json").read_text())
    with pytest.raises(ConfigError, match=message):
        rope_settings(adopted(path), method("extension", name, **arguments), original)


LONGER_TEXTS = [*TUNED, f"finetune.length={LONGER}"]
CHILDREN = {  # family, words, part of the message
    "positions of its own": (
        "gpt_neox",
        ["finetune=pose", "extension=yarn"],
        "choose finetune=longer",
    ),
    "a factor on logits": ("gpt_neox", ["finetune=head_scale"], "choose finetune=longer"),
    "no set of frequencies": (
        "gpt_neox",
        ["finetune=longer", "extension=rerope"],
        "not a fixed set of frequencies",
    ),
    "a table has no frequencies": ("gpt2", [*LONGER_TEXTS, "extension=yarn"], "no frequencies"),
    "a table has no longer texts": ("gpt2", LONGER_TEXTS, "has positions that"),
}


@pytest.mark.parametrize(("kind", "words", "message"), CHILDREN.values(), ids=CHILDREN)
def test_what_a_child_cannot_have_is_said_before_a_run_is_made(world, capfd, kind, words, message):
    done = call(capfd, world.root, "run", *chosen_checkpoint(world.root, kind), *words)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
    assert not list((world.root / "runs").glob("hf*"))


SHAPE = Shape(32, 1, 2, 2, 16)


def by_length() -> list[Layer]:
    layer = AsTrained(SHAPE).layers()[0]
    layer.encoding.traits &= ~layer.encoding.traits.SPECTRUM
    return [layer]


def unturned_and_local() -> list[Layer]:
    return [Layer(NoEncoding(SHAPE)), replace(AsTrained(SHAPE).layers()[0], window=8)]


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (by_length, "frequencies depend on the length"),
        (unturned_and_local, "No layer with an extension"),
    ],
)
def test_layers_that_an_extension_cannot_be_trained_into_are_refused(layers, message):
    with pytest.raises(ConfigError, match=message):
        AsTrained(SHAPE, measured=layers(), scaling=TRAINED_YARN, scaling_len=16)
