"""Several processes of one training: each computes gradients of its rows, and all step alike.

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
COMMUNICATION_TIMEOUT = timedelta(weeks=2)


class Lost(SystemExit):
    """Exit with code 0 because another process of this training is gone. That process reports its
    own failure.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(0)  # since only the process that failed exits with an error
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
    def is_main(self) -> bool:
        """True for the one process that writes files, log lines and checkpoints."""
        return self.rank == 0

    def backend(self, device: str) -> str | None:
        """Library that carries the gradients: nccl or gloo; None for a single process."""
        if self.size == 1:
            return None
        return "nccl" if device.startswith("cuda") else "gloo"

    def share(self, n: int) -> slice:
        """Slice of `n` rows for this process. The slices cover every row once, in order, and differ
        by at most one row.
        """
        return slice(n * self.rank // self.size, n * (self.rank + 1) // self.size)

    def wait_for_all(self) -> None:
        """Wait until every process calls this."""
        self.largest_over_processes(0)

    def largest_over_processes(self, number: int) -> int:
        """Largest of all processes' numbers."""
        if self.size == 1:
            return number
        return int(self._reduce(torch.tensor(number), dist.ReduceOp.MAX))

    def sum_over_processes(self, number: float) -> float:
        """Sum of all processes' numbers, in float64."""
        if self.size == 1:
            return number
        return float(self._reduce(torch.tensor(number, dtype=torch.float64)))

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
        gradients = [parameter.grad for parameter in self._used_by_any(parameters)]
        flat = self._reduce(
            torch.cat([loss.reshape(1), *(gradient.flatten() for gradient in gradients)])
        )
        loss, *sums = flat.split([1, *(gradient.numel() for gradient in gradients)])
        for gradient, total in zip(gradients, sums, strict=True):
            gradient.copy_(total.view_as(gradient))
        return loss[0]

    def _used_by_any(self, parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        """Parameters that a process used in this step. Those of others get a gradient of zeros."""
        trainable = [parameter for parameter in parameters if parameter.requires_grad]
        has_gradient = [parameter.grad is not None for parameter in trainable]
        anywhere = self._reduce(torch.tensor(has_gradient, dtype=torch.uint8), dist.ReduceOp.MAX)
        used = []
        for parameter, is_used in zip(trainable, anywhere.tolist(), strict=True):
            if not is_used:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            used.append(parameter)
        return used

    def copy_weights(self, model: nn.Module) -> None:
        """Copy the first process's parameters and buffers to every process."""
        if self.size > 1:
            for tensor in model.state_dict().values():
                _communicate(dist.broadcast, tensor, src=0)

    def leave(self) -> None:
        """Close the connections. From here on the processes are independent."""
        if self.size > 1:
            dist.destroy_process_group()

    def _reduce(self, tensor: Tensor, operation: dist.ReduceOp = dist.ReduceOp.SUM) -> Tensor:
        _communicate(dist.all_reduce, tensor, operation)
        return tensor


def join() -> World:
    """World that torchrun started this process in, or a world of one process without torchrun."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return World()
    excepthook = sys.excepthook
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    _communicate(dist.init_process_group, backend, timeout=COMMUNICATION_TIMEOUT)
    # torch's hook puts the rank before each line of a traceback, which ledger.py cannot read.
    sys.excepthook = excepthook
    return World(dist.get_rank(), dist.get_world_size())


def _communicate(call: Callable, *args: object, **options: object) -> None:
    """Make a call that all processes make. Exits if another one is gone."""
    try:
        call(*args, **options)
    except RuntimeError as error:
        raise Lost(error) from error
