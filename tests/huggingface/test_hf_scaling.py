"""Checkpoints whose frequencies were scaled in training, or that have a sliding window: in, extended, and out again."""

import json
import math
from dataclasses import replace

import pytest
import torch
from conftest import node, small_shape
from hf_models import (
    FIXED,
    TRAIN_LEN,
    adopted,
    assert_equal_logits,
    checkpoint,
    exported,
    imported,
    job,
    method,
    theirs,
    trained,
)

from posbench.anatomy.dissect import dissect
from posbench.common.errors import ConfigError
from posbench.config.defaults import resolve
from posbench.config.identity import run_id
from posbench.encodings.hybrid import Hybrid
from posbench.encodings.rope import Rope
from posbench.extensions.ntk import Ntk
from posbench.extensions.yarn import Yarn
from posbench.huggingface.export import hf_config
from posbench.model.build import make_encoding
from posbench.position.geometry import Span
from posbench.position.instantiate import make, trained_config
from posbench.position.plan import make_plan
from posbench.scale_attention.none import NoScale

BEFORE = 12
SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 2.5},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 0.5, "high_freq_factor": 1.5},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 1.5},
    "yarn exact": {"rope_type": "yarn", "factor": 3.3, "beta_fast": 1.2, "beta_slow": 0.3, "truncate": False, "attention_factor": 1.0},
    "longrope": {"rope_type": "longrope", "factor": 4.0, "long_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0]},
}


def scaled(name: str) -> dict:
    """Changes to a checkpoint's configuration."""
    rope = {"rope_theta": 100.0, **SCALINGS[name]}
    if "long_factor" in rope:
        rope["short_factor"] = rope["long_factor"]
    if name != "linear":
        rope["original_max_position_embeddings"] = BEFORE
    return {"head_dim": 16, "rope_parameters": rope}


@pytest.mark.parametrize("name", SCALINGS)
def test_a_scaling_that_was_trained_in_is_read_exactly_and_written_back(tmp_path, name):
    path = checkpoint(tmp_path, **scaled(name))
    run = imported(path)
    assert make_encoding(trained_config(run)).shape.train_len == TRAIN_LEN and run_id(run.read_config(), "f") == run.id
    assert_equal_logits(run, theirs(path))

    out = exported(run)
    config = json.loads((out / "config.json").read_text())
    said = SCALINGS[name]
    written = {key: config["rope_scaling"][key] for key in said}
    assert written == pytest.approx(said) if "long_factor" not in said else written == said
    assert config["max_position_embeddings"] == TRAIN_LEN
    assert config["rope_scaling"].get("original_max_position_embeddings", BEFORE) == BEFORE
    assert_equal_logits(run, theirs(out))
    before, after = (make_encoding(adopted(folder)) for folder in (path, out))
    torch.testing.assert_close(after.spectrum().freq_F, before.spectrum().freq_F, rtol=1e-9, atol=0)
    assert after.amplitude == pytest.approx(before.amplitude)


@pytest.mark.parametrize("name", SCALINGS)
def test_without_the_scaling_it_is_another_model(tmp_path, name):
    cfg = adopted(checkpoint(tmp_path, **scaled(name)))
    plain = replace(cfg, encoding={**cfg.encoding, "scaling": None, "scaling_len": None})
    tables = [make_plan(make_encoding(one), length=TRAIN_LEN).layers[0].bands[0].q_table for one in (cfg, plain)]
    assert (tables[0] - tables[1]).abs().max() > 0.1


@pytest.mark.parametrize(
    ("name", "extension"),
    [*((name, "yarn") for name in SCALINGS), ("llama3", "pi"), ("linear", "ntk"), ("longrope", "yarn_radix")],
)
def test_an_extension_acts_on_the_scaled_frequencies_and_is_exported_with_them(tmp_path, name, extension):
    extension = method("extension", extension, **FIXED)
    run = imported(checkpoint(tmp_path, **scaled(name)))
    out = exported(run, extension)
    assert json.loads((out / "config.json").read_text())["max_position_embeddings"] == FIXED["target_len"]
    assert_equal_logits(run, theirs(out), extension)


