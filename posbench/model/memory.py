"""Memory: the least that a model needs, and the peak during a piece of work (of the GPU, else of the process)."""

import contextlib
import itertools
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from posbench.common.errors import ConfigError
from posbench.config.schema import ModelConfig


def check_size(config: ModelConfig) -> None:
    """Check a model's size before it is made. Raises ConfigError if its blocks alone, in float32, exceed this machine's memory."""
    parameters = config.n_layer * config.layer_parameters
    needed, there = 4 * parameters, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        sizes = " ".join(f"model.{key}={getattr(config, key)}" for key in ("d_model", "n_layer", "d_ff") if getattr(config, key))
        raise ConfigError(
            f"{sizes} is a model of {parameters:,} parameters in its blocks, {needed / 2**30:,.0f} GiB in float32, and this machine has "
            f"{there / 2**30:,.0f} GiB of memory: choose a smaller one."
        )


class Peak:
    """Peak memory from here on. Without Linux or CUDA it counts from the start of the process."""

    def __init__(self, device: str | torch.device):
        self.device = torch.device(device)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            with contextlib.suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")

    def mib(self) -> float:
        """Peak so far in MiB."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 2**20
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) / 2**10
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (2**20 if sys.platform == "darwin" else 2**10)


def tensor_mib(call: Callable[[], object]) -> float:
    """Peak of the tensors that `call` adds on the CPU, in MiB: exact, and independent of memory that the allocator keeps."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=False) as profiler:
        call()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    living = itertools.accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    return max(living, default=0) / 2**20
