"""Memory: a model's minimum, what is kept for the next pass, and the peak of a piece of work."""

import contextlib
import ctypes
import functools
import gc
import itertools
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from posbench.common.errors import ConfigError
from posbench.config.schema import ModelConfig

# Parameters of glibc's mallopt.
TRIM_THRESHOLD = -1
MMAP_THRESHOLD = -3
KEPT_HEAP_BYTES = 2**29  # that stay at the end of the heap
RESET_PEAK = "5"  # for Linux's /proc/self/clear_refs: VmHWM begins again
# Of a block that gets pages of its own: the most that glibc comes to by itself.
LARGE_BLOCK_BYTES = 2**25


def _machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_batch(config: ModelConfig, tokens: int, device: str) -> None:
    """Check a training step of `tokens` tokens before it is made. Raises ConfigError if the least
    that it keeps exceeds a CPU's memory.

    That is, for the backward pass and in 2 bytes, of each block the inputs of both norms, the
    queries and the hidden layer."""
    needed = 2 * tokens * config.n_layer * (3 * config.d_model + config.hidden)
    available = _machine_memory()
    on_cpu = device == "cpu" or (device == "auto" and not torch.cuda.is_available())
    if on_cpu and needed > available:
        raise ConfigError(
            f"train.tokens_per_step={tokens} keeps at least {needed / 2**30:,.0f} GiB for the"
            f" backward pass, and this machine has {available / 2**30:,.0f} GiB of memory: choose"
            " fewer tokens, or a smaller model."
        )


def check_model_size(config: ModelConfig) -> None:
    """Check a model's size before it is made. Raises ConfigError if its blocks alone, in float32,
    exceed this machine's memory.
    """
    parameters = config.n_layer * config.layer_parameters
    needed = 4 * parameters
    available = _machine_memory()
    if needed > available:
        values = {key: getattr(config, key) for key in ("d_model", "n_layer", "d_ff")}
        sizes = " ".join(f"model.{key}={value}" for key, value in values.items() if value)
        raise ConfigError(
            f"{sizes} has {parameters:,} parameters in its blocks, {needed / 2**30:,.0f} GiB in"
            f" float32, and this machine has {available / 2**30:,.0f} GiB of memory: choose a"
            " smaller model."
        )


@functools.cache
def keep_freed_memory() -> ctypes.CDLL | None:
    """Let this process keep 512 MiB that it frees, for its next pass.

    Returns glibc; None, without effect, where another malloc serves. By itself glibc returns more
    than some 40 MiB to the system, and each page that is taken anew is cleared first: in a step of
    the usual training 9,000 pages, 14 % of its processor time. What the environment sets
    (MALLOC_..., GLIBC_TUNABLES) stays as it is."""
    if sys.platform != "linux" or _environment_sets_malloc():
        return None
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return None
    libc.mallopt(TRIM_THRESHOLD, KEPT_HEAP_BYTES)
    libc.mallopt(MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
    return libc


def _environment_sets_malloc() -> bool:
    """True if the environment sets how glibc keeps memory."""
    if "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return True
    return any(name.startswith("MALLOC_") for name in os.environ)


class Peak:
    """Peak memory from here on (of the GPU, else of the process). Without Linux or CUDA it counts
    from the start of the process.
    """

    def __init__(self, device: str | torch.device):
        self.device = torch.device(device)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            _return_kept_memory()  # what is kept for later is no part of this peak
            with contextlib.suppress(OSError):
                Path("/proc/self/clear_refs").write_text(RESET_PEAK)

    def mib(self) -> float:
        """Peak so far in MiB."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 2**20
        # Linux's peak since `__init__` reset it; ru_maxrss may be an earlier one.
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("VmHWM:"):  # KiB
                    return int(line.split()[1]) / 2**10
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        units_of_mib = 2**20 if sys.platform == "darwin" else 2**10  # bytes there, else KiB
        return peak / units_of_mib


def forget() -> int:
    """Free what a finished job left in this process (cycles, compiled functions, kept memory), and
    return the bytes that it still holds; 0 where the system does not say.
    """
    if "torch._dynamo" in sys.modules:
        # Else the compiled forms of all jobs count against the limit of one function.
        torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    _return_kept_memory()
    with contextlib.suppress(OSError):
        _, resident, of_files, *_ = map(int, Path("/proc/self/statm").read_text().split())
        return (resident - of_files) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _return_kept_memory() -> None:
    """Return the memory that this process keeps for later."""
    libc = keep_freed_memory()
    if libc is not None:
        libc.malloc_trim(0)


def tensor_mib(call: Callable[[], object], device: str | torch.device = "cpu") -> float:
    """Peak of the tensors that `call` adds on a device, in MiB: exact, and independent of memory
    that the allocator keeps.
    """
    if torch.device(device).type == "cuda":
        before = torch.cuda.memory_allocated(device)
        peak = Peak(device)
        call()
        return peak.mib() - before / 2**20
    from torch.profiler import ProfilerActivity, profile

    with profile(
        activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=False
    ) as profiler:
        call()
    events = profiler.profiler.kineto_results.events()
    memory_events = [event for event in events if event.name() == "[memory]"]
    memory_events.sort(key=lambda event: event.start_ns())
    # bytes are negative where memory is freed
    in_use = itertools.accumulate(event.nbytes() for event in memory_events)
    return max(in_use, default=0) / 2**20
