"""Shapes and rope types beyond the plain ones: tiny random models of transformers, at lengths inside and beyond their windows."""

import pytest
from conftest import node, small_shape
from hf_models import FIXED, TRAIN_LEN, adopted, assert_equal_logits, checkpoint, exported, imported, method, theirs, transformers

from posbench.common.errors import ConfigError
from posbench.encodings.rope import Rope
from posbench.model.build import make_encoding
from posbench.position.instantiate import make, trained_config
from posbench.position.legality import check
from posbench.position.plan import make_plan
from posbench.scale_attention.none import NoScale

BEFORE = 12
LONG, SHORT = [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0], [1.0, 1.0, 1.0, 1.1, 1.1, 1.2, 1.2, 1.3]
ROPES = {
    "dynamic": {"rope_type": "dynamic", "factor": 2.5},
    "yarn mscale": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 1.5, "mscale": 0.7, "mscale_all_dim": 1.2},
    "yarn equal mscales": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 1.5, "mscale": 1.0, "mscale_all_dim": 1.0},
    "yarn attention_factor": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 1.5, "attention_factor": 1.3},
    "longrope": {"rope_type": "longrope", "factor": 4.0, "long_factor": LONG, "short_factor": SHORT},
    "longrope attention_factor": {
        "rope_type": "longrope", "factor": 4.0, "long_factor": LONG, "short_factor": SHORT, "attention_factor": 1.7,
    },
    "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.6},
    "proportional factor": {"rope_type": "proportional", "partial_rotary_factor": 0.6, "factor": 2.5},
}  # fmt: skip


def rope(name: str) -> dict:
    before = {"original_max_position_embeddings": BEFORE} if ROPES[name]["rope_type"] in ("yarn", "longrope") else {}
    return {"head_dim": 16, "rope_parameters": {"rope_theta": 100.0, **ROPES[name], **before}}


@pytest.mark.parametrize("name", ROPES)
def test_a_rope_type_is_read_exactly_and_written_back(tmp_path, name):
    path = checkpoint(tmp_path, **rope(name))
    run = imported(path)
    assert make_encoding(trained_config(run)).shape.train_len == TRAIN_LEN
    for folder in (path, exported(run)):
        assert_equal_logits(run, theirs(folder))
        again = adopted(folder).encoding
        assert again["_target_"] == run.read_config()["encoding"]["_target_"]


@pytest.mark.parametrize("name", ["yarn mscale", "proportional factor"])
def test_an_extension_acts_on_top_and_is_exported(tmp_path, name):
    run = imported(checkpoint(tmp_path, **rope(name)))
    extension = method("extension", "pi" if "proportional" in name else "ntk", **FIXED)
    assert_equal_logits(run, theirs(exported(run, extension)), extension)


@pytest.mark.parametrize(("name", "said"), [("longrope", "other frequencies for short texts"), ("dynamic", "no spectrum to change")])
def test_what_the_format_cannot_say_of_both_is_refused(tmp_path, name, said):
    run = imported(checkpoint(tmp_path, **rope(name)))
    with pytest.raises(ConfigError, match=said):
        exported(run, method("extension", "ntk", **FIXED))


def test_nothing_else_may_change_the_frequencies_of_dynamic(tmp_path):
    encoding = make_encoding(adopted(checkpoint(tmp_path, **rope("dynamic"))))
    none = NoScale(encoding.shape)
    for name in ("ntk", "yarn"):
        with pytest.raises(ConfigError, match="has no spectrum to change"):
            check(encoding, make(node("extension", name)), none, [64])
    check(encoding, make(node("extension", "rerope")), none, [64])


SHAPES = {
    "SmolLM3": ({}, {"unturned": [3]}),
    "SmolLM3 by index": ({"no_rope_layers": [0, 1, 1, 0, 1]}, {"unturned": [0, 3]}),
    "SmolLM3 all turned": ({"no_rope_layers": [1] * 5}, {}),
    "SmolLM3 windows": ({"use_sliding_window": True, "sliding_window": 7}, {"unturned": [3], "window": [None] * 3 + [7, None]}),
    "SmolLM3 yarn": (rope("yarn mscale"), {"unturned": [3]}),
    "Ministral": ({}, {"window": 7}),
    "Ministral without windows": ({"layer_types": ["full_attention"] * 2}, {"window": None}),
    "Ministral windows": ({"layer_types": ["sliding_attention", "full_attention"], **rope("yarn mscale")}, {"window": [7, None]}),
    "Phi3": ({}, {"fraction": 1.0}),
    "Phi3 window": ({"sliding_window": 9}, {"window": 9}),
    "Phi3 partial": (
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}, "hidden_size": 64},
        {"fraction": 0.5},
    ),
    "Phi3 longrope": (
        {
            "rope_parameters": {
                "rope_type": "longrope", "rope_theta": 100.0, "partial_rotary_factor": 0.5, "long_factor": LONG[:4],
                "short_factor": SHORT[:4], "original_max_position_embeddings": BEFORE,
            },
            "original_max_position_embeddings": BEFORE,
            "hidden_size": 64,
        },
        {"fraction": 0.5, "scaling_len": BEFORE},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_is_read_exactly(tmp_path, name):
    changed, expected = SHAPES[name]
    path = checkpoint(tmp_path, name.split()[0], **changed)
    run = imported(path)
    encoding = run.read_config()["encoding"]
    assert {key: encoding.get(key) for key in expected} == expected
    assert_equal_logits(run, theirs(path))


def test_a_layer_without_rotation_does_not_see_positions(tmp_path):
    encoding = Rope(small_shape(n_layer=4), unturned=[1])
    tables = [layer.bands[0].q_table is None for layer in make_plan(encoding, length=8).layers]
    assert tables == [False, True, False, False]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"unturned": [4]}, r"encoding.unturned=\[4\] must be some of the layers 0 to 3"),
        ({"amplitude": 1.2}, "belongs to an encoding.scaling"),
        ({"scaling": {**node("extension", "yarn"), **FIXED}, "scaling_len": 16, "amplitude": -1.0}, "must be above 0"),
        ({"scaling": node("extension", "yarn"), "scaling_len": 16}, "extension=yarn is not a fixed set"),
    ],
)
def test_arguments_that_are_no_such_model_are_refused(changed, said):
    with pytest.raises(ConfigError, match=said):
        Rope(small_shape(n_layer=4), **changed)


@pytest.mark.parametrize("layers", [1, 2, 4, 5, 8, 36])
def test_the_preset_leaves_the_layers_of_smollm3_unturned(layers):
    made = make(node("encoding", "smollm3"), small_shape(n_layer=layers))
    plain = [layer.encoding is not made for layer in made.layers()]
    theirs = transformers.SmolLM3Config(num_hidden_layers=layers, pad_token_id=None).no_rope_layers
    assert plain == ([not turned for turned in theirs] if layers >= 4 else [False, True][:layers])  # fewer are one period
    assert all(layer.window is None and layer.extended and layer.scaled for layer in made.layers())
