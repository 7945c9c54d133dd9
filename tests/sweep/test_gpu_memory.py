"""Trainings that share a GPU: pretended cards of several sizes, since the estimate needs none."""

import subprocess
from types import SimpleNamespace

import pytest

from posbench.config.schema import JobConfig, ModelConfig, TrainConfig
from posbench.sweep import child_processes
from posbench.sweep.child_processes import CUDA_CONTEXT_BYTES, fitting_on_gpu, needed_gpu_bytes


@pytest.fixture
def job():
    def job_with(
        device: str = "cuda", finished: bool = False, **changes: ModelConfig | TrainConfig
    ) -> SimpleNamespace:
        cfg = JobConfig(data={"tokenizer": "bpe", "vocab_size": 1024}, device=device, **changes)
        return SimpleNamespace(config=cfg, run=SimpleNamespace(finished=finished))

    return job_with


def card(monkeypatch, mib: str | Exception) -> None:
    def run(command, **_):
        if isinstance(mib, Exception):
            raise mib
        return SimpleNamespace(stdout=mib)

    monkeypatch.setattr(child_processes.os.path, "exists", lambda path: True)
    monkeypatch.setattr(child_processes.subprocess, "run", run)


def test_more_trainings_than_fit_are_reduced_to_the_largest_number_that_does(
    job, monkeypatch, capsys
):
    training = job()
    card(monkeypatch, f"{4 * needed_gpu_bytes(training) // 2**20 + 1}\n81559\n")
    assert fitting_on_gpu([training], 4) == 4 and not capsys.readouterr().err
    assert fitting_on_gpu([training, job(device="auto")], 9) == 4
    assert "9 trainings at a time need about" in capsys.readouterr().err
    assert fitting_on_gpu([job(device="cpu")], 9) == 9 and fitting_on_gpu([training], 1) == 1


@pytest.mark.parametrize(
    "answer", ["[N/A]", "", OSError("no such program"), subprocess.TimeoutExpired("nvidia-smi", 20)]
)
def test_a_card_that_tells_nothing_changes_nothing(job, monkeypatch, answer):
    card(monkeypatch, answer)
    assert fitting_on_gpu([job()], 64) == 64


def test_the_estimate_grows_with_what_a_step_keeps(job):
    small, wide, long = (
        job(),
        job(model=ModelConfig(d_model=512)),
        job(train=TrainConfig(tokens_per_step=65536)),
    )
    parted, done = (
        job(train=TrainConfig(tokens_per_step=65536, micro_batches=8)),
        job(finished=True),
    )
    needs = [needed_gpu_bytes(job) for job in (done, small, wide)]
    assert sorted({CUDA_CONTEXT_BYTES, *needs}) == [CUDA_CONTEXT_BYTES, *needs]
    assert needs[1] < needed_gpu_bytes(parted) < needed_gpu_bytes(long)
