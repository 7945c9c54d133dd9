"""Steps recorded as graphs: on a GPU against eager steps, and on a CPU with a stand-in for the
recorder that replays by calling.
"""

import itertools
import time

import pytest
import torch
from conftest import TRAIN_LEN, choices, make_triple, small_model
from test_train import Run, config, make_corpus, task_corpus, tiny

from posbench.config.schema import TrainConfig
from posbench.data.copy import Copy
from posbench.data.mix import Mix
from posbench.data.task import TaskSplit
from posbench.position.plan import training_plan_maker
from posbench.training import optimizers as optim
from posbench.training.distributed import World
from posbench.training.graph import EAGER_STEPS, Recorded, StepGraphs, why_eager
from posbench.training.trainer import Trainer


class Calls:
    """Records a step as a call of it with the recorded tensors, which is made when it is
    replayed.
    """

    def __init__(self) -> None:
        self.recorded = 0

    def __call__(self, step, inputs):
        self.recorded += 1
        outputs = [torch.zeros(()), torch.zeros(())]

        def replay() -> None:
            for output, result in zip(outputs, step(*inputs), strict=True):
                output.copy_(result)

        return Recorded(replay, inputs, outputs)


def trainer(graph: bool, corpus=None, record=None, **changes) -> Trainer:
    training = Trainer(
        tiny(),
        corpus or make_corpus(),
        config(steps=30, **changes),
        0,
        torch.device("cpu"),
        lambda n, step: n,
    )
    assert training.graphs is None
    if graph:
        training.graphs = StepGraphs(training._step, training.model.zero_grad, record or Calls())
    return training


def followed(training: Trainer, steps: int) -> list[float]:
    """Loss of every step."""
    training.recent_steps = type(training.recent_steps)(maxlen=steps)
    for _ in range(steps):
        training.advance()
    training._finish_pending_step()
    return [loss for loss, *_ in training.recent_steps]


def same(training: Trainer, other_training: Trainer) -> bool:
    return all(
        map(
            torch.equal,
            training.model.state_dict().values(),
            other_training.model.state_dict().values(),
        )
    )


def mixed():
    corpus = make_corpus(vocab_size=11)
    corpus.mix = Mix(Copy(11), "copy", 0.5, lambda split: TaskSplit(Copy(11), split))
    return corpus


@pytest.mark.parametrize(
    ("corpus", "changes", "shapes"),
    [
        (None, {}, 1),
        (None, {"length": [4, 8], "micro_batches": 2}, 2),
        (None, {"optimizer": "adamw", "micro_batches": 3, "clip": 0.0}, 1),
        (task_corpus, {"micro_batches": 2}, 1),
        (mixed, {}, 1),
    ],
)
@pytest.mark.usefixtures("one_thread")
def test_recorded_steps_are_the_eager_ones_and_each_shape_is_recorded_once(corpus, changes, shapes):
    calls, corpora = Calls(), [corpus and corpus() for _ in range(2)]
    eager, recorded = (
        trainer(False, corpora[0], **changes),
        trainer(True, corpora[1], calls, **changes),
    )
    assert followed(eager, 30) == followed(recorded, 30) and same(eager, recorded)
    assert calls.recorded == shapes and all(
        count == EAGER_STEPS for count in recorded.graphs.eager_steps.values()
    )
    assert eager.figures() | {"tokens_per_second": 0} == recorded.figures() | {
        "tokens_per_second": 0
    }


@pytest.mark.usefixtures("one_thread")
def test_a_training_resumed_from_a_recorded_step_ends_with_the_same_bits(tmp_path):
    undisturbed, first, rest = trainer(True), trainer(True), trainer(True)
    followed(undisturbed, 30)
    followed(first, 12)
    run = Run(tmp_path)
    with run.lock():
        first.save(run)
        rest.resume(run)
    followed(rest, 18)
    assert rest.step == 30 and same(undisturbed, rest)


