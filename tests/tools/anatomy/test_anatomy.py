"""What anatomy says of a triple: its schema for every legal pair, facts that the literature
states.
"""

import json
import math

import pytest
from conftest import TRAIN_LEN, legal_pairs, make_triple, with_attention
from dissected import anatomy
from measures import (
    LONG,
)  # not another length, since the legal pairs of one take half a second to judge

from posbench.position.geometry import Shape
from posbench.position.legality import fed_length
from posbench.scale_attention.learned_sink import LearnedSink
from posbench.scale_attention.off_by_one import OffByOne
from posbench.tools.anatomy.as_text import summary_lines
from posbench.tools.anatomy.dissect import dissect, sampled_distances

KEYS = {
    "encoding",
    "extension",
    "scale_attention",
    "train_len",
    "length",
    "spectrum",
    "temperature",
    "bands",
    "distance",
    "bias",
    # fmt: skip
    "logit_scale",
    "spectrum_before",
    "dimensionless",
    "properties",
    "decay_bound",
    "n_parameters",
    "layers",
}


@pytest.mark.parametrize("pair", with_attention(legal_pairs(LONG)), ids="-".join)
def test_every_legal_pair_has_an_anatomy_of_one_schema(pair):
    encoding, extension, scale = make_triple(*pair)
    numbers = dissect(encoding, extension, scale, LONG).numbers
    assert KEYS <= set(numbers) and numbers["extension"] == pair[1]
    json.dumps(numbers, allow_nan=False)
    fed = fed_length(extension, TRAIN_LEN, LONG)
    for layer in [numbers, *numbers["layers"]]:
        distance = layer["distance"]
        assert (
            len(distance) == LONG
            and distance[0] is not None
            and distance[fed:] == [None] * (LONG - fed)
        )
        assert all(value is None or value >= 0 for value in distance)
        for rows in (layer["bias"], layer["even_weights"]):
            for row in rows or []:
                assert [value is None for value in row] == [value is None for value in distance]
        assert layer["bias"] is None or len(layer["bias"]) == encoding.shape.n_head
        assert len(layer["logit_scale"]) == LONG and (layer["spectrum"] is None) == (
            layer["spectrum_before"] is None
        )
        assert set(layer["properties"].values()) <= {True, False, None}
    shown = [number for layer in numbers["layers"] for number in layer["numbers"]]
    assert sorted(shown + numbers["without_attention"]) == list(range(encoding.shape.n_layer))
    assert all(math.isfinite(value) for value in numbers["dimensionless"].values())
    assert summary_lines(numbers)[0].startswith(numbers["encoding"])


def test_spectra_and_distances_are_those_of_the_papers():
    ntk, pi = anatomy(extension="ntk").numbers, anatomy(extension="pi").numbers
    assert ntk["spectrum"] == pytest.approx(
        [(1e4 * 16 ** (64 / 62)) ** (-pair / 32) for pair in range(32)], rel=1e-9
    )
    assert ntk["spectrum_before"] == pi["spectrum"] == pi["spectrum_before"]
    assert pi["distance"] == pytest.approx([index / 16 for index in range(4096)], rel=1e-6)


def test_rerope_has_a_plateau_and_a_window_hides():
    assert anatomy(extension="rerope").numbers["distance"] == [
        min(index, 128) for index in range(4096)
    ]
    window = anatomy("alibi", "window").numbers
    assert window["distance"] == [*range(256), *[None] * 3840]
    assert (
        window["bias"][0][:3] == pytest.approx([0, -1 / 16, -2 / 16])
        and window["bias"][0][256:] == [None] * 3840
    )
    cropped = anatomy(extension="recompute_window", scale="log_n").numbers
    assert (
        cropped["fed"] == 256
        and cropped["distance"] == window["distance"]
        and cropped["logit_scale"] == [1.0] * 4096
    )


def test_logit_scale_is_scales_times_temperature():
    numbers = anatomy(extension="yarn", scale="log_n").numbers
    temperature = (0.1 * math.log(16) + 1) ** 2
    assert numbers["temperature"] == pytest.approx(temperature)
    expected = [temperature * max(1.0, math.log(n) / math.log(256)) for n in range(1, 4097)]
    assert numbers["logit_scale"] == pytest.approx(expected, rel=1e-6)


FACTS = [
    # encoding, extension: unique, relative, any_length, as_trained, beyond_training, bounded
    ("rope", "none", "yes yes yes yes yes no"),
    ("rope", "pi", "yes yes no no yes yes"),
    ("rope", "rerope", "no yes yes no yes yes"),
    ("rope", "window", "yes yes yes yes yes yes"),
    ("rope", "ntk", "yes yes no no yes no"),
    ("alibi", "none", "yes yes yes yes yes no"),
    ("none", "none", "no yes yes yes yes -"),
    ("sinusoidal", "none", "yes no no no yes no"),
    ("sinusoidal", "pi", "yes no no no yes yes"),
    ("learned", "recompute_window", "yes no yes yes no yes"),
    ("learned", "table_linear", "yes no no no no yes"),
    ("rope", "self_extend", "no no no no yes yes"),
    ("fire", "none", "yes no no no yes no"),
    ("t5", "none", "no yes yes yes yes no"),
]


