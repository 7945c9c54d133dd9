"""The time of a checkpoint's texts from one layer: exact on a machine whose every pair, token and
row takes a known time.
"""

import functools
import types

import pytest
import torch
from conftest import node

from posbench.config.schema import JobConfig
from posbench.evaluation import speed_of_evaluation as module
from posbench.evaluation.protocol import ReadVolume
from posbench.evaluation.speed_of_evaluation import EvaluationSpeed
from posbench.model.build import make_model
from posbench.model.gpt import GPT
from posbench.model.kernels import dispatch
from posbench.position.instantiate import make_method
from posbench.position.plan import make_plan

MODEL = {"d_model": 24, "n_layer": 5, "n_head": 6, "n_kv_head": 2, "d_ff": 40, "head_dim": 8}
TRAIN_LEN, VOCAB = 512, 20000
PLAIN = node("scale_attention", "none")
TOKEN, ROW = 3e-6, 2e-3  # seconds of this machine; a row is compared with VOCAB entries


def config(**encoding) -> JobConfig:
    parts = {
        "encoding": {**node("encoding", "rope"), **encoding},
        "model": MODEL,
        "train": {"length": TRAIN_LEN},
    }
    return JobConfig.of({**parts, "device": "cpu"})


def pairs(layer) -> int:
    return sum(int((band.last_T - band.first_T + 1).clamp(min=0).sum()) for band in layer.bands)


class Machine:
    """A clock that only what is asked of the model moves: bands and windows have their own time per
    pair of a query head.
    """

    def __init__(self) -> None:
        self.now, self.attended = 0.0, []

    def pair(self, layer) -> float:
        return 1e-9 if layer.causal else 2e-9 if len(layer.bands) == 1 else 3e-9

    def attend(self, layer, x_BTC, q_BHTD, k_BGTD, v_BGTD) -> None:
        self.attended.append((len(layer.n_T), v_BGTD.dtype))
        self.now += self.pair(layer) * pairs(layer) * q_BHTD.shape[1]

    def block(self, model: GPT) -> GPT:
        """The model with a block that moves the clock alone."""

        def call(x_BTC, layer) -> None:
            self.now += TOKEN * x_BTC.shape[1] + self.pair(layer) * pairs(layer) * MODEL["n_head"]

        return types.SimpleNamespace(layers=[call], lm_head=model.lm_head)

    def cross_entropy(self, logits_RV, target_R, reduction) -> torch.Tensor:
        self.now += ROW * logits_RV.shape[0] * logits_RV.shape[1] / VOCAB
        return target_R

    def seconds(self, extension: str, tokens: int, rows: int, texts: int, **encoding) -> float:
        """Time of a reading, added up layer by layer."""
        cfg = config(**encoding)
        method = make_method(cfg.encoding, make_model(cfg, 50).encoding.shape)
        layers = make_plan(method, make_method(node("extension", extension)), length=tokens).layers
        each = [
            TOKEN * tokens + self.pair(layer) * pairs(layer) * MODEL["n_head"] for layer in layers
        ]
        layer_seconds = sum(each) * (len(layers) - 1 + rows / tokens) / len(layers)
        return texts * (layer_seconds + ROW * rows)


@pytest.fixture
def machine(monkeypatch):
    machine, model_property = Machine(), EvaluationSpeed.__dict__["model"]
    monkeypatch.setattr(module, "time", types.SimpleNamespace(perf_counter=lambda: machine.now))
    monkeypatch.setattr(module, "attend", machine.attend)
    monkeypatch.setattr(
        EvaluationSpeed,
        "model",
        property(functools.cache(lambda probe: machine.block(model_property.func(probe)))),
    )
    monkeypatch.setattr(module.F, "cross_entropy", machine.cross_entropy)
    return machine


@pytest.mark.parametrize(
    "extension", ["none", "rerope", "dca", "streaming", "recompute_window", "yarn"]
)
def test_a_text_takes_the_time_of_its_tokens_pairs_and_rows(machine, extension):
    probe = EvaluationSpeed(config(), VOCAB, "fp32")
    for texts, tokens, rows in ((1, 300, 7), (3, 640, 640)):
        seconds = probe.seconds(
            ReadVolume(texts, tokens, rows, 1),
            node("extension", extension),
            node("scale_attention", "log_n"),
        )
        assert seconds == pytest.approx(
            machine.seconds(extension, tokens, rows, texts), rel=1e-6
        ), (
            tokens,
            rows,
        )


def test_layers_with_windows_are_measured_beside_those_without(machine):
    windows = [64, None, 64, None, None]
    seconds = EvaluationSpeed(config(window=windows), VOCAB, "bf16").seconds(
        ReadVolume(1, 640, 9, 1), node("extension", "none"), PLAIN
    )
    assert seconds == pytest.approx(machine.seconds("none", 640, 9, 1, window=windows), rel=1e-6)
    assert {dtype for _, dtype in machine.attended} == {torch.bfloat16}


def test_a_long_text_is_told_by_its_pairs_from_as_much_of_it_as_a_second_allows(
    machine, monkeypatch
):
    probe, methods = (
        EvaluationSpeed(config(), VOCAB, "fp32"),
        [node("extension", name) for name in ("none", "yarn", "ntk")],
    )
    reading = ReadVolume(1, 30000, 10, 1)
    seconds = [probe.seconds(reading, method, PLAIN) for method in methods]
    assert seconds == pytest.approx(3 * [machine.seconds("none", 30000, 10, 1)], rel=1e-6)
    assert (
        max(length for length, _ in machine.attended) == 1024
    )  # above 1.25 x 512, and one measurement for three methods
    assert (
        sum(length == 1024 for length, _ in machine.attended) == 3 + 3
    )  # of the whole layer, and of one key head
    monkeypatch.setattr(module, "MEASURED_TOKENS", 256)
    again = EvaluationSpeed(config(), VOCAB, "fp32")
    again.seconds(reading, node("extension", "window"), PLAIN)
    assert {length for length, _ in machine.attended} == {1024, 640, 256}


def test_the_layer_is_run_as_an_evaluation_runs_it(monkeypatch):
    """Without a pretended machine: what is called is what the model calls, in the format that was
    asked for.
    """
    seen = []
    attend = dispatch.attend
    monkeypatch.setattr(
        module, "attend", lambda *arguments: seen.append(arguments[4].dtype) or attend(*arguments)
    )
    monkeypatch.setattr(module, "MEASURED_TOKENS", 64)
    for dtype, kind in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        for extension in ("none", "rerope", "window"):
            seconds = EvaluationSpeed(config(), VOCAB, dtype).seconds(
                ReadVolume(1, 80, 8, 1), node("extension", extension), PLAIN
            )
            assert 0 < seconds < 60
        assert set(seen) == {kind}
        seen.clear()
