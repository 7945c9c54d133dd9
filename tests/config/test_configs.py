"""Every yaml composes, instantiates and holds only what its class or schema takes."""

import copy
import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from conftest import CONFIGS, choices, node
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from tokenizers import Tokenizer, models

from posbench.common.errors import ConfigError
from posbench.config import compose as composition
from posbench.config.compose import unresolved_values
from posbench.config.defaults import resolved_config
from posbench.config.schema import SCHEMAS, JobConfig, typed_group
from posbench.evaluation.registry import protocol
from posbench.model.build import check_methods
from posbench.model.gpt import GPT, make_shape
from posbench.position.instantiate import make_method
from posbench.sweep.cells import configs_by_task
from posbench.sweep.jobs import plan_jobs

METHODS = [
    (group, name)
    for group in ("encoding", "extension", "scale_attention")
    for name in choices(group)
]
NO_CHOICE = ("hydra", "experiment", "task")  # a task is named by evaluate.tasks
FOLDERS = [
    path.name for path in sorted(CONFIGS.iterdir()) if path.is_dir() and path.name not in NO_CHOICE
]
GROUPS = [(group, name) for group in FOLDERS for name in choices(group)]


@pytest.fixture(scope="module", autouse=True)
def composer():
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        yield


@pytest.fixture(scope="module")
def parts(composer) -> composition.Composer:
    """Composes words part by part, as a sweep does; test_composer.py compares it with Hydra."""
    return composition.Composer()


@pytest.mark.parametrize(("group", "name"), GROUPS, ids=map("=".join, GROUPS))
def test_every_choice_composes_into_a_job(parts, group, name):
    words = [f"{group}={name}"]
    for job in composition.raw_configs_of_jobs(copy.deepcopy(parts.values(words)), words, parts):
        resolved_config(job)


@pytest.mark.parametrize("name", choices("task"))
def test_every_task_is_chosen_by_its_name(name):
    words = ["evaluate.protocol=accuracy", f"evaluate.tasks=[{name}]"]
    (cfg,) = composition.raw_configs_of_jobs(unresolved_values(compose("run", words)), words)
    (each,) = configs_by_task(resolved_config(cfg), "accuracy")
    assert each.evaluate.tasks == [{"name": name, **node("task", name)}]


@pytest.mark.parametrize("group", SCHEMAS)
def test_the_yaml_of_a_group_shows_the_schemas_defaults_and_nothing_else(group):
    assert OmegaConf.to_container(compose("run")[group]) == asdict(SCHEMAS[group]())


def test_a_job_has_the_defaults_of_run_yaml_and_its_order_which_is_that_of_config_yaml():
    (cfg,) = composition.raw_configs_of_jobs(unresolved_values(compose("run")), [])
    del cfg["finetune"]
    job = JobConfig.of(cfg)
    assert list(job.as_dict()) == list(cfg) and job == JobConfig(
        encoding=job.encoding, data=job.data
    )


@pytest.mark.parametrize(
    ("name", "vocab_size", "millions"),
    [("small", 1024, 1.0), ("30m", 1024, 28.3), ("125m", 50257, 123.6)],
)
def test_a_size_has_the_parameters_that_its_yaml_names(name, vocab_size, millions):
    config = typed_group("model", OmegaConf.to_container(compose("run", [f"model={name}"]).model))
    with torch.device("meta"):  # no weight is made
        model = GPT(
            config, make_method(node("encoding", "rope"), make_shape(config, 64)), vocab_size
        )
    assert sum(parameter.numel() for parameter in model.parameters()) / 1e6 == pytest.approx(
        millions, abs=0.05
    )


def test_a_star_is_every_choice_of_its_group():
    cfg = compose("run", ["experiment=demo"])
    cfg.experiment.grid = [{"encoding": "*"}]
    expanded = composition.raw_configs_of_jobs(unresolved_values(cfg), [])
    assert [job["encoding"]["_target_"] for job in expanded] == [
        node("encoding", name)["_target_"] for name in choices("encoding")
    ]