def test_frequencies_of_a_scaling_and_of_one_on_top(tmp_path):
    encoding = make_encoding(adopted(checkpoint(tmp_path, **scaled("llama3"))))
    pair_F = torch.arange(8, dtype=torch.float64)
    turns_F = 100.0 ** (-pair_F / 8) * BEFORE / (2 * math.pi)
    kept_F = ((turns_F - 0.5) / (1.5 - 0.5)).clamp(0, 1)
    expected_F = 100.0 ** (-pair_F / 8) * (kept_F + (1 - kept_F) / 8)
    spectrum = encoding.spectrum()
    torch.testing.assert_close(spectrum.freq_F, expected_F, rtol=1e-12, atol=0)
    slower_F = Ntk().spectrum(spectrum, Span(TRAIN_LEN, 4 * TRAIN_LEN, 4 * TRAIN_LEN)).freq_F
    torch.testing.assert_close(slower_F, expected_F * 4 ** (-pair_F / 7), rtol=1e-12, atol=0)


def test_a_ramp_over_indices_knows_how_often_scaled_pairs_turn():
    shape = small_shape(4096, d_model=512)
    scaling = method("extension", "llama3", mode="fixed", target_len=2048)
    for encoding in (Rope(shape), Rope(shape, scaling=scaling, scaling_len=256)):
        spectrum = encoding.spectrum()
        turns_F = spectrum.freq_F * shape.train_len / (2 * math.pi)
        extended_F = Yarn(beta=32.0, truncate=False).spectrum(spectrum, Span(4096, 16384, 16384)).freq_F
        slower_F = spectrum.freq_F / extended_F
        assert (slower_F[turns_F > 32] < 1.000001).all() and (slower_F[turns_F < 1] > 3.999999).all()
        between_F = slower_F[(turns_F < 30) & (turns_F > 1.1)]
        assert len(between_F) > 3 and (between_F > 1).all() and (between_F < 4).all()


def test_an_anatomy_says_which_pairs_are_kept_whether_beta_is_given_or_not():
    rope, turns = Rope(small_shape(64)), 64 / (2 * math.pi)
    for beta, kept in ((None, turns / 4), (5.0, 5.0)):
        numbers = dissect(rope, Yarn(beta=beta), NoScale(rope.shape), 128).numbers
        assert numbers["dimensionless"]["beta_over_r_max"] == pytest.approx(kept / turns)


