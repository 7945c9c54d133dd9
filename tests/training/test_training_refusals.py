"""Refusals of trainings: what is typed of processes, devices and a fine-tuning, and the words of
the message.
"""

from pathlib import Path

import pytest
import torch
from test_finetune import job
from test_train import config, make_corpus, tiny, token_file
from typed_lines import configured

from posbench.common import machine
from posbench.common.errors import ConfigError
from posbench.config.schema import FinetuneConfig, JobConfig, ModelConfig, TrainConfig
from posbench.model.build import pick_device
from posbench.model.inherit import check_beginning
from posbench.runs.directory import Run
from posbench.sweep import child_processes as sweep
from posbench.sweep import worker
from posbench.sweep.finetune import child_config
from posbench.sweep.jobs import Job
from posbench.training.distributed import World
from posbench.training.trainer import Trainer

NO_PLACE = "{_target_: posbench.encodings.none.NoEncoding}"
FINETUNED = [
    ("extension=rerope", "extension=rerope is not a fixed set of frequencies"),
    (
        "encoding=alibi extension=pi",
        "encoding=alibi has no frequencies that extension=pi could be trained into: choose"
        " extension=none",
    ),
    (f"extension=yarn 'finetune.encoding={NO_PLACE}'", "encoding=none has no frequencies"),
    ("encoding=learned", "finetune.length=64 has positions that encoding=learned lacks"),
    (
        "encoding=hybrid",
        "finetune.length=64 would change what encoding=hybrid does within the first 16 tokens",
    ),
    (
        "extension=pi finetune.target_len=32",
        "finetune.target_len=32 is shorter than a sequence of finetune.length=64",
    ),
    ("finetune.target_len=64", "finetune.target_len=64 has no effect, since extension=none"),
    ("finetune.frozen=true", "finetune.frozen=true leaves nothing to train"),
    (
        "extension=yarn extension.mode=fixed extension.target_len=128 finetune.target_len=256",
        r"^finetune.target_len=256 and extension.target_len=128 differ: make them equal",
    ),
    (
        "extension=yarn finetune=pose finetune.encoding.max_len=128 finetune.target_len=256",
        r"^finetune.target_len=256 and \S+=128 differ: make them equal",
    ),
    (
        "extension=yarn extension.mode=fixed extension.target_len=8 finetune=pose",
        "^extension.target_len=8 is shorter than a sequence of finetune.length=16",
    ),
]


@pytest.mark.parametrize(("typed", "message"), FINETUNED, ids=[typed for typed, _ in FINETUNED])
def test_what_cannot_be_trained_in_is_refused(typed, message):
    values = configured(f"encoding=rope extension=none {typed}")
    parent = job(values["encoding"], values["extension"])
    tuning = FinetuneConfig(**values.get("finetune", {}))
    with pytest.raises(ConfigError, match=message):
        check_beginning(child_config(parent, "x-16-s0-0", tuning), parent)


@pytest.fixture
def two_gpus(monkeypatch):
    """A machine that seems to have two GPUs, and on which no tensor can be made."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda name: None)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: pytest.fail("made a tensor"))


NO_NAME = "auto, cpu, cuda, one GPU such as cuda:1, or another kind"


@pytest.mark.parametrize(
    ("device", "processes", "message"),
    [
        ("auto", 3, "processes=3 exceed the 2 GPUs .*: choose fewer"),
        ("cuda", 3, "processes=3 exceed the 2 GPUs .*: choose fewer"),
        (
            "cuda:1",
            2,
            "device=cuda:1 is a single device, but processes=2 need one each: give device=cuda",
        ),
        ("gpu", 1, "did you mean cuda"),
        ("gpu:0", 1, "did you mean cuda"),
        ("GPU", 1, "did you mean cuda"),
        ("nvidia", 1, "did you mean cuda"),
        ("meta", 1, NO_NAME),
        ("cuda:x", 1, NO_NAME),
        ("cpu ", 1, NO_NAME),
    ],
)
def test_devices_that_are_not_there_are_refused(device, processes, message, two_gpus):
    with pytest.raises(ConfigError, match=message):
        pick_device(device, 0, processes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"processes": 1000}, "processes=1000 exceed the 4 cores .*: give processes=4 or fewer"),
        ({"processes": 5, "device": "auto"}, "processes=5 exceed the 4 cores"),
        ({"processes": 2, "device": "cuda"}, "processes=2 exceed the 0 GPUs .*: choose fewer"),
        (
            {"processes": 3, "train": TrainConfig(tokens_per_step=32, length=16)},
            "processes=3 cannot share a step of 2 windows",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_more_processes_than_the_machine_serves_are_refused_before_one_is_started(
    tmp_path, monkeypatch, settings, message
):
    monkeypatch.setattr(machine, "cores", lambda: 4)
    monkeypatch.setattr(machine, "gpus", lambda: 0)
    monkeypatch.setattr(worker.subprocess, "Popen", None)
    with pytest.raises(ConfigError, match=message):
        sweep.run_jobs([unstarted(tmp_path, **settings)], 1, "the command")


def unstarted(folder: Path, **changes) -> Job:
    cfg = JobConfig(**{"results_dir": str(folder), "device": "cpu", **changes})
    return Job(cfg, Run(folder / "rope-16-s0-0123456789"), "")


def test_as_many_processes_as_there_are_cores_are_not_refused_and_none_for_a_checkpoint(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(machine, "cores", lambda: 4)
    monkeypatch.setattr(machine, "gpus", lambda: 0)
    sweep.check_resources([unstarted(tmp_path, processes=4, device="auto")])
    checkpoint = ModelConfig(checkpoint={"sha256": "there"})  # which is evaluated in one process
    sweep.check_resources([unstarted(tmp_path, processes=1000, model=checkpoint)])


@pytest.mark.parametrize(
    ("text", "settings", "processes", "message"),
    [
        ({"validation": token_file(6, 1)}, {}, 1, "No document"),
        (
            {},
            {},
            9,
            r"processes=9 cannot share a step of 8 windows .*tokens_per_step=64, train\.length=8",
        ),
        ({}, {"graph": True}, 1, "train.graph=true needs a GPU, but device=cpu is not one"),
    ],
    ids=["text too short", "processes", "graph"],
)
def test_what_no_trainer_can_do_is_refused_before_training(text, settings, processes, message):
    with pytest.raises(ConfigError, match=message):
        Trainer(
            tiny(),
            make_corpus(**text),
            config(**settings),
            0,
            torch.device("cpu"),
            lambda n, step: n,
            World(0, processes),
        )