@pytest.mark.parametrize(
    ("words", "block"), [((), 1), (("train.length=1024",), 1), (("train.length=8192",), 512)]
)
def test_the_floor_is_read_in_blocks_above_1024_tokens_unless_the_command_says_how(words, block):
    (job,) = composition.raw_configs_of_jobs(
        unresolved_values(compose("run", list(words))), list(words)
    )
    assert resolved_config(job).evaluate.floor_block == block
    assert (
        resolved_config(
            {**job, "evaluate": {**job["evaluate"], "floor_block": 3}}
        ).evaluate.floor_block
        == 3
    )


@pytest.mark.parametrize(
    ("words", "lengths", "max_length", "windows", "targets"),
    [
        (("train.length=1024",), [1024, 2048, 4096, 8192, 16384], 16384, 512, 128),
        (("train.length=1024", "evaluate.lengths=[128,2048]"), [128, 2048], 16384, 512, 128),
        (("train.length=8192",), [8192, 16384, 32768], 32768, 8, 1024),
        (("train.length=8192", "evaluate.lengths=[2048,16384]"), [2048, 16384], 16384, 8, 1024),
        (
            ("train.length=8192", "evaluate.max_length=20000", "evaluate.windows=5"),
            [8192, 16384],
            20000,
            5,
            1024,
        ),
    ],
)
def test_defaults_fit_the_training_length_and_ids_hash_their_numbers(
    words, lengths, max_length, windows, targets
):
    (job,) = composition.raw_configs_of_jobs(
        unresolved_values(compose("run", list(words))), list(words)
    )
    settings = resolved_config(job).evaluate
    assert [getattr(settings, key) for key in ("lengths", "max_length", "windows", "targets")] == [
        lengths,
        max_length,
        windows,
        targets,
    ]


def test_text_of_the_training_is_scored_for_checkpoints_alone():
    (job,) = composition.raw_configs_of_jobs(
        unresolved_values(compose("run", ["evaluate.split=all"])), ["evaluate.split=all"]
    )
    with pytest.raises(ConfigError, match="evaluate.split=all scores the text of the training too"):
        resolved_config(job)
    assert (
        resolved_config({**job, "model": {**job["model"], "path": "model.gguf"}}).evaluate.split
        == "all"
    )


@pytest.mark.parametrize("name", [name for name in choices("experiment") if name != "none"])
def test_every_experiment_expands_to_jobs_with_references(parts, name, monkeypatch, tmp_path):
    monkeypatch.setattr(
        "posbench.data.corpus.fingerprint", lambda data, cache: "0" * 64
    )  # the user's own text is not here
    monkeypatch.setattr(
        "posbench.pretrained.checkpoint.wheel_file", lambda key, path: described(tmp_path)
    )  # nor is the wheel
    words = [f"experiment={name}"]
    values = copy.deepcopy(parts.values(words))
    assert values["experiment"]["name"] == name
    raw_configs = composition.raw_configs_of_jobs(values, words, parts)
    check_methods(raw_configs)
    jobs = plan_jobs(raw_configs)  # resolves each
    assert jobs and all(job.user_cells for job in jobs)
    for job in jobs:
        floored = job.config.evaluate.floor and any(
            protocol(cell.protocol).floor for cell in job.user_cells
        )
        assert any(cell.reference for cell in job.cells) == floored


def described(folder: Path) -> Path:
    """A checkpoint of SmolLM2's shape that has no numbers: its description, a tokenizer of two
    words, and weights of which only the digest is read."""
    sizes = {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    }
    description = {
        "model_type": "llama",
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "rope_theta": 1e5,
        **sizes,
    }
    (folder / "config.json").write_text(json.dumps(description))
    (folder / "model.safetensors").touch()
    Tokenizer(models.BPE({"a": 0, "b": 1}, [])).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": "{{ messages[0]['content'] }}"})
    )
    return folder
