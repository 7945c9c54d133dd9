"""What anatomy says of a triple: its schema for every legal pair, spectra of other people's code, facts that the literature states."""

from __future__ import annotations

import cmath
import itertools
import json
import math
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from conftest import TRAIN_LEN, choices, legal_pairs, make_triple, node

from posbench.anatomy import Anatomy, decay_bound, dissect, samples
from posbench.anatomy_figures import draw, page
from posbench.anatomy_text import summary
from posbench.checkpoint import save_weights
from posbench.compat import fed_length
from posbench.config import ModelConfig, TrainConfig
from posbench.gallery import sheet
from posbench.gallery_tiles import encoding_tiles, extension_tiles
from posbench.geometry import Shape
from posbench.gpt import GPT
from posbench.make import make
from posbench.runs import Run

ROOT = Path(__file__).parent.parent
LONG = 4 * TRAIN_LEN
SHAPE = Shape(d_model=128, n_layer=4, n_head=2, n_kv_head=2, train_len=256)
KEYS = {"encoding", "extension", "scale_attention", "train_len", "length", "spectrum", "temperature", "bands", "distance", "bias",
        "logit_scale", "spectrum_before", "dimensionless", "properties", "decay_bound", "n_parameters", "layers"}  # fmt: skip


def anatomy(encoding="rope", extension="none", scale="none", length=4096, shape=SHAPE, **arguments) -> Anatomy:
    """A triple; arguments are the extension's."""
    torch.manual_seed(0)
    parts = make(node("encoding", encoding), shape), make({**node("extension", extension), **arguments})
    return dissect(*parts, make(node("scale_attention", scale), shape), length)


@pytest.mark.parametrize("pair", legal_pairs(LONG), ids="-".join)
def test_every_legal_pair_has_an_anatomy_of_one_schema(pair):
    encoding, extension, scale = make_triple(*pair)
    numbers = dissect(encoding, extension, scale, LONG).numbers
    assert KEYS <= set(numbers) and numbers["extension"] == pair[1]
    json.dumps(numbers, allow_nan=False)
    fed = fed_length(extension, TRAIN_LEN, LONG)
    for layer in [numbers, *numbers["layers"]]:
        distance = layer["distance"]
        assert len(distance) == LONG and distance[0] is not None and distance[fed:] == [None] * (LONG - fed)
        assert all(value is None or value >= 0 for value in distance)
        for rows in (layer["bias"], layer["even_weights"]):
            for row in rows or []:
                assert [value is None for value in row] == [value is None for value in distance]
        assert layer["bias"] is None or len(layer["bias"]) == encoding.shape.n_head
        assert len(layer["logit_scale"]) == LONG and (layer["spectrum"] is None) == (layer["spectrum_before"] is None)
        assert set(layer["properties"].values()) <= {True, False, None}
    assert sorted(number for layer in numbers["layers"] for number in layer["numbers"]) == list(range(encoding.shape.n_layer))
    assert all(math.isfinite(value) for value in numbers["dimensionless"].values())
    assert summary(numbers)[0].startswith(numbers["encoding"])


