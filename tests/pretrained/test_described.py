"""Descriptions of checkpoints: each is read as transformers reads it, at lengths inside and beyond
its windows, and written back.
"""

import json
import math
from pathlib import Path

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
    method,
    theirs,
    transformers,
)
from safetensors.torch import load_file, save_file

from posbench.common.errors import ConfigError
from posbench.config.identity import NO_SCALE, run_id
from posbench.encodings.rope import Rope
from posbench.extensions.ntk import Ntk
from posbench.extensions.yarn import Yarn
from posbench.model.build import make_encoding
from posbench.position.geometry import Span
from posbench.position.instantiate import make_method
from posbench.position.legality import verdict_of
from posbench.position.plan import make_plan
from posbench.scale_attention.none import NoScale
from posbench.tools.anatomy.dissect import dissect
from posbench.tools.identify.plan import candidates_of_own_scaling

BEFORE = 12
LONG, SHORT = [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0], [1.0, 1.0, 1.0, 1.1, 1.1, 1.2, 1.2, 1.3]


def rope(kind: str, **parameters) -> dict:
    """Changes for a head of 16 channels, which a rope type scales."""
    before = (
        {"original_max_position_embeddings": BEFORE}
        if kind in ("yarn", "longrope", "llama3")
        else {}
    )
    return {
        "head_dim": 16,
        "rope_parameters": {"rope_theta": 100.0, "rope_type": kind, **before, **parameters},
    }


def half(**settings) -> dict:
    return {
        "hidden_size": 64,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.5,
            **settings,
        },
    }


ROPES = {
    "linear": rope("linear", factor=2.5),
    "llama3": rope("llama3", factor=8.0, low_freq_factor=0.5, high_freq_factor=1.5),
    "yarn": rope("yarn", factor=4.0, beta_fast=1.5),
    "yarn exact": rope(
        "yarn", factor=3.3, beta_fast=1.2, beta_slow=0.3, truncate=False, attention_factor=1.0
    ),
    "yarn mscale": rope("yarn", factor=4.0, beta_fast=1.5, mscale=0.7, mscale_all_dim=1.2),
    "yarn equal mscales": rope("yarn", factor=4.0, beta_fast=1.5, mscale=1.0, mscale_all_dim=1.0),
    "yarn attention_factor": rope("yarn", factor=4.0, beta_fast=1.5, attention_factor=1.3),
    "longrope": rope("longrope", factor=4.0, long_factor=LONG, short_factor=LONG),
    "longrope two": rope("longrope", factor=4.0, long_factor=LONG, short_factor=SHORT),
    "longrope attention_factor": rope(
        "longrope", factor=4.0, long_factor=LONG, short_factor=SHORT, attention_factor=1.7
    ),
    "dynamic": rope("dynamic", factor=2.5),
    "proportional": rope("proportional", partial_rotary_factor=0.6),
    "proportional factor": rope("proportional", partial_rotary_factor=0.6, factor=2.5),
}
SLIDING = {
    "use_sliding_window": True,
    "sliding_window": 9,
    "layer_types": None,
}  # None is as the other keys say
OLD = {"rope_parameters": None, "rope_theta": 777.0}
# {name, whose first word is the family: (changes, what the encoding then has)}, which an export
# writes back
WRITTEN = {
    **{f"Llama {name}": (changed, {}) for name, changed in ROPES.items()},
    "Mistral window": ({"sliding_window": 7}, {"window": 7}),
    "Mistral window and scaling": ({"sliding_window": 7, **ROPES["yarn"]}, {"window": 7}),
    "Qwen2 window": ({**SLIDING, "max_window_layers": 1}, {"window": [None, 9]}),
    "Qwen2 none": ({**SLIDING, "max_window_layers": 28}, {"window": None}),
    "Qwen3 window": (
        {**SLIDING, "layer_types": ["sliding_attention", "full_attention"]},
        {"window": [9, None]},
    ),
    "Qwen3 all": ({**SLIDING, "max_window_layers": 0}, {"window": 9}),
}
READ = {
    "Mistral of earlier transformers": (
        {**OLD, "rope_scaling": None, "head_dim": 8},
        {"base": 777.0, "scaling": None},
    ),
    "Llama of earlier transformers": (
        {**OLD, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"base": 777.0, "scaling_len": 16},
    ),
    **{
        f"Llama {kind} by 1": (rope(kind, factor=1.0), {"scaling": None})
        for kind in ("linear", "yarn")
    },
    "Llama llama3 by 1": (
        rope("llama3", factor=1.0, low_freq_factor=1.0, high_freq_factor=4.0),
        {"scaling": None},
    ),
    "Llama longrope by 1": (
        rope("longrope", factor=1.0, long_factor=[1.0] * 8, short_factor=[1.0] * 8),
        {"scaling": None},
    ),
    "Llama dynamic by 1": (rope("dynamic", factor=1.0), {}),
    "Llama both scalings": ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, {}),
    "Llama causal": ({"is_causal": True}, {}),
    "Mistral windows of some layers": (
        {"sliding_window": 7, "layer_types": ["full_attention", "sliding_attention"]},
        {"window": [None, 7]},
    ),
    "Mistral no windows": (
        {"sliding_window": 7, "layer_types": ["full_attention"] * 2},
        {"window": None},
    ),
    "SmolLM3": ({}, {"unturned": [3]}),
    "SmolLM3 by index": ({"no_rope_layers": [0, 1, 1, 0, 1]}, {"unturned": [0, 3]}),
    "SmolLM3 all turned": ({"no_rope_layers": [1] * 5}, {"unturned": None}),
    "SmolLM3 windows": (SLIDING, {"unturned": [3], "window": [None] * 3 + [9, None]}),
    "SmolLM3 windows by layer alone": (
        {
            "sliding_window": 7,
            "layer_types": ["sliding_attention", "full_attention"] * 2 + ["full_attention"],
        },
        {"window": [7, None, 7, None, None]},
    ),
    "SmolLM3 yarn": (ROPES["yarn mscale"], {"unturned": [3]}),
    "Ministral": ({}, {"window": 7}),
    "Ministral without windows": ({"layer_types": ["full_attention"] * 2}, {"window": None}),
    "Ministral windows": (
        {"layer_types": ["sliding_attention", "full_attention"], **ROPES["yarn mscale"]},
        {"window": [7, None]},
    ),
    "Phi3": ({}, {"fraction": 1.0}),
    "Phi3 window": ({"sliding_window": 9}, {"window": 9}),
    "Phi3 partial": (half(), {"fraction": 0.5}),
    "Phi3 both shares": (
        {**half(partial_rotary_factor=0.75), "partial_rotary_factor": 0.5},
        {"fraction": 0.75},
    ),
    "Phi3 longrope": (
        {
            **half(
                rope_type="longrope",
                long_factor=LONG[:4],
                short_factor=SHORT[:4],
                original_max_position_embeddings=BEFORE,
            ),
            "original_max_position_embeddings": BEFORE,
        },
        {"fraction": 0.5, "scaling_len": BEFORE},
    ),
}


