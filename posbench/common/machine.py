"""Cores, GPUs and number formats that this command may use, and checks that they suffice. Torch is
imported only when needed.
"""

import functools
import itertools
import os
import platform
import sys
from pathlib import Path

from posbench.common.errors import ConfigError

AVX512 = {
    "avx512f",
    "avx512bw",
    "avx512dq",
    "avx512vl",
}  # with these, torch multiplies bf16 numbers by oneDNN
OLDER = {
    "sse41",
    "avx",
    "avx2",
    "avx2_vnni",
    "avx2_vnni_2",
}  # what ONEDNN_MAX_CPU_ISA limits oneDNN to, without AVX-512
PRODUCTS = (
    "amx_bf16",
    "avx512_bf16",
    "avx512f",
    "avx2",
    "bf16",
)  # instructions that products of bf16 numbers are made by, the best first
GPU_FILES = (
    "/dev/nvidiactl",
    "/dev/nvidia0",
    "/dev/kfd",
    "/dev/dxg",
)  # one of them is there if a driver of NVIDIA, AMD or WSL is


def cores() -> int:
    """Number of cores that this process may use. In a SLURM job it is the allocated number, since
    the node may show more.
    """
    seen = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    given = os.environ.get("SLURM_CPUS_PER_TASK") or os.environ.get("SLURM_CPUS_ON_NODE")
    return min(seen, int(given)) if given else seen


def gpus() -> int:
    """Number of GPUs that this process may use. Counting does not initialize them."""
    import torch

    return torch.cuda.device_count()


def fast_dtype(device: str) -> str:
    """Meaning of dtype=auto: bf16 on a GPU and on a CPU that multiplies bf16 numbers, else fp32."""
    if multiplies_bf16() or device not in ("cpu", "auto"):
        return "bf16"
    return "bf16" if device == "auto" and any(map(os.path.exists, GPU_FILES)) and gpus() else "fp32"


def multiplies_bf16() -> bool:
    """True if torch has bf16 products on this CPU: AVX-512 within ONEDNN_MAX_CPU_ISA, or Arm's
    bf16. Known without torch, on Linux alone.

    oneDNN ignores its limit on Arm. ATEN_CPU_CAPABILITY and MKL_ENABLE_INSTRUCTIONS limit other
    libraries than the one that multiplies."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or ""
    return "bf16" in _cpu_flags() or (_cpu_flags() >= AVX512 and limit.lower() not in OLDER)


def processor() -> str | None:
    """Name of this CPU and the best of its PRODUCTS, such as "AMD EPYC, avx512_bf16"; None:
    unknown.

    One training on two kinds of them may end with two weights, and `platform` does not tell them
    apart."""
    named = _cpu_info().get("model name") or platform.processor()
    by = next((name for name in PRODUCTS if name in _cpu_flags()), None)
    return ", ".join(filter(None, (named, by))) or None


def _cpu_flags() -> frozenset[str]:
    info = _cpu_info()
    return frozenset((info.get("flags") or info.get("Features") or "").split())


@functools.cache
def _cpu_info() -> dict[str, str]:
    """The first processor of /proc/cpuinfo, {key: value}; empty where there is none."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            first = [line.partition(":") for line in itertools.takewhile(str.strip, lines)]
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in first}


def check_processes(processes: int, device: str) -> None:
    """Raise ConfigError if one training has more processes than there are GPUs (cores, if it runs
    on the CPU).
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(
            f"device={device} is a single device, but processes={processes} need one each: give"
            " device=cuda, or device=cpu."
        )
    found = 0 if device == "cpu" else gpus()
    here, way = f"{found} GPUs", "choose fewer processes, or device=cpu"
    if device == "cpu" or (device == "auto" and not found):
        found = cores()
        here, way = f"{found} cores", f"give processes={found} or fewer"
    if processes > found:
        raise ConfigError(
            f"processes={processes} exceed the {here} available to this command, and each needs"
            f" one: {way}."
        )


def check_task(processes: int, device: str, launcher: dict) -> None:
    """Raise ConfigError if one training has more processes than the GPUs (or cores) requested for
    its cluster task.
    """
    asked, key = (
        (launcher.get("cpus_per_task"), "cpus_per_task")
        if device == "cpu"
        else (launcher.get("gpus_per_node"), "gpus_per_node")
    )
    if asked and processes > asked:
        raise ConfigError(
            f"processes={processes} are more than hydra.launcher.{key}={asked}, and each needs one:"
            f" give processes={asked} or fewer, or hydra.launcher.{key}={processes}."
        )


def check_share(processes: int, tokens_per_step: int, train_len: int) -> None:
    """Raise ConfigError if there are more processes than windows in one step, counted at the
    longest training length.
    """
    windows = tokens_per_step // train_len
    if processes > windows:
        raise ConfigError(
            f"processes={processes} cannot share a step of {windows} windows"
            f" (train.tokens_per_step={tokens_per_step}, train.length={train_len}): choose fewer"
            " processes or a larger train.tokens_per_step."
        )


def check_jobs(parallel: int, processes: int = 1) -> int:
    """Number of trainings at a time: `parallel`, or fewer if the cores do not suffice, with a note
    on stderr.
    """
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