@pytest.mark.parametrize(
    ("extension", "arguments", "rope"),
    [
        ("ntk", {}, {"rope_type": "dynamic", "factor": 1.0}),
        ("dynamic_ntk", {"factor": 2.0}, {"rope_type": "dynamic", "factor": 2.0}),
        ("yarn", {"beta": 32.0}, {"rope_type": "yarn", "factor": 16.0}),
        ("llama3", {}, {"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}),
    ],
    ids=["ntk", "dynamic_ntk", "yarn", "llama3"],
)
def test_spectra_equal_transformers(extension, arguments, rope):
    rope_utils = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    parameters = {"rope_theta": 10000.0, "original_max_position_embeddings": 256, **rope}
    size = {"hidden_size": 128, "num_attention_heads": 2, "max_position_embeddings": 256}
    freq_F, factor = rope_utils.ROPE_INIT_FUNCTIONS[rope["rope_type"]](LlamaConfig(**size, rope_parameters=parameters), "cpu", seq_len=4096)
    numbers = anatomy(extension=extension, **arguments).numbers
    assert numbers["spectrum"] == pytest.approx(freq_F.tolist(), rel=1e-6)
    assert numbers["temperature"] == pytest.approx(factor**2)


def test_linear_scaling_of_transformers_is_pi_of_distances():
    pytest.importorskip("transformers")
    numbers = anatomy(extension="pi").numbers
    assert numbers["distance"] == pytest.approx([index / 16 for index in range(4096)], rel=1e-6)
    assert numbers["spectrum"] == numbers["spectrum_before"]


def test_rerope_has_a_plateau_and_a_window_hides():
    assert anatomy(extension="rerope").numbers["distance"] == [min(index, 128) for index in range(4096)]
    window = anatomy("alibi", "window").numbers
    assert window["distance"] == [*range(256), *[None] * 3840]
    assert window["bias"][0][:3] == pytest.approx([0, -1 / 16, -2 / 16]) and window["bias"][0][256:] == [None] * 3840
    cropped = anatomy(extension="recompute_window", scale="log_n").numbers
    assert cropped["fed"] == 256 and cropped["distance"] == window["distance"] and cropped["logit_scale"] == [1.0] * 4096


def test_logit_scale_is_scales_times_temperature():
    numbers = anatomy(extension="yarn", scale="log_n").numbers
    temperature = (0.1 * math.log(16) + 1) ** 2
    assert numbers["temperature"] == pytest.approx(temperature)
    expected = [temperature * max(1.0, math.log(n) / math.log(256)) for n in range(1, 4097)]
    assert numbers["logit_scale"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("base", [1e3, 1e4, 5e5])
def test_the_decay_bound_is_its_formula(base):
    def bound(distance: int) -> float:
        turned = itertools.accumulate(cmath.exp(1j * distance * base ** (-2 * c / 128)) for c in range(64))
        return 2 / 128 * sum(map(abs, turned))

    distances = [0, 1, 4, 16, 256, 1024, 4096]
    freq_F = base ** (-torch.arange(0, 128, 2, dtype=torch.float64) / 128)
    assert decay_bound(freq_F, torch.tensor(distances)).tolist() == pytest.approx([bound(distance) for distance in distances], rel=1e-9)
    assert bound(0) == 32.5


def test_the_decay_bound_of_a_llama_head():
    numbers = anatomy(shape=Shape(256, 4, 2, 2, 64), length=4097).numbers["decay_bound"]
    found = dict(zip(numbers["at"], numbers["after"], strict=True))
    assert [found[distance] for distance in (0, 4, 16, 4096)] == pytest.approx([32.5, 22.6, 15.8, 4.9], abs=0.05)


def test_the_decay_bound_bounds():
    """Abel's summation with products of random q and k."""
    torch.manual_seed(0)
    freq_F, distance_K = 1e4 ** (-torch.arange(16, dtype=torch.float64) / 16), torch.arange(512)
    for _ in range(5):
        h_F = torch.randn(16, dtype=torch.complex128)
        score_K = (h_F * torch.polar(torch.ones(512, 16).double(), torch.outer(distance_K.double(), freq_F))).sum(-1).abs()
        steps_F = (torch.cat((h_F[1:], torch.zeros(1))) - h_F).abs()
        assert (score_K <= steps_F.max() * 16 * decay_bound(freq_F, distance_K) + 1e-9).all()


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
    found = anatomy(encoding, extension, length=256, shape=shape).numbers["properties"]
    assert " ".join({True: "yes", False: "no", None: "-"}[value] for value in found.values()) == expected


def test_dimensionless_numbers():
    numbers = anatomy(shape=Shape(128, 4, 4, 4, 64), length=1024).numbers["dimensionless"]
    assert numbers["share_full_turns"] == 5 / 16 and numbers["r_max"] == pytest.approx(64 / (2 * math.pi))
    numbers = anatomy("alibi", "pi", shape=Shape(128, 4, 8, 8, 64), length=1024).numbers["dimensionless"]
    assert numbers["slope_x_length"] == pytest.approx(0.25) and numbers["reach_over_trained"] == pytest.approx(1023 / 16 / 63)
    assert anatomy(extension="rerope").numbers["dimensionless"]["exact_over_train_len"] == 129 / 256


def test_learned_numbers_and_content_are_named():
    t5, fox = anatomy("t5").numbers, anatomy("fox").numbers
    assert t5["n_parameters"] == 32 * 2 and any("initial" in line for line in summary(t5))
    assert fox["bias"][0][:4] == pytest.approx([0, -math.log(2), -2 * math.log(2), -3 * math.log(2)])
    assert fox["depends_on_content"] == ["gates"] and any("depend on content" in line for line in summary(fox))
    assert anatomy("rope").numbers["n_parameters"] == 0


def test_layers_of_two_kinds_are_told_apart():
    numbers = anatomy("hybrid", shape=Shape(128, 4, 2, 2, 64), length=256).numbers
    full, local = numbers["layers"]
    assert full["numbers"] == [3] and local["numbers"] == [0, 1, 2] and local["distance"][32:] == [None] * 224
    assert numbers["distance"] == full["distance"] == list(range(256))


@pytest.mark.parametrize("length", [2, 3, 64, 65, 4096, 100_000])
def test_samples_are_distances_below_the_length(length):
    found = samples(length)
    assert found[0] == 0 and found[-1] == length - 1 and (found.diff() > 0).all() and len(found) <= 320


@pytest.mark.parametrize(
    ("triple", "panels"),
    [
        (("rope", "none", "none"), 4),  # frequencies, distances, channels, decay
        (("rope", "yarn", "log_n"), 5),  # and logits
        (("alibi", "none", "none"), 2),  # distances, bias
        (("sinusoidal", "none", "none"), 4),  # frequencies, positions, table, similarity
        (("none", "none", "none"), 1),
        (("stick_breaking", "none", "none"), 2),  # distances, weights
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else str(value),
)
def test_a_page_has_the_panels_that_say_something(triple, panels):
    shown = [axes for axes in page(anatomy(*triple, length=512)).axes if axes.axison]
    assert len(shown) == panels and all(axes.get_title(loc="left") for axes in shown)


def test_equal_anatomies_are_equal_files(tmp_path):
    files = [draw(anatomy("xpos", "pi", length=512), tmp_path / name) for name in ("a", "b")]
    for one, other in zip(*files, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_the_gallery_shows_every_method():
    tiles = encoding_tiles(), extension_tiles()
    assert [sorted(tile.name for tile in group) for group in tiles] == [choices("encoding"), choices("extension")]
    assert len(sheet(*tiles).axes) == sum(map(len, tiles))


def script(folder: Path, *overrides: str, name: str = "anatomy") -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "scripts" / f"{name}.py"), *overrides]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=120)


def test_the_script_writes_numbers_and_picture(tmp_path):
    done = script(tmp_path, "encoding=rope", "extension=pi", "train.length=32", "length=128")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "results" / "anatomy"
    assert {path.name for path in folder.iterdir()} == {f"rope+pi+none.{kind}" for kind in ("json", "png", "svg")}
    assert all(f"results/anatomy/rope+pi+none.{kind}" in done.stdout for kind in ("json", "png", "svg"))
    numbers = json.loads((folder / "rope+pi+none.json").read_text())
    assert (numbers["train_len"], numbers["length"], numbers["distance"][4]) == (32, 128, 1.0)


def test_the_script_says_a_noop_and_writes_where_it_is_told(tmp_path):
    done = script(tmp_path, "encoding=none", "extension=pi", "length=128", f"json={tmp_path}/a/numbers.json")
    assert done.returncode == 0 and "no-op: encoding=none has no positions" in done.stderr
    assert [path.name for path in tmp_path.rglob("*.[jps]*")] == ["numbers.json"]


def test_the_script_refuses_with_the_sentence_of_run(tmp_path):
    refused = [script(tmp_path, "encoding=alibi", "extension=ntk", name=name) for name in ("anatomy", "run")]
    assert [done.returncode for done in refused] == [2, 2]
    assert "alibi has no spectrum to change" in refused[0].stderr
    said = refused[0].stderr.strip().splitlines()[-1]
    assert said.removeprefix("refused: ") in refused[1].stderr
    assert script(tmp_path, "length=0").returncode == 2


def test_the_script_shows_a_trained_encoding(tmp_path):
    model_config, train = ModelConfig(d_model=16, n_layer=1, n_head=2, d_ff=32), {**asdict(TrainConfig()), "length": 16}
    model = GPT(model_config, make(node("encoding", "t5"), Shape(16, 1, 2, 2, 16)), 50)
    with torch.no_grad():
        model.encoding.weight.copy_(torch.arange(64).view(1, 32, 2))
    run = Run(tmp_path / "t5-16-s0-0000000000")
    with run.lock():
        run.write_config({"encoding": node("encoding", "t5"), "model": asdict(model_config), "train": train, "seed": 0})
        run.write_summary({"sha256": save_weights(run.weights, model)})
    done = script(tmp_path, f"run={run.path}", "length=16", "json=t5.json")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "t5.json").read_text())["bias"][1] == [2.0 * distance + 1 for distance in range(16)]
    assert "as trained" in done.stdout