def described(folder: Path, kind: str, changed: dict) -> Path:
    """A checkpoint whose config.json has these changes; sizes are those of its weights too."""
    path = checkpoint(
        folder, kind, **{key: changed[key] for key in ("head_dim", "hidden_size") if key in changed}
    )
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **changed}))
    return path


@pytest.mark.parametrize("name", [*WRITTEN, *READ])
def test_a_description_is_read_exactly_and_written_back(tmp_path, name):
    changed, expected = {**WRITTEN, **READ}[name]
    path = described(tmp_path, name.split()[0], changed)
    run = imported(path)
    encoding, before = run.read_config()["encoding"], make_encoding(adopted(path))
    assert {key: encoding.get(key) for key in expected} == expected
    assert before.shape.train_len == TRAIN_LEN and run_id(run.read_config(), "f") == run.id
    assert_equal_logits(run, theirs(path))
    if name in WRITTEN:
        out = exported(run)
        assert_equal_logits(run, theirs(out))
        again = adopted(out)
        assert (again.encoding["_target_"], again.encoding["window"]) == (
            encoding["_target_"],
            encoding["window"],
        )
        after = make_encoding(again)
        assert after.amplitude == pytest.approx(before.amplitude)
        if before.spectrum() is not None:
            torch.testing.assert_close(
                after.spectrum().freq_F, before.spectrum().freq_F, rtol=1e-9, atol=0
            )


def test_a_proportional_scaling_is_taken_off_and_is_a_candidate_of_identify(tmp_path):
    scaled = rope("proportional", partial_rotary_factor=0.6, factor=2.0)
    path = described(tmp_path, "Llama", scaled)
    model = {"path": str(path), "own_scaling": False}
    encoding = make_encoding(adopted(path, model=model))
    # P-RoPE of 0.6: the fastest 4 of 8 pairs turn, by 100^(-2c / 16), without the factor.
    theta_F = torch.tensor([100.0 ** (-pair / 8) for pair in range(4)], dtype=torch.float64)
    torch.testing.assert_close(encoding.spectrum().freq_F, theta_F, rtol=1e-12, atol=0)
    own, twice = candidates_of_own_scaling(adopted(path).encoding)
    assert own.extension["_target_"].endswith("Pi") and own.scale == NO_SCALE
    assert len(twice.extension["parts"]) == 2


