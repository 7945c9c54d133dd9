"""Cores and GPUs that this command may use, and checks that they suffice for the processes. Torch is imported only when needed."""

from __future__ import annotations

import os
import sys

from posbench.common.errors import ConfigError


def cores() -> int:
    """Number of cores that this process may use. In a SLURM job it is the allocated number, since the node may show more."""
    seen = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    given = os.environ.get("SLURM_CPUS_PER_TASK") or os.environ.get("SLURM_CPUS_ON_NODE")
    return min(seen, int(given)) if given else seen


def gpus() -> int:
    """Number of GPUs that this process may use. Counting does not initialize them."""
    import torch

    return torch.cuda.device_count()


def check_processes(processes: int, device: str) -> None:
    """Raise ConfigError if one training has more processes than there are GPUs (cores, if it runs on the CPU)."""
    found = 0 if device == "cpu" else gpus()
    if device == "cpu" or (device == "auto" and not found):
        if processes > cores():
            raise ConfigError(
                f"processes={processes} are more than the {cores()} cores that this command may use, and each needs one: "
                f"give processes={cores()} or fewer."
            )
    elif device not in ("auto", "cuda"):
        raise ConfigError(f"device={device} is one device, and processes={processes} need one each: give device=cuda, or device=cpu.")
    elif processes > found:
        raise ConfigError(
            f"processes={processes} on device=cuda needs {processes} GPUs, one each, and there are {found}: "
            "choose fewer processes, or device=cpu."
        )


def check_task(processes: int, device: str, launcher: dict) -> None:
    """Raise ConfigError if one training has more processes than the GPUs (or cores) requested for its cluster task."""
    asked, key = (launcher.get("cpus_per_task"), "cpus_per_task") if device == "cpu" else (launcher.get("gpus_per_node"), "gpus_per_node")
    if asked and processes > asked:
        raise ConfigError(
            f"processes={processes} are more than hydra.launcher.{key}={asked}, and each needs one: "
            f"give processes={asked} or fewer, or hydra.launcher.{key}={processes}."
        )


def check_share(processes: int, tokens_per_step: int, train_len: int) -> None:
    """Raise ConfigError if there are more processes than windows in one step, counted at the longest training length."""
    windows = tokens_per_step // train_len
    if processes > windows:
        raise ConfigError(
            f"processes={processes} cannot share a step of {windows} windows (train.tokens_per_step={tokens_per_step}, "
            f"train.length={train_len}): choose fewer processes or a larger train.tokens_per_step."
        )


def check_jobs(parallel: int, processes: int = 1) -> int:
    """Number of trainings at a time: `parallel`, or fewer if the cores do not suffice, with a note on stderr."""
    most = max(1, cores() // processes)
    if parallel > most:
        each = f" of {processes} processes" if processes > 1 else ""
        print(f"{parallel} trainings{each} at a time are more than {cores()} cores serve: {most} at a time", file=sys.stderr, flush=True)
    return min(parallel, most)
