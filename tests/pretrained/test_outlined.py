"""Checkpoints that transformers builds: taken, evaluated and kept like any other, with methods in
place.
"""

import importlib.util
import json
import math

import pytest
from families import TRAIN_LEN, VOCAB, difference, text, tiny
from hf_models import adopted, imported
from own_attention import OWN, dense_logits, tiny_own

from posbench.common.errors import ConfigError, RunError
from posbench.extensions.abf import Abf
from posbench.extensions.llama3 import Llama3
from posbench.extensions.longrope import Longrope
from posbench.extensions.rerope import Rerope
from posbench.model.build import load_model, make_encoding
from posbench.position.legality import verdict_of
from posbench.position.plan import make_plan
from posbench.position.trusted import trained_config
from posbench.pretrained.outline import outline_from_config
from posbench.scale_attention.none import NoScale

KINDS = ("gpt_neox", "gemma3_text", "gpt_oss", "gpt2", "opt", "deepseek_v3")
CHANGED = {
    "attention_bias": True,
    "hidden_act": "gelu",
    "mlp_bias": True,
    "partial_rotary_factor": 0.5,
}


def saved(tmp_path, kind, **changed):
    model = tiny(kind, **changed)
    model.save_pretrained(tmp_path / kind)
    return tmp_path / kind, model


def loaded(path):
    run = imported(path)
    return load_model(run, trained_config(run), VOCAB, "cpu")


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_another_family_is_read_as_transformers_reads_it(tmp_path, kind):
    path, original = saved(tmp_path, kind)
    cfg = adopted(path)
    assert cfg.encoding["kind"] == ("learned" if kind in ("gpt2", "opt") else "turned")
    assert cfg.train.length == TRAIN_LEN and cfg.model.checkpoint["vocab_size"] == VOCAB
    assert difference(loaded(path)(text(2, TRAIN_LEN)), original(text(2, TRAIN_LEN)).logits) < 1e-4


@pytest.mark.parametrize("kind", OWN)
def test_a_checkpoint_that_attends_by_itself_is_read_as_transformers_reads_it(tmp_path, kind):
    original = tiny_own(kind)
    original.save_pretrained(tmp_path)
    cfg = adopted(tmp_path)
    assert cfg.encoding["kind"] == ("alibi" if OWN[kind].slopes else "turned")
    assert (cfg.train.length, cfg.model.n_layer) == (TRAIN_LEN, 3)
    model = loaded(tmp_path)
    assert difference(model(text(2, TRAIN_LEN)), original(text(2, TRAIN_LEN)).logits) < 1e-5
    shape = model.encoding.shape
    assert (cfg.model.n_head, cfg.model.n_kv_head) == (shape.n_head, shape.n_kv_head)
    plan = make_plan(model.encoding, Rerope(), length=128)
    assert difference(model(text(1, 128), plan), dense_logits(kind, text(1, 128), "rerope")) < 1e-4


def test_the_first_falcons_and_blooms_are_outlined_by_their_older_configurations(tmp_path):
    falcon = {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "multi_query": True,
        "alibi": False,
    }
    bloom = {"n_embed": 64, "num_attention_heads": 4, "n_layer": 2, "seq_length": 2048}
    for kind, config, expected in (("falcon", falcon, "turned"), ("bloom", bloom, "alibi")):
        described = {**config, "model_type": kind, "vocab_size": VOCAB}
        read = outline_from_config(described, tmp_path / "config.json")
        assert (read.model.d_model, read.encoding["kind"], read.length) == (64, expected, 2048)


@pytest.mark.parametrize("key", CHANGED)
def test_a_llama_of_another_shape_is_built_by_transformers(tmp_path, key):
    path, original = saved(tmp_path, "llama", **{key: CHANGED[key]})
    assert "as_trained" in adopted(path).encoding["_target_"]
    assert difference(loaded(path)(text(1, 50)), original(text(1, 50)).logits) < 1e-4


