"""Several processes of one training: each computes the gradient of its rows of every batch, and all
take the same step.

torchrun (posbench/sweep/job_process.py) starts them and ends the rest when one dies. This module is
their communication."""

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from posbench.common.errors import first_line

# The others wait while the first process waits for a run's lock or writes. They notice a dead
# process without any timeout.
PATIENCE = timedelta(weeks=2)


class Lost(SystemExit):
    """Exit with code 0 because another process of this training is gone. That process reports its
    own failure.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(0)
        reason = first_line(error).partition(". ")[0]
        print(f"another process of this training is gone ({reason})", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class World:
    """Processes of a training, seen from one of them. With a single process every method leaves its
    arguments unchanged.
    """

    rank: int = 0
    size: int = 1

    @property
    def main(self) -> bool:
        """True for the one process that writes files, log lines and checkpoints."""
        return self.rank == 0

    def backend(self, device: str) -> str | None:
        """Library that carries the gradients: nccl or gloo; None for a single process."""
        return None if self.size == 1 else "nccl" if device.startswith("cuda") else "gloo"

    def share(self, n: int) -> slice:
        """Slice of `n` rows for this process. The slices cover every row once, in order, and differ
        by at most one row.
        """
        return slice(n * self.rank // self.size, n * (self.rank + 1) // self.size)

    def largest(self, number: int) -> int:
        """Largest of all processes' numbers."""
        return (
            int(self._reduce(torch.tensor(number), dist.ReduceOp.MAX)) if self.size > 1 else number
        )

    def sum(self, number: float) -> float:
        """Sum of all processes' numbers, in float64."""
        return (
            float(self._reduce(torch.tensor(number, dtype=torch.float64)))
            if self.size > 1
            else number
        )

    def sum_gradients(self, parameters: Iterable[nn.Parameter], loss: Tensor) -> Tensor:
        """Replace every gradient by its sum over all processes, with the same bits in each. Returns
        the sum of `loss`.

        A parameter that no process used keeps no gradient, so its optimizer skips it as in a single
        process."""
        if self.size == 1:
            return loss
        # Not DistributedDataParallel. It would overlap this with the backward pass, but needs a
        # forward(), a hook on every parameter, no_sync() around micro-batches and a search for
        # unused parameters. For a million parameters this sum takes 6 ms by gloo (two processes of
        # one machine), a fifteenth of a step.
        parameters = [parameter for parameter in parameters if parameter.requires_grad]
        used = self._reduce(
            torch.tensor(
                [parameter.grad is not None for parameter in parameters], dtype=torch.uint8
            ),
            dist.ReduceOp.MAX,
        )
        parameters = [
            parameter for parameter, one in zip(parameters, used.tolist(), strict=True) if one
        ]
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in parameters]
        flat = self._reduce(
            torch.cat([loss.reshape(1), *(gradient.flatten() for gradient in gradients)])
        )
        loss, *sums = flat.split([1, *(gradient.numel() for gradient in gradients)])
        for gradient, total in zip(gradients, sums, strict=True):
            gradient.copy_(total.view_as(gradient))
        return loss[0]

    def copy_weights(self, model: nn.Module) -> None:
        """Copy the first process's parameters and buffers to every process."""
        if self.size > 1:
            for tensor in model.state_dict().values():
                _together(dist.broadcast, tensor, 0)

    def leave(self) -> None:
        """Close the connections. From here on the processes are independent."""
        if self.size > 1:
            dist.destroy_process_group()

    def _reduce(self, tensor: Tensor, operation: dist.ReduceOp = dist.ReduceOp.SUM) -> Tensor:
        _together(dist.all_reduce, tensor, operation)
        return tensor


def join() -> World:
    """World that torchrun started this process in, or a world of one process without torchrun."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return World()
    told = sys.excepthook
    _together(
        dist.init_process_group,
        "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
        timeout=PATIENCE,
    )
    # torch's hook puts the rank before each line of a traceback, which ledger.py cannot read
    sys.excepthook = told
    return World(dist.get_rank(), dist.get_world_size())


def _together(call: Callable, *args: object, **options: object) -> None:
    try:
        call(*args, **options)
    except RuntimeError as error:
        raise Lost(error) from error
