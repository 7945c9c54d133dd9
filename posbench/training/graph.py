"""A training step as one CUDA graph, which is one launch.

The launches of a small step take 40 ms on a GPU whose arithmetic takes 2. The first steps of each
shape are made eagerly, since they make what a step allocates once: states of optimizers, tables of
plans. Then a step is recorded, which executes nothing, and replayed from there on: its inputs are
copied into the tensors it was recorded with. A resumed training makes its first steps eagerly
again, with the same kernels.

What is written here has never run on a GPU; tests/training/test_graph.py has the tests for one, and
drives it on a CPU by a stand-in.

Letters: B sequences, T tokens.
"""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from posbench.common.errors import ConfigError, first_line
from posbench.config.schema import TrainConfig
from posbench.encodings.as_trained import AsTrained
from posbench.position.interfaces import Encoding
from posbench.training.distributed import World

EAGER_STEPS = 3  # steps of a shape before it is recorded
Step = Callable[..., tuple[Tensor, Tensor]]


class Recorded(NamedTuple):
    """A recorded step: `replay` makes it with what `inputs` hold, into `outputs`."""

    replay: Callable[[], None]
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]


def check_graph(config: TrainConfig, device: str) -> None:
    """Raise ConfigError for train.graph=true without a GPU. `device` may be auto."""
    on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    if config.graph and not on_gpu:
        raise ConfigError(
            f"train.graph=true needs a GPU, but device={device} is not one: leave it out, or choose"
            " device=cuda."
        )


def why_eager(
    config: TrainConfig, encoding: Encoding | None, device: torch.device, world: World
) -> str | None:
    """Reason why the steps of a training cannot be a graph, None if they can. Raises ConfigError as
    `check_graph` does.
    """
    check_graph(config, device.type)
    if device.type != "cuda":
        return "there is no GPU"
    if config.graph is False:
        return "train.graph=false"
    if world.size > 1:
        return f"processes={world.size} exchange gradients within a step"
    if isinstance(encoding, AsTrained):
        return "the model's own code, which transformers has, is not recorded"
    if encoding is not None and encoding.random:
        return "the encoding draws new positions for each step"
    return None


class StepGraphs:
    """A training's step by the shape of its inputs: eager for EAGER_STEPS steps, then recorded as a
    CUDA graph and replayed.

    `step(*inputs)` makes one step on tensors of the device, leaves no gradients, and returns its
    loss and the norm of its gradient; what else it depends on must not change from step to step,
    but for tensors that are changed in place. `recover` undoes what a failed record leaves. A step
    that cannot be recorded stays eager, with one line on stderr."""

    def __init__(
        self,
        step: Step,
        recover: Callable[[], None],
        record: Callable[[Step, Sequence[Tensor]], Recorded] | None = None,
    ) -> None:
        self.step = step
        self.recover = recover
        self.record = record or self._capture
        # Memory that all graphs share: one is replayed after the other, and outputs are copied at
        # once. None before the first record.
        self.pool = None
        self.eager_steps: Counter[tuple] = Counter()  # {shape of inputs: number of steps}
        self.recorded: dict[tuple, Recorded] = {}  # {shape of inputs: its graph}
        self.refused = False  # True once a record has failed: every later step is eager

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Make a step; the results are tensors of their own."""
        shape = tuple(tensor.shape for tensor in inputs)
        # The first steps of a shape stay eager: they make what a recording must find in place.
        had_eager_steps = self.eager_steps[shape] >= EAGER_STEPS
        if shape not in self.recorded and had_eager_steps and not self.refused:
            self._record(shape, inputs)
        if shape not in self.recorded:
            self.eager_steps[shape] += 1
            return self.step(*inputs)
        recorded = self.recorded[shape]
        for recorded_input, tensor in zip(recorded.inputs, inputs, strict=True):
            recorded_input.copy_(tensor)
        recorded.replay()
        loss, norm = recorded.outputs
        return loss.clone(), norm.clone()  # since the next replay writes into the outputs

    def _capture(self, step: Step, inputs: Sequence[Tensor]) -> Recorded:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            outputs = step(*inputs)
        self.pool = graph.pool()
        return Recorded(graph.replay, inputs, outputs)

    def _record(self, shape: tuple, inputs: Sequence[Tensor]) -> None:
        """Record the step of a shape, or have all steps stay eager if that fails."""
        # A compiler may raise any exception. One of another cause is not lost: the eager step that
        # follows raises it again.
        try:
            self.recorded[shape] = self.record(self.step, [tensor.clone() for tensor in inputs])
        except Exception as error:
            self.refused = True
            self.recover()
            print(
                f"train.graph: a step cannot be recorded ({first_line(error)}): training goes on"
                " without a graph",
                file=sys.stderr,
                flush=True,
            )
