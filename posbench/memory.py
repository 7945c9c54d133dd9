"""Peak memory of a stretch of work: the device's on a GPU, the process's elsewhere."""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

import torch


class Peak:
    """`with Peak(device) as peak: ...; peak.mib()`. Linux lets the process's high-water mark be reset; elsewhere it is since its start."""

    def __init__(self, device: str | torch.device):
        self.device = torch.device(device)

    def __enter__(self) -> Peak:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            with contextlib.suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def mib(self) -> float:
        """MiB at the peak so far."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 2**20
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) / 2**10
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (2**20 if sys.platform == "darwin" else 2**10)
