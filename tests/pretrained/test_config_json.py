"""Files of a checkpoint that are edited by hand or say a thing twice: read as transformers reads them, or refused."""

import json
from pathlib import Path

import pytest
from hf_models import adopted, assert_equal_logits, checkpoint, imported, theirs
from safetensors.torch import load_file, save_file

from posbench.common.errors import ConfigError

LINEAR = {"rope_type": "linear", "factor": 2.0}
EDITED = {
    "Mistral windows of some layers": ("Mistral", {"sliding_window": 7, "layer_types": ["full_attention", "sliding_attention"]}),
    "Mistral no windows": ("Mistral", {"sliding_window": 7, "layer_types": ["full_attention"] * 2}),
    "SmolLM3 windows by layer alone": (
        "SmolLM3",
        {"use_sliding_window": False, "sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"] * 2 + ["full_attention"]},
    ),
    "Llama both scalings": ("Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "rope_scaling": LINEAR}),
    "Phi3 both shares": (
        "Phi3",
        {
            "hidden_size": 64,
            "partial_rotary_factor": 0.5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75},
        },
    ),
    "Llama dynamic with factor 1": ("Llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 1.0}}),
    "Llama causal": ("Llama", {"is_causal": True}),
}


def edited(path: Path, changed: dict) -> Path:
    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))
    return path


@pytest.mark.parametrize("name", EDITED)
def test_an_edited_description_is_read_as_transformers_reads_it(tmp_path, name):
    kind, changed = EDITED[name]
    path = edited(checkpoint(tmp_path, kind, **{key: value for key, value in changed.items() if key == "hidden_size"}), changed)
    assert_equal_logits(imported(path), theirs(path))


@pytest.mark.parametrize(
    ("kind", "changed", "said"),
    [
        ("Llama", {"is_causal": False}, "is_causal=False, so queries see later tokens"),
        ("Llama", {"transformers_weights": "other.safetensors"}, "transformers_weights=other.safetensors, which is not supported"),
        (
            "SmolLM3",
            {"rope_parameters": {"rope_type": "proportional", "rope_theta": 100.0, "partial_rotary_factor": 0.5}},
            "rope_type=proportional and layers without RoPE",
        ),
    ],
)
def test_what_would_be_another_model_is_refused(tmp_path, kind, changed, said):
    with pytest.raises(ConfigError, match=said):
        adopted(edited(checkpoint(tmp_path, kind), changed))


def test_one_file_of_weights_comes_before_an_index(tmp_path):
    path = checkpoint(tmp_path, shard="10KB")
    shards = sorted(path.glob("model-*.safetensors"))
    other = {name: value + 0.01 for file in shards for name, value in load_file(file).items()}
    save_file(other, path / "model.safetensors", metadata={"format": "pt"})
    assert_equal_logits(imported(path), theirs(path))
    shards[0].unlink()
    assert_equal_logits(imported(path), theirs(path))