def test_a_scaling_of_earlier_transformers_is_read(tmp_path):
    path = checkpoint(tmp_path)
    config = json.loads((path / "config.json").read_text())
    del config["rope_parameters"]
    old = {"rope_theta": 777.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    (path / "config.json").write_text(json.dumps({**config, **old}))
    encoding = adopted(path).encoding
    assert encoding["base"] == 777.0 and encoding["scaling_len"] == 16 and encoding["scaling"]["target_len"] == 32
    assert_equal_logits(imported(path), theirs(path))


WINDOWS = {
    "Mistral": ({"sliding_window": 7}, 7),
    "Qwen2": ({"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}, [None, 9]),
    "Qwen3": ({"use_sliding_window": True, "sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"]}, [9, None]),
    "Qwen3 all": ({"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0}, 9),
    "Qwen2 none": ({"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 28}, None),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_a_sliding_window_is_read_exactly_and_written_back(tmp_path, name):
    changed, window = WINDOWS[name]
    path = checkpoint(tmp_path, name.split()[0], **changed)
    run = imported(path)
    assert run.read_config()["encoding"]["window"] == window
    for folder in (path, exported(run)):
        model = theirs(folder)
        assert type(model).__name__.startswith(name.split()[0])
        assert_equal_logits(run, model)
        assert adopted(folder).encoding["window"] == window


def test_a_window_and_a_scaling_at_once(tmp_path):
    path = checkpoint(tmp_path, "Mistral", sliding_window=7, **scaled("yarn"))
    run = imported(path)
    for folder in (path, exported(run)):
        assert_equal_logits(run, theirs(folder))


@pytest.mark.parametrize("kind", ["linear", "yarn", "llama3", "longrope"])
def test_a_scaling_by_one_is_no_change(tmp_path, kind):
    path = checkpoint(tmp_path)
    written = json.loads((path / "config.json").read_text())
    more = {"llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0}, "longrope": {"long_factor": [1.0] * 4, "short_factor": [1.0] * 4}}
    rope = {"rope_theta": 1e4, "rope_type": kind, "factor": 1.0, "original_max_position_embeddings": 32, **more.get(kind, {})}
    (path / "config.json").write_text(json.dumps({**written, "rope_parameters": rope}))
    assert adopted(path).encoding["scaling"] is None
    assert_equal_logits(imported(path), theirs(path))


@pytest.mark.parametrize(
    ("rope", "said"),
    [
        ({"rope_type": "mrope", "factor": 2.0}, "rope_type=mrope, and only default, linear"),
        ({"rope_type": "llama3", "factor": 8.0}, "lacks low_freq_factor and high_freq_factor"),
        ({"rope_type": "linear", "factor": 0.5}, "factor=0.5, but it must be above 1"),
        (
            {"rope_type": "longrope", "factor": 1.0, "long_factor": [2.0] * 4, "short_factor": [1.0] * 4},
            "factor=1, but it must be above 1",
        ),
        ({"rope_type": "yarn", "factor": 4.0, "beta_slow": 6.0}, "beta_slow=6.0, more turns"),
    ],
)
def test_a_scaling_that_is_not_done_exactly_is_refused(tmp_path, rope, said):
    path = checkpoint(tmp_path)
    written = json.loads((path / "config.json").read_text())
    rope = {"rope_theta": 1e4, "original_max_position_embeddings": 16, **rope}
    (path / "config.json").write_text(json.dumps({**written, "rope_parameters": rope}))
    with pytest.raises(ConfigError, match=said):
        adopted(path)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"window": 0}, "encoding.window=0"),
        ({"window": [4]}, r"encoding.window=\[4\] .* each of 2 layers"),
        ({"scaling_len": 8}, "must be set together"),
        ({"scaling": node("extension", "pi")}, "must be set together"),
        ({"scaling": node("extension", "pi"), "scaling_len": 8}, "extension=pi is not a fixed set of frequencies"),
        ({"scaling": method("extension", "longrope", **FIXED, exact_first=4), "scaling_len": 8}, "extension=longrope is not a fixed"),
    ],
)
def test_arguments_that_say_no_scaling_or_window_are_refused(changed, said):
    with pytest.raises(ConfigError, match=said):
        make({**node("encoding", "rope"), **changed}, small_shape())


def test_the_checkpoint_alone_says_scaling_and_window(tmp_path):
    with pytest.raises(ConfigError, match="encoding.window=5"):
        adopted(checkpoint(tmp_path), encoding=method("encoding", "rope", window=5))
    with pytest.raises(ConfigError, match="encoding.unturned="):
        adopted(checkpoint(tmp_path), encoding=method("encoding", "rope", unturned=[0]))


def test_a_rope_with_windows_is_no_part_of_a_hybrid():
    rope = {"_target_": "posbench.encodings.rope.Rope"}
    Hybrid(small_shape(), rope, rope)
    with pytest.raises(ConfigError, match="encoding.local=.* is for a whole model"):
        Hybrid(small_shape(), {**rope, "window": 4}, rope)


@pytest.mark.parametrize(
    ("encoding", "extension", "said"),
    [
        ({"window": [4, None]}, "none", "window=.* cannot be exported"),
        ({"scaling": method("extension", "pi", **FIXED), "scaling_len": 32}, "dynamic_ntk", "another factor at each length"),
        ({"scaling": method("extension", "pi", **FIXED), "scaling_len": 32}, "rerope", "does not only change frequencies"),
    ],
)
def test_what_the_format_cannot_say_is_refused(encoding, extension, said):
    with pytest.raises(ConfigError, match=said):
        hf_config(resolve(job(method("encoding", "rope", **encoding))), node("extension", extension))


def test_keys_that_stay_as_they_were_turned_are_neither_exported_nor_trained_in():
    cached = method("extension", "dynamic_ntk", fed=4)
    with pytest.raises(ConfigError, match="does not only change frequencies"):
        hf_config(resolve(job()), cached)
    with pytest.raises(ConfigError, match="is not a fixed set of frequencies"):
        make(method("encoding", "rope", scaling=cached, scaling_len=16), small_shape(32))


def test_a_training_with_a_window_is_a_mistral(tmp_path):
    run = trained(tmp_path, job(method("encoding", "rope", window=7)))
    model = theirs(exported(run))
    assert type(model).__name__ == "MistralForCausalLM"
    assert_equal_logits(run, model)


def test_runs_of_earlier_versions_keep_their_names(tmp_path):
    cfg = adopted(checkpoint(tmp_path))
    earlier = {**cfg.as_dict(), "encoding": {key: cfg.encoding[key] for key in ("_target_", "base", "layout")}}
    assert run_id(earlier, "f") == run_id(cfg.as_dict(), "f")