def test_a_plan_acts_in_evaluation_as_in_the_model_itself(tmp_path):
    import posbench

    path, original = saved(tmp_path, "gpt_neox")
    model = loaded(path)
    plan = make_plan(model.encoding, Rerope(), length=90)
    assert (
        difference(
            model(text(1, 90), plan), posbench.extend(original, "rerope")(text(1, 90)).logits
        )
        < 1e-4
    )


def test_before_a_model_is_loaded_no_change_of_its_frequencies_is_called_none(tmp_path):
    turned = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.5}
    longest = 131072
    path, original = saved(
        tmp_path, "gpt_neox", rope_parameters=turned, max_position_embeddings=longest
    )
    # Of transformers: the last of these pairs makes no full turn in training.
    theta = original.gpt_neox.rotary_emb.inv_freq.tolist()
    assert theta[-1] * longest < 2 * math.pi
    encoding = make_encoding(adopted(path))
    extensions = (Abf(1e4), Llama3(), Longrope([1.0] * (len(theta) - 1) + [2.0]))
    for extension in extensions:
        verdict = verdict_of(encoding, extension, NoScale(encoding.shape), [2 * longest], True)
        assert verdict.noop is None
    more_than_a_head_has = Longrope([1.0] * 9)  # of its 16 channels
    with pytest.raises(ConfigError, match="give 8"):
        verdict_of(encoding, more_than_a_head_has, NoScale(encoding.shape), [2 * longest], True)


def without(tensor):
    def damage(path):
        from safetensors.torch import load_file, save_file

        content = load_file(path / "model.safetensors")
        save_file(
            {name: value for name, value in content.items() if name != tensor},
            path / "model.safetensors",
            {"format": "pt"},
        )

    return damage


DAMAGES = {
    "a tensor is missing": (
        without("gpt_neox.layers.1.attention.dense.weight"),
        "do not hold gpt_neox.layers.1.attention.dense.weight",
    ),
    "no weights": (
        lambda path: (path / "model.safetensors").unlink(),
        "holds no model.safetensors",
    ),
    "a damaged index": (
        lambda path: (
            (path / "model.safetensors").unlink(),
            (path / "model.safetensors.index.json").write_text("["),
        ),
        "is not JSON",
    ),
    "half a file": (
        lambda path: (path / "model.safetensors").write_bytes(b"\1" * 100),
        "cannot be read",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_damaged_is_refused_in_one_sentence(tmp_path, name):
    path, _ = saved(tmp_path, "gpt_neox")
    damage, message = DAMAGES[name]
    damage(path)
    with pytest.raises((ConfigError, RunError), match=message) as error:
        loaded(path)
    assert "\n" not in str(error.value)


def test_code_in_a_folder_is_not_run(tmp_path):
    path, _ = saved(tmp_path, "gpt_neox")
    config = json.loads((path / "config.json").read_text())
    trap = tmp_path / "ran"
    (path / "own.py").write_text(f"open({str(trap)!r}, 'w')\n")
    config |= {
        "model_type": "own_family",
        "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"},
    }
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="transformers does not read it"):
        loaded(path)
    assert not trap.exists()


def test_without_transformers_it_says_what_to_install(tmp_path, monkeypatch):
    path, _ = saved(tmp_path, "gpt_neox")
    run = imported(path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"posbench\[hf\]"):
        load_model(run, trained_config(run), VOCAB, "cpu")


def test_a_checkpoint_is_read_once_a_job_and_again_when_it_changed(tmp_path, monkeypatch):
    from posbench.data import sources

    path, _ = saved(tmp_path, "llama")
    read, hashed = [], sources.sha256_file
    monkeypatch.setattr(sources, "sha256_file", lambda file: read.append(file) or hashed(file))
    loaded(path)
    assert len(read) == 2, "once for the id, by the cache, and once now"
    first, content = (
        imported(path).read_summary()["sha256"],
        (path / "model.safetensors").read_bytes(),
    )
    (path / "model.safetensors").write_bytes(content[:-4] + b"\1\2\3\4")
    assert imported(path).read_summary()["sha256"] != first and len(read) > 2
