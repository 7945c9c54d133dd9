"""Cores, GPUs and number formats that this command may use, and checks that they suffice.

Torch is imported only when needed.
"""

import functools
import itertools
import os
import platform
import sys
from pathlib import Path

from posbench.common.errors import ConfigError

# With these, torch multiplies bf16 numbers by oneDNN.
AVX512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
# What ONEDNN_MAX_CPU_ISA limits oneDNN to, without AVX-512.
ISA_WITHOUT_AVX512 = {"sse41", "avx", "avx2", "avx2_vnni", "avx2_vnni_2"}
# Instructions that products of bf16 numbers are made by, the best first.
PRODUCT_INSTRUCTIONS = ("amx_bf16", "avx512_bf16", "avx512f", "avx2", "bf16")
# One of them is there if a driver of NVIDIA, AMD or WSL is.
GPU_FILES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dxg")


def cores() -> int:
    """Number of cores that this process may use; in a SLURM job at most the allocated number."""
    if hasattr(os, "sched_getaffinity"):
        visible = len(os.sched_getaffinity(0))
    else:
        visible = os.cpu_count() or 1
    allocated = os.environ.get("SLURM_CPUS_PER_TASK") or os.environ.get("SLURM_CPUS_ON_NODE")
    return min(visible, int(allocated)) if allocated else visible


def gpus() -> int:
    """Number of GPUs that this process may use. Counting does not initialize them."""
    import torch

    return torch.cuda.device_count()


def fast_dtype(device: str) -> str:
    """Meaning of dtype=auto: bf16 on a GPU and on a CPU that multiplies bf16 numbers, else fp32."""
    if multiplies_bf16() or device not in ("cpu", "auto"):
        return "bf16"
    if device == "auto" and any(map(os.path.exists, GPU_FILES)) and gpus():
        return "bf16"
    return "fp32"


def multiplies_bf16() -> bool:
    """True if torch has bf16 products on this CPU. Known without torch, on Linux alone.

    They need AVX-512 within ONEDNN_MAX_CPU_ISA, or Arm's bf16. oneDNN ignores its limit on Arm.
    ATEN_CPU_CAPABILITY and MKL_ENABLE_INSTRUCTIONS limit other libraries than the one that
    multiplies."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or ""
    if "bf16" in _cpu_flags():  # Arm's
        return True
    return _cpu_flags() >= AVX512 and limit.lower() not in ISA_WITHOUT_AVX512


def processor() -> str | None:
    """Name of this CPU and its best instructions for bf16: "AMD EPYC, avx512_bf16"; None: unknown.

    One training on two kinds of them may end with two weights, and `platform` does not tell them
    apart."""
    model = _cpu_info().get("model name") or platform.processor()
    instructions = next((name for name in PRODUCT_INSTRUCTIONS if name in _cpu_flags()), None)
    return ", ".join(filter(None, (model, instructions))) or None


def _cpu_flags() -> frozenset[str]:
    info = _cpu_info()
    return frozenset((info.get("flags") or info.get("Features") or "").split())


@functools.cache
def _cpu_info() -> dict[str, str]:
    """The first processor of /proc/cpuinfo, {key: value}; empty where there is none."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            first_processor = list(itertools.takewhile(str.strip, lines))
    except OSError:
        return {}
    info = {}
    for line in first_processor:
        key, _, value = line.partition(":")
        info[key.strip()] = value.strip()
    return info


def check_processes(processes: int, device: str) -> None:
    """Raise ConfigError if a training has more processes than there are GPUs, or cores on a CPU."""
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(
            f"device={device} is a single device, but processes={processes} need one each: give"
            " device=cuda, or device=cpu."
        )
    # Of GPUs, unless the device is a CPU or there is no GPU to choose.
    available = 0 if device == "cpu" else gpus()
    kind = "GPUs"
    advice = "choose fewer processes, or device=cpu"
    if device == "cpu" or (device == "auto" and not available):
        available = cores()
        kind = "cores"
        advice = f"give processes={available} or fewer"
    if processes > available:
        raise ConfigError(
            f"processes={processes} exceed the {available} {kind} available to this command, and"
            f" each needs one: {advice}."
        )


def check_processes_of_task(processes: int, device: str, launcher: dict) -> None:
    """Raise ConfigError if a training has more processes than its cluster task GPUs or cores."""
    key = "cpus_per_task" if device == "cpu" else "gpus_per_node"
    requested = launcher.get(key)
    if requested and processes > requested:
        raise ConfigError(
            f"processes={processes} are more than hydra.launcher.{key}={requested}, and each needs"
            f" one: give processes={requested} or fewer, or hydra.launcher.{key}={processes}."
        )


def check_windows_for_processes(processes: int, tokens_per_step: int, train_len: int) -> None:
    """Raise ConfigError for more processes than windows of the longest length in one step."""
    windows = tokens_per_step // train_len
    if processes > windows:
        raise ConfigError(
            f"processes={processes} cannot share a step of {windows} windows"
            f" (train.tokens_per_step={tokens_per_step}, train.length={train_len}): choose fewer"
            " processes or a larger train.tokens_per_step."
        )


def jobs_at_a_time(parallel: int, processes: int = 1) -> int:
    """Number of trainings at a time: `parallel`, or fewer and a note if there are too few cores."""
    most = max(1, cores() // processes)
    if parallel > most:
        each = f" of {processes} processes" if processes > 1 else ""
        print(
            f"{parallel} trainings{each} at a time are more than {cores()} cores serve: {most} at a"
            " time",
            file=sys.stderr,
            flush=True,
        )
    return min(parallel, most)