@pytest.mark.parametrize(("encoding", "extension", "expected"), FACTS)
def test_the_property_table(encoding, extension, expected):
    shape = Shape(d_model=64, n_layer=2, n_head=2, n_kv_head=1, train_len=32)
    properties = anatomy(encoding, extension, length=256, shape=shape).numbers["properties"]
    assert (
        " ".join({True: "yes", False: "no", None: "-"}[value] for value in properties.values())
        == expected
    )


def test_dimensionless_numbers():
    numbers = anatomy(shape=Shape(128, 4, 4, 4, 64), length=1024).numbers["dimensionless"]
    assert numbers["share_full_turns"] == 5 / 16 and numbers["r_max"] == pytest.approx(
        64 / (2 * math.pi)
    )
    numbers = anatomy("alibi", "pi", shape=Shape(128, 4, 8, 8, 64), length=1024).numbers[
        "dimensionless"
    ]
    assert numbers["slope_x_length"] == pytest.approx(0.25) and numbers[
        "reach_over_trained"
    ] == pytest.approx(1023 / 16 / 63)
    assert anatomy(extension="rerope").numbers["dimensionless"]["exact_over_train_len"] == 129 / 256


def test_a_share_is_a_percentage_and_beta_is_said():
    shape = Shape(128, 4, 4, 4, 64)
    lines = summary_lines(anatomy(extension="yarn", shape=shape, length=256).numbers)
    assert any(
        "share of the pairs that make a full turn in training: 31.2 %" in line for line in lines
    )
    assert any(
        "turns from which a pair is kept (beta; 32 is published): 2.546" in line for line in lines
    )


def test_learned_numbers_and_content_are_named():
    t5, fox = anatomy("t5").numbers, anatomy("fox").numbers
    assert t5["n_parameters"] == 32 * 2 and any("initial" in line for line in summary_lines(t5))
    assert fox["bias"][0][:4] == pytest.approx(
        [0, -math.log(2), -2 * math.log(2), -3 * math.log(2)]
    )
    assert fox["depends_on_content"] == ["gates"] and any(
        "depend on content" in line for line in summary_lines(fox)
    )
    assert anatomy("rope").numbers["n_parameters"] == 0


def test_layers_of_two_kinds_are_told_apart():
    numbers = anatomy("hybrid", shape=Shape(128, 4, 2, 2, 64), length=256).numbers
    full, local = numbers["layers"]
    assert (
        full["numbers"] == [3]
        and local["numbers"] == [0, 1, 2]
        and local["distance"][32:] == [None] * 224
    )
    assert numbers["distance"] == full["distance"] == list(range(256))


@pytest.mark.parametrize("length", [2, 3, 64, 65, 4096, 100_000])
def test_samples_are_distances_below_the_length(length):
    distances = sampled_distances(length)
    assert (
        distances[0] == 0
        and distances[-1] == length - 1
        and (distances.diff() > 0).all()
        and len(distances) <= 320
    )


def test_a_sink_is_told_with_its_logit():
    encoding, extension, _ = make_triple("hybrid", "none", "none")
    numbers = dissect(
        encoding, extension, OffByOne(encoding.shape), LONG, LearnedSink(encoding.shape, init=1.0)
    ).numbers
    expected = math.log(1 + math.e)
    assert [layer["sink"] for layer in numbers["layers"]] == [[pytest.approx(expected)] * 4] * 2
    assert sum("a sink of logit 1.31" in line for line in summary_lines(numbers)) == 2
    assert (
        dissect(*make_triple("hybrid", "none", "none"), LONG).numbers["layers"][0]["sink"] is None
    )


@pytest.mark.parametrize(
    ("name", "turning"), [("smollm3", "rope"), ("mistral_large4", "lerope"), ("gemma3", "rope")]
)
def test_layers_of_a_preset_are_named_by_what_they_are(name, turning):
    layers = dissect(*make_triple(name, "none", "none"), LONG).numbers["layers"]
    assert {layer["name"] for layer in layers} == {turning, "none"} - (
        {"none"} if name == "gemma3" else set()
    )


def test_an_anatomy_shows_the_frequencies_at_which_pairs_turn():
    """Clipped, learned or rounded after an extension has changed them."""
    encoding, extension, scale = make_triple("clipped_rope", "ntk", "none")
    numbers = dissect(encoding, extension, scale, LONG).numbers
    assert numbers["spectrum"][-1] == numbers["spectrum_before"][-1] == 0
    assert numbers["spectrum"][1] < numbers["spectrum_before"][1] and numbers["spectrum"][0] == 1
    encoding, extension, scale = make_triple("lerope", "none", "none")
    encoding.log_scale_F.data.fill_(0.5)
    assert dissect(encoding, extension, scale, LONG).numbers["spectrum"][0] == pytest.approx(
        math.exp(0.5)
    )
