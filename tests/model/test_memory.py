"""Long evaluation in little memory: a process of its own for each legal combination, its peak read
by the system.
"""

import json
import os
import platform
import subprocess
import sys

import pytest
import torch
from conftest import choices, legal, legal_pairs, make_triple, scaled_sample, small_model

from posbench.model.memory import Peak, keep_freed_memory, tensor_mib
from posbench.position.legality import fed_length
from posbench.position.plan import make_plan

LENGTH = 16384
LIMIT_MIB = 2048
SCRIPT = """
import json, sys
import posbench
import torch
from conftest import make_triple, small_model
from posbench.position.legality import fed_length
from posbench.position.plan import make_plan

sizes = {"d_model": 128, "n_layer": 4, "n_head": 4, "n_kv_head": 4}
encoding, extension, scale = make_triple(*json.loads(sys.argv[1]), train_len=64, **sizes)
model = small_model(encoding, 1024, d_ff=320, **sizes)
length = fed_length(extension, 64, int(sys.argv[3]))
with torch.inference_mode():
    plan = make_plan(encoding, extension, scale, length=length)
    logits = model(torch.randint(0, 1024, (1, length)), plan, int(sys.argv[2]))
print(bool(logits.isfinite().all()), tuple(logits.shape))
"""


def peak_mib(triple: tuple[str, str, str], last: int, length: int = LENGTH) -> float:
    """Peak resident memory of a process that reads `length` tokens with the demo's model."""
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, json.dumps(triple), str(last), str(length)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = status
    assert status == 0 and output.startswith("True"), output
    return usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def test_memory_grows_with_the_length_alone():
    """Tensors that live at once, counted exactly: twice the tokens, twice the memory, for every
    eighth pair and a sample of the triples.
    """
    shape = {"d_model": 32, "n_layer": 1, "n_head": 4, "n_kv_head": 2}
    counted = 0
    for triple in legal_pairs(1024, 16)[::8] + scaled_sample(1024, 10, 16):
        encoding, extension, scale = make_triple(*triple, **shape)
        # Of gali 64 training lengths have dozens of bands, each with turned keys of its own.
        if fed_length(extension, 16, 1024) < 1024 or triple[1] == "gali":
            continue
        model, mib = small_model(encoding, **shape), []
        for length in (512, 1024):
            plan, text_BT = (
                make_plan(encoding, extension, scale, length=length),
                torch.randint(0, 50, (1, length)),
            )
            with torch.inference_mode():
                mib.append(
                    tensor_mib(
                        lambda model=model, text_BT=text_BT, plan=plan: model(text_BT, plan, 8)
                    )
                )
        assert mib[1] < 2.2 * mib[0], f"{triple}: {mib} MiB"
        counted += 1
    assert counted > 25


@pytest.mark.slow
@pytest.mark.parametrize("encoding", choices("encoding"))
def test_16384_tokens_of_the_demo_model_fit_in_2_gib(encoding):
    """Of each encoding every pair and its part of a sample of triples, but for those without a
    position so far out.
    """
    triples = [
        triple
        for triple in legal_pairs(1024, 64) + scaled_sample(1024, 20, 64)
        if triple[0] == encoding
    ]
    peaks = {}
    for triple in triples:
        # The file of gali says what its hundreds of bands take.
        if triple[1] != "gali" and legal(triple, LENGTH, 64):
            peaks[triple] = peak_mib(triple, last=LENGTH)
    assert not {triple: peak for triple, peak in peaks.items() if peak >= LIMIT_MIB}


@pytest.mark.slow
@pytest.mark.parametrize(
    "triple", [("rope", "rerope", "none"), ("t5", "none", "none")], ids="-".join
)
def test_65536_tokens_fit_in_4_gib(triple):
    assert peak_mib(triple, last=8, length=65536) < 2 * LIMIT_MIB


PAGES = """
import ctypes, resource
from posbench.model.memory import keep_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def taken():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [libc.malloc(20_000_000) for _ in range(8)]
    for block in blocks:
        ctypes.memset(block, 1, 20_000_000)
    for block in reversed(blocks):
        libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = [taken() for _ in range(2)]
tuned, after = keep_freed_memory(), [taken() for _ in range(2)]
print(tuned is not None, before[-1], after[-1])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it tunes glibc")
@pytest.mark.parametrize("user_settings", [{}, {"MALLOC_ARENA_MAX": "4"}])
def test_freed_memory_is_kept_for_the_next_pass_unless_the_environment_tunes_malloc(user_settings):
    """160 MB are 39,000 pages of 4 KiB, or 76 huge ones."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MALLOC_", "GLIBC_"))
    }
    words = subprocess.run(
        [sys.executable, "-c", PAGES],
        env=environment | user_settings,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    tuned, before, after = words[0] == "True", int(words[1]), int(words[2])
    assert tuned == (not user_settings) and before > 40 and (after < 10) == tuned


def test_a_peak_does_not_count_what_is_kept_from_before():
    if keep_freed_memory() is None:
        pytest.skip("nothing is kept")
    before = Peak("cpu").mib()
    held = [torch.empty(5_000_000).fill_(1) for _ in range(8)]
    peak = Peak("cpu")
    del held
    assert peak.mib() > before + 100 > Peak("cpu").mib()