@pytest.mark.usefixtures("one_thread")
def test_a_step_that_cannot_be_recorded_stays_eager_and_is_said_once(capsys):
    def fails(step, inputs):
        raise RuntimeError(
            "CUDA error: operation not permitted when stream is capturing\nmore of it"
        )

    eager, other = trainer(False, length=[4, 8]), trainer(True, record=fails, length=[4, 8])
    assert followed(eager, 30) == followed(other, 30) and same(eager, other)
    lines = [line for line in capsys.readouterr().err.splitlines() if "train.graph" in line]
    assert (
        len(lines) == 1
        and "(CUDA error: operation not permitted when stream is capturing): training goes on"
        in lines[0]
    )


def test_when_a_step_is_a_graph():
    cpu, gpu, rope = (
        torch.device("cpu"),
        torch.device("cuda"),
        small_model(make_triple("rope", "none", "none")[0]).encoding,
    )
    drawn = make_triple("randomized", "none", "none")[0]
    assert (
        why_eager(TrainConfig(), rope, gpu, World()) is None
        and why_eager(TrainConfig(graph=True), rope, gpu, World()) is None
    )
    assert why_eager(TrainConfig(), rope, cpu, World()) == "there is no GPU"
    assert why_eager(TrainConfig(graph=False), rope, gpu, World()) == "train.graph=false"
    assert "processes=2" in why_eager(
        TrainConfig(), rope, gpu, World(0, 2)
    ) and "new positions" in why_eager(TrainConfig(), drawn, gpu, World())


def test_rates_stay_where_a_recorded_step_reads_them():
    eager = trainer(False)
    group, *_ = eager.optimizers[0].param_groups
    group["lr"] = rate = torch.tensor(0.5)  # as on a GPU
    optim.set_rate(eager.optimizers, 0.25)
    assert group["lr"] is rate and float(rate) == pytest.approx(0.25 * group["peak_lr"])
    optim.place_rates(eager.optimizers)  # of parameters on a CPU, after a state of a GPU was loaded
    assert group["lr"] == pytest.approx(0.25 * group["peak_lr"]) and isinstance(group["lr"], float)


def on_gpu(encoding: str, graph: bool, **changes) -> Trainer:
    torch.manual_seed(0)
    model = small_model(make_triple(encoding, "none", "none")[0]).to("cuda")
    small = {
        "length": TRAIN_LEN,
        "tokens_per_step": 64,
        "steps": 30,
        "validate_windows": 4,
        "dtype": "bf16",
        "warmup": 3,
        "graph": graph,
    }
    plans = training_plan_maker(model.encoding, model.scale, "cuda", 0)
    return Trainer(
        model, make_corpus(), TrainConfig(**small | changes), 0, torch.device("cuda"), plans
    )


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("encoding", "optimizer"), list(itertools.product(choices("encoding"), ["muon", "adamw"]))
)
def test_graphs_on_a_gpu_are_the_eager_steps(encoding, optimizer, tmp_path):
    """30 steps of two lengths in two micro-batches, and the last half of them again from a saved
    state.
    """
    changes = {"length": [TRAIN_LEN // 2, TRAIN_LEN], "micro_batches": 2, "optimizer": optimizer}
    eager, recorded, rest = (on_gpu(encoding, graph, **changes) for graph in (False, None, None))
    expected_losses = followed(eager, 30)
    with Run(tmp_path).lock():
        losses = followed(recorded, 15)
        recorded.save(Run(tmp_path))
        rest.resume(Run(tmp_path))
    losses += followed(recorded, 15)
    assert losses == pytest.approx(expected_losses, abs=2e-3)
    assert losses[15:] == pytest.approx(followed(rest, 15), abs=2e-3)
    if recorded.graphs is not None:
        assert len(recorded.graphs.recorded) == 2 and not recorded.graphs.refused
    for expected, actual in zip(eager.model.parameters(), recorded.model.parameters(), strict=True):
        torch.testing.assert_close(expected, actual, rtol=0, atol=2e-2)


@pytest.mark.gpu
def test_a_graph_takes_less_than_half_the_time_of_its_launches():
    times = []
    for graph in (False, True):
        training = on_gpu("rope", graph)
        followed(training, 10)
        began = time.monotonic()
        followed(training, 20)
        torch.cuda.synchronize()
        times.append(time.monotonic() - began)
    assert times[1] < times[0] / 2, times
