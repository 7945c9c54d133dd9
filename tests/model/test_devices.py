"""The path on a GPU: no tensor of the CPU strays into it, and its numbers are the CPU's.

On a pretended GPU by default, and on a real one with `-m gpu` (`make test-gpu`).
"""

import copy
import functools
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import TRAIN_LEN, choices, legal, legal_pairs, make_triple, small_model
from pretended import Mixed, Pretended, attention
from script_calls import call
from spoils import PLACES, SMALL, write_text
from test_evaluate import text

from posbench.config.schema import EvaluateConfig, TrainConfig
from posbench.evaluation.protocols.fixed_targets import FixedTargets
from posbench.evaluation.scorer import Scorer
from posbench.model.kernels import blocks, flex
from posbench.position.plan import training_plan_maker
from posbench.sweep import job_process as job
from posbench.training.trainer import Trainer

LONG = 4 * TRAIN_LEN
CORPUS = SimpleNamespace(
    train=text([90, 300]),
    validation=text([200]),
    test=text([90, 20, 300, 65]),
    bos=None,
    vocab_size=50,
    mix=None,
)
SCALED_PAIRS = (
    ("rope", "rerope"),
    ("fox", "none"),
    ("fire", "window"),
)


def few(encoding: str) -> list[str]:
    """Of the extensions that an encoding allows, those of most bands and others: all with rope."""
    legal = [extension for candidate, extension, _ in legal_pairs(LONG) if candidate == encoding]
    return legal if encoding == "rope" else legal[:: max(1, len(legal) // 2)]


TRIPLES = [
    (encoding, extension, "none") for encoding in choices("encoding") for extension in few(encoding)
]
SCALED = [
    (encoding, extension, scale)
    for scale in choices("scale_attention")
    for encoding, extension in SCALED_PAIRS
]
TRIPLES += [triple for triple in SCALED if legal(triple, LONG)]


@pytest.fixture(params=[pytest.param("real", marks=pytest.mark.gpu), "pretended"])
def gpu(request, monkeypatch):
    """A GPU with blocks of few queries, on which FlexAttention must not fail. A pretended one says
    what torch says of a real one.
    """
    monkeypatch.setattr(flex, "leave_to_blocks", _raise)
    for name, size in (("BLOCK_QUERIES", 7), ("MASKED_BLOCK_QUERIES", 7)):
        monkeypatch.setitem(getattr(blocks, name), "cuda", size)
    monkeypatch.setattr(blocks, "LONGEST_SINGLE_BLOCK", 5)
    if request.param == "real":
        yield "cuda"
        return
    monkeypatch.setattr(flex, "_flex_attention", lambda device: attention)
    # It would compare the devices that tensors say they are on within torch's calls and outside.
    monkeypatch.setattr(
        blocks, "checkpoint", functools.partial(blocks.checkpoint, determinism_check="none")
    )
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 0)
    real = torch.autocast
    monkeypatch.setattr(
        torch, "autocast", lambda kind, *args, **kwargs: real("cpu", *args, **kwargs)
    )
    with Pretended():
        yield "cuda"


def trainer_on(device: str, encoding: str, trained_scale: str, **config: object) -> Trainer:
    model = small_model(make_triple(encoding, "none", "none")[0])
    model.scale = (
        make_triple(encoding, "none", trained_scale)[2] if trained_scale != "none" else None
    )
    model = model.to(device)
    config = TrainConfig(
        **{
            "length": TRAIN_LEN,
            "tokens_per_step": 64,
            "validate_windows": 4,
            "dtype": "fp32",
            "warmup": 1,
            **config,
        }
    )
    return Trainer(
        model,
        CORPUS,
        config,
        0,
        torch.device(device),
        training_plan_maker(model.encoding, model.scale, device, 0),
    )


def _raise(layer, error):
    raise error


def losses(model, extension, scale, device: str, dtype: str = "fp32") -> np.ndarray:
    """nll of the targets of one evaluation at four times the training length."""
    config = EvaluateConfig(
        lengths=[LONG], max_length=LONG, windows=3, targets=2, batch_tokens=2 * LONG, dtype=dtype
    )
    scorer = Scorer(copy.deepcopy(model).to(device), CORPUS, extension, scale, config, device)
    return FixedTargets(scorer).run(LONG)[1]["nll"]


@pytest.mark.parametrize("triple", TRIPLES, ids="-".join)
def test_evaluations_stay_on_the_device_and_give_the_same_numbers(triple, gpu):
    encoding, extension, scale = make_triple(*triple)
    model = small_model(encoding)
    np.testing.assert_allclose(
        losses(model, extension, scale, gpu),
        losses(model, extension, scale, "cpu"),
        rtol=0,
        atol=1e-4,
    )


def trained(encoding: str, trained_scale: str, device: str, optimizer: str = "muon") -> list[float]:
    """Two steps, through `attend_fused` or `attend_by_blocks`, then a validation; the losses of
    both."""
    trainer = trainer_on(device, encoding, trained_scale, steps=2, optimizer=optimizer)
    for _ in range(2):
        trainer.advance()
    assert all(parameter.device.type == device for parameter in trainer.model.parameters())
    return [trainer.validate(), trainer.figures()["loss"]]


@pytest.mark.parametrize("encoding", choices("encoding"))
def test_trainings_stay_on_the_device_and_give_the_same_numbers(encoding, gpu):
    scale = "ssmax" if encoding == "rope" else "none"
    optimizer = "adamw" if encoding == "alibi" else "muon"
    np.testing.assert_allclose(
        trained(encoding, scale, gpu, optimizer),
        trained(encoding, scale, "cpu", optimizer),
        rtol=0,
        atol=1e-3,
    )


@pytest.mark.parametrize(
    ("encoding", "scale"),
    [
        *((name, "none") for name in choices("encoding")),
        ("rope", "ssmax"),
        ("rope", "learned_sink"),
    ],
)
def test_a_step_copies_nothing_but_its_inputs(encoding, scale, monkeypatch):
    """And waits for one number, the loss of the step before. Positions that are drawn are inputs
    too.
    """
    with Pretended() as device:
        trainer = trainer_on("cuda", encoding, scale, steps=9)
        for _ in range(2):
            trainer.advance()
        drawn, device.copies = trainer.model.encoding.random, []
        trainer.advance()
    # torch groups the tensors of AdamW in C, where they are no pretended ones, and takes the rate
    # to where they really are.
    groups = len(trainer.optimizers[-1].param_groups)
    assert device.copies.count("to cpu") == groups
    device.copies = [direction for direction in device.copies if direction != "to cpu"]
    assert (
        device.copies.count("item") == 1
        and device.copies.count("to cuda") == len(device.copies) - 1
    )
    assert len(device.copies) == 3 or drawn, device.copies


@pytest.mark.parametrize("encoding", ["rope", "alibi", "fox"])
def test_bf16_stays_on_the_device(encoding, gpu):
    method, extension, scale = make_triple(encoding, "none", "none")
    np.testing.assert_allclose(
        *(losses(small_model(method), extension, scale, device, "bf16") for device in (gpu, "cpu")),
        rtol=0,
        atol=0.1,
    )


def test_the_pretended_device_refuses_what_a_real_one_refuses(gpu, request):
    refused = (RuntimeError, TypeError) if request.node.callspec.params["gpu"] == "real" else Mixed
    on_cpu, on_gpu = torch.arange(3.0), torch.arange(3.0, device=gpu)
    assert (
        on_gpu.device.type == "cuda"
        and on_gpu.is_cuda
        and on_gpu.cpu().device.type == "cpu"
        and on_cpu.device.type == "cpu"
    )
    for mixed in (
        lambda: on_cpu + on_gpu,
        lambda: torch.cat([on_cpu, on_gpu]),
        lambda: torch.where(on_gpu > 1, on_cpu, on_gpu),
        lambda: on_cpu[on_gpu.long()],
        lambda: on_gpu.clone().add_(on_cpu),
        lambda: torch.stack([on_cpu[0], on_gpu[0]]),
        lambda: on_gpu.numpy(),
        lambda: torch.nn.functional.embedding(torch.ones(2, dtype=torch.long), on_gpu[:, None]),
        lambda: torch.rand(3, device=gpu, generator=torch.Generator()),
    ):
        with pytest.raises(refused):
            mixed()
    for allowed in (
        lambda: on_gpu * on_cpu[1],
        lambda: on_gpu[on_cpu.long()],
        lambda: on_gpu.clone().copy_(on_cpu),
        lambda: on_gpu + 1,
    ):
        assert allowed().is_cuda
    weight = torch.ones(3, requires_grad=True).to(gpu).detach().requires_grad_()
    (weight * on_gpu).sum().backward()
    assert (
        weight.grad.is_cuda
        and torch.zeros_like(on_gpu).is_cuda
        and on_gpu.sum().is_cuda
        and not (on_gpu.cpu() + on_cpu).is_cuda
    )


def _in_jobs(monkeypatch) -> str:
    """Pretend the GPU in each job too: a mode is of one thread, and a job has its own. Returns the
    GPU's name.
    """
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "pretended")
    main = job.main

    def on_gpu(spec: str) -> int:
        with Pretended():
            return main(spec)

    monkeypatch.setattr(job, "main", on_gpu)
    return "pretended"