ON_TOP = [
    *((name, "yarn") for name in ("linear", "llama3", "yarn", "yarn exact", "longrope")),
    ("llama3", "pi"),
    ("linear", "ntk"),
]
ON_TOP += [("longrope", "yarn_radix"), ("yarn mscale", "ntk"), ("proportional factor", "pi")]


@pytest.mark.parametrize(("name", "extension"), ON_TOP)
def test_an_extension_acts_on_the_scaled_frequencies_and_is_exported_with_them(
    tmp_path, name, extension
):
    extension = method("extension", extension, **FIXED)
    run = imported(described(tmp_path, "Llama", ROPES[name]))
    out = exported(run, extension)
    assert (
        json.loads((out / "config.json").read_text())["max_position_embeddings"]
        == FIXED["target_len"]
    )
    assert_equal_logits(run, theirs(out), extension)


@pytest.mark.parametrize(
    ("name", "message"),
    [("longrope two", "has no place beside"), ("dynamic", "no spectrum to change")],
)
def test_what_the_format_cannot_say_of_a_scaling_and_an_extension_is_refused(
    tmp_path, name, message
):
    run = imported(described(tmp_path, "Llama", ROPES[name]))
    with pytest.raises(ConfigError, match=message):
        exported(run, method("extension", "ntk", **FIXED))


def test_nothing_else_may_change_the_frequencies_of_dynamic(tmp_path):
    encoding = make_encoding(adopted(described(tmp_path, "Llama", ROPES["dynamic"])))
    none = NoScale(encoding.shape)
    for name in ("ntk", "yarn"):
        with pytest.raises(ConfigError, match="has no spectrum to change"):
            verdict_of(encoding, make_method(node("extension", name)), none, [64])
    verdict_of(encoding, make_method(node("extension", "rerope")), none, [64])


def test_frequencies_of_a_scaling_and_of_one_on_top(tmp_path):
    encoding = make_encoding(adopted(described(tmp_path, "Llama", ROPES["llama3"])))
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
        extended_F = (
            Yarn(beta=32.0, truncate=False).spectrum(spectrum, Span(4096, 16384, 16384)).freq_F
        )
        slower_F = spectrum.freq_F / extended_F
        assert (slower_F[turns_F > 32] < 1.000001).all() and (
            slower_F[turns_F < 1] > 3.999999
        ).all()
        between_F = slower_F[(turns_F < 30) & (turns_F > 1.1)]
        assert len(between_F) > 3 and (between_F > 1).all() and (between_F < 4).all()


def test_an_anatomy_says_which_pairs_are_kept_whether_beta_is_given_or_not():
    encoding, turns = Rope(small_shape(64)), 64 / (2 * math.pi)
    for beta, expected_beta in ((None, turns / 4), (5.0, 5.0)):
        numbers = dissect(encoding, Yarn(beta=beta), NoScale(encoding.shape), 128).numbers
        assert numbers["dimensionless"]["beta_over_r_max"] == pytest.approx(expected_beta / turns)


@pytest.mark.parametrize("layers", [1, 2, 4, 5, 8, 36])
def test_the_preset_leaves_the_layers_of_smollm3_unturned(layers):
    encoding = make_method(node("encoding", "smollm3"), small_shape(n_layer=layers))
    plain = [layer.encoding is not encoding for layer in encoding.layers()]
    turned_layers = transformers.SmolLM3Config(
        num_hidden_layers=layers, pad_token_id=None
    ).no_rope_layers
    assert plain == (
        [not turned for turned in turned_layers] if layers >= 4 else [False, True][:layers]
    )  # fewer are one period
    assert plain == [
        layer.bands[0].q_table is None for layer in make_plan(encoding, length=8).layers
    ]
    assert all(
        layer.window is None and layer.extended and layer.scaled for layer in encoding.layers()
    )


def test_runs_of_earlier_versions_keep_their_names(tmp_path):
    cfg = adopted(checkpoint(tmp_path))
    earlier = {
        **cfg.as_dict(),
        "encoding": {key: cfg.encoding[key] for key in ("_target_", "base", "layout")},
    }
    assert run_id(earlier, "f") == run_id(cfg.as_dict(), "f")


def test_one_file_of_weights_comes_before_an_index(tmp_path):
    path = checkpoint(tmp_path, shard="10KB")
    shards = sorted(path.glob("model-*.safetensors"))
    other = {name: value + 0.01 for file in shards for name, value in load_file(file).items()}
    save_file(other, path / "model.safetensors", metadata={"format": "pt"})
    assert_equal_logits(imported(path), theirs(path))
    shards[0].unlink()
    assert_equal_logits(imported(path), theirs(path))
