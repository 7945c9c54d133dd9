"""dtype=auto: what the machine multiplies fastest, known without torch, and settled when a job is
planned.
"""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CONFIGS
from hydra import compose, initialize_config_dir
from script_calls import call
from test_cli import TINY

from posbench.common import machine
from posbench.config import compose as composition
from posbench.config.compose import unresolved_values
from posbench.config.defaults import resolved_config
from posbench.config.identity import run_id
from posbench.model.precision import has_bf16_products
from posbench.runs.rows import read_csv
from posbench.sweep.jobs import Job, plan_jobs

LIMITS = (
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "ATEN_CPU_CAPABILITY",
    "MKL_ENABLE_INSTRUCTIONS",
)
LAPTOP = {
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
BOTH = """
import sys
from posbench.common.machine import multiplies_bf16
found = multiplies_bf16()
assert "torch" not in sys.modules
from posbench.model.precision import has_bf16_products
print(found, has_bf16_products())
"""


def test_what_is_known_of_this_machine_is_what_torch_says():
    assert machine.multiplies_bf16() == has_bf16_products()


@pytest.mark.parametrize(
    "limits",
    [LAPTOP, {"ONEDNN_MAX_CPU_ISA": "avx512_core"}, {"DNNL_MAX_CPU_ISA": "AVX2"}],
    ids=str,
)
def test_what_is_known_without_torch_is_what_torch_says(limits):
    environment = {name: value for name, value in os.environ.items() if name not in LIMITS} | limits
    done = subprocess.run(
        [sys.executable, "-c", BOTH],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    ours, torchs = done.stdout.split()
    assert ours == torchs and (
        ours == "False" or "AVX2" not in limits.get("ONEDNN_MAX_CPU_ISA", "")
    )


def test_arm_says_bf16_in_another_word_and_other_systems_nothing(monkeypatch):
    for flags, limit, multiplies in (
        ("fp asimd bf16", "", True),
        ("fp asimd", "", False),
        ("", "", False),
        ("avx2 avx512_bf16", "", False),
    ):
        monkeypatch.setattr(machine, "_cpu_flags", lambda flags=flags: frozenset(flags.split()))
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
        assert machine.multiplies_bf16() is multiplies, flags


CPUINFO = """processor\t: 0
model name\t: One CPU @ 2.40GHz
flags\t\t: fpu avx2 avx512f amx_bf16 avx512_bf16

processor\t: 1
model name\t: another
flags\t\t: fpu
"""


@pytest.mark.parametrize(
    "info, named",
    [
        (CPUINFO, "One CPU @ 2.40GHz, amx_bf16"),
        (CPUINFO.replace(" amx_bf16", ""), "One CPU @ 2.40GHz, avx512_bf16"),
        ("processor\t: 0\nFeatures\t: fp asimd bf16\n", "arm, bf16"),
        ("", "arm"),
    ],
)
def test_a_processor_is_named_with_what_multiplies_bf16_numbers(info, named, monkeypatch, tmp_path):
    (tmp_path / "cpuinfo").write_text(info)
    monkeypatch.setattr(machine, "Path", lambda name: tmp_path / Path(name).name)
    monkeypatch.setattr(machine.platform, "processor", lambda: "arm")
    machine._cpu_info.cache_clear()
    try:
        assert machine.processor() == named
    finally:
        machine._cpu_info.cache_clear()


@pytest.fixture
def on(monkeypatch):
    """Function that makes this a machine with or without bf16 products on its CPU, with some
    GPUs.
    """

    def on(cpu: bool, gpus: int = 0) -> None:
        monkeypatch.setattr(machine, "multiplies_bf16", lambda: cpu)
        monkeypatch.setattr(machine, "GPU_FILES", ["/" if gpus else "/no/driver"])
        monkeypatch.setattr(machine, "gpus", lambda: gpus)

    return on


def test_auto_is_the_format_of_the_device_at_hand(on):
    for (cpu, gpus), device in itertools.product(
        itertools.product((True, False), (0, 1)), ("auto", "cpu", "cuda", "cuda:1")
    ):
        on(cpu, gpus)
        bf16 = cpu or device.startswith("cuda") or (device == "auto" and gpus > 0)
        assert machine.fast_dtype(device) == ("bf16" if bf16 else "fp32"), (cpu, gpus, device)


def jobs(*words: str) -> list[dict]:
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return composition.raw_configs_of_jobs(
            unresolved_values(compose("run", list(words))), list(words)
        )


def formats(cfg: dict, auto: str | None = None) -> tuple[str, str]:
    resolved = resolved_config(cfg, auto)
    return resolved.train.dtype, resolved.evaluate.dtype


@pytest.mark.parametrize(("cpu", "auto"), [(True, "bf16"), (False, "fp32")])
def test_ids_hold_the_word_that_auto_became(on, cpu, auto):
    on(cpu)
    (short,) = jobs()
    (long,) = jobs("train.length=8192")
    assert formats(short) == (auto, auto)
    assert formats(long) == (auto, auto)
    (plain,) = jobs(f"train.dtype={auto}")
    assert run_id(resolved_config(short).as_dict(), "f") == run_id(
        resolved_config(plain).as_dict(), "f"
    )
    assert formats({**short, "device": "cuda"}) == ("bf16", "bf16")
    assert formats(short, "fp32") == ("fp32", "fp32")
    for word in ("bf16", "fp32"):
        (typed,) = jobs(f"train.dtype={word}", f"evaluate.dtype={word}", "train.length=8192")
        assert formats(typed) == (word, word)


def test_a_job_runs_in_the_format_that_was_planned_on_whatever_machine(on, monkeypatch):
    monkeypatch.setattr("posbench.data.corpus.fingerprint", lambda data, cache: "0" * 64)
    on(False)
    planned = plan_jobs(jobs("experiment=demo") + jobs("train.length=8192"))
    on(True)
    again = [Job.of(json.loads(json.dumps(job.as_dict()))) for job in planned]
    for job, other in zip(planned, again, strict=True):
        assert (other.config, other.run.id) == (job.config, job.run.id)
        assert [vars(cell) for cell in other.cells] == [vars(cell) for cell in job.cells]
    assert {cell.evaluate.dtype for job in planned for cell in job.cells} == {"fp32"}


def test_results_of_another_machine_are_reported_and_made_again_in_their_format(
    tmp_path, text_folder, capfd, on
):
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    grid = "name: mini\ngrid: [{extension: [none, window]}]\ntolerance: {nll: 0.01, share: 0.1}\n"
    (tmp_path / "mine" / "experiment" / "mini.yaml").write_text(grid)
    folder = tmp_path / "results" / "reported" / "mini"
    words = [
        "--config-dir",
        str(tmp_path / "mine"),
        *(word for word in TINY if word != "evaluate.dtype=fp32"),
        f"data.path={text_folder}",
        f"cache_dir={tmp_path}/cache",
        "experiment=mini",
    ]
    on(False)
    assert "nothing to report" in call(capfd, tmp_path, "report", *words).stderr
    assert call(capfd, tmp_path, "run", *words).returncode == 0
    on(True)
    done = call(capfd, tmp_path, "report", *words, f"report_dir={folder}")
    sentence = "dtype=auto means bf16 on this machine, and fp32 where these results were made"
    assert done.returncode == 0 and sentence in done.stdout
    assert {row["dtype"] for row in read_csv(folder / "rows.csv")} == {"fp32"}
    again = call(capfd, tmp_path, "reproduce", *words)
    assert (
        again.returncode == 0
        and sentence in again.stderr
        and "all of them bit for bit" in again.stdout
    )
    on(False)
    again = call(capfd, tmp_path, "reproduce", *words)
    assert (
        again.returncode == 0
        and "dtype" not in again.stderr
        and "all of them bit for bit" in again.stdout
    )