def test_a_whole_job_on_a_gpu_ends_with_the_numbers_of_the_cpu(
    gpu, request, tmp_path, capfd, monkeypatch
):
    """From scripts/run.py on, with weights that go to the disk and back."""
    name = (
        torch.cuda.get_device_name()
        if request.node.callspec.params["gpu"] == "real"
        else _in_jobs(monkeypatch)
    )
    write_text(tmp_path / "text")
    small = [word for word in SMALL if word != "device=cpu"] + ["train.dtype=fp32", "encoding=rope"]
    nll_by_device = {}
    for device in ("cpu", gpu):
        for extension in ("none", "rerope"):
            done = call(
                capfd,
                tmp_path,
                "run",
                *small,
                *PLACES,
                f"results_dir={device}",
                f"device={device}",
                f"extension={extension}",
            )
            assert done.returncode == 0, done.stderr
        rows = [
            json.loads(path.read_text())["rows"]
            for path in sorted((tmp_path / device).glob("*/evals/*/*.json"))
        ]
        nll_by_device[device] = [row["nll"] for part in rows for row in part]
    (provenance,) = (tmp_path / gpu).glob("*/provenance.json")
    assert name in provenance.read_text()
    np.testing.assert_allclose(nll_by_device[gpu], nll_by_device["cpu"], rtol=0, atol=1e-2)
    assert len(nll_by_device[gpu]) == 6
