"""Number of trainings that fit on one GPU at a time, by an estimate of what each keeps there. Torch is not imported."""

import os
import subprocess
import sys
from collections.abc import Sequence

from posbench.common.machine import GPU_FILES
from posbench.config.schema import typed
from posbench.sweep.cost import model_size, vocabulary
from posbench.sweep.jobs import Job

CONTEXT = 700 * 2**20  # bytes that a process takes on a GPU before it has a tensor there
ASK = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]


def needed(job: Job) -> int:
    """Estimate of the bytes that a job keeps on a GPU: weights, gradients and AdamW's averages in float32, and what a step keeps in bf16.

    That is, of each layer the inputs of both norms, q, k, v and the hidden layer, and the scores of the vocabulary once in float32.
    """
    model, train = typed("model", job.cfg["model"]), typed("train", job.cfg["train"])
    tokens = train.tokens_per_step // train.micro_batches if job.trains and not job.run.finished else 0
    in_layers = 2 * tokens * model.n_layer * (6 * model.d_model + 3 * model.hidden)
    return CONTEXT + 16 * model_size(job.cfg).parameters + in_layers + 4 * tokens * vocabulary(job.cfg)


def gpu_bytes() -> int | None:
    """Memory of the smallest GPU of this machine, by nvidia-smi; None where it tells nothing."""
    if not any(map(os.path.exists, GPU_FILES)):
        return None
    try:
        said = subprocess.run(ASK, capture_output=True, text=True, timeout=20, check=True).stdout
        return min(int(line) for line in said.split()) * 2**20
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def fitting(jobs: Sequence[Job], parallel: int) -> int:
    """Number of jobs at a time: `parallel`, or fewer if so many of the largest do not fit on a GPU, with a note on stderr."""
    there = gpu_bytes() if parallel > 1 else None
    on_gpu = [job for job in jobs if job.cfg["device"] == "auto" or job.cfg["device"].startswith("cuda")] if there else []
    if not on_gpu:
        return parallel
    each = max(map(needed, on_gpu))
    most = max(1, there // each)
    if parallel > most:
        wanted, has = parallel * each / 2**30, there / 2**30
        said = f"{parallel} trainings at a time need about {wanted:.0f} GiB on a GPU of {has:.0f}: {most} at a time"
        print(said, file=sys.stderr, flush=True)
    return min(parallel, most)
