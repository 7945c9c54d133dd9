"""The first stop waits for a saved state, the second ends everything at once, wherever the process
is; no child outlives its parent.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import forked
import pytest
from conftest import CONFIGS
from spoils import SMALL, write_text

from posbench.common.signals import PATIENT_VARIABLE, SAME_STOP_SECONDS
from posbench.runs.directory import Run

PATIENCE = 20  # seconds, of a busy machine
# minutes in C, before any handler of Python's can run
LONG_CALL = "__import__('hashlib').pbkdf2_hmac('sha256', b'', b'', 10**9)"
PLACES = {
    "a loop": "while True: pass",
    "a call into C": LONG_CALL,
    "a download": "pair = __import__('socket').socketpair(); pair[0].recv(1)",
    "a compiler": "__import__('subprocess').run(['sleep', '600'])",
}
SLOW = f"""
import sys
import torch
from pathlib import Path
from posbench.encodings.rope import Rope

class Slow(Rope):
    calls = 0

    def __init__(self, shape, trains: bool = True):
        super().__init__(shape)
        self.trains = trains

    def rotate(self, *given):
        Slow.calls += torch.is_grad_enabled() == self.trains
        if Slow.calls > 4 and (self.trains or list(Path("runs").glob("*/train.json"))):
            Path("within").touch()
            {LONG_CALL}
        return super().rotate(*given)
"""


@contextmanager
def started(
    command: list[str], start: type = subprocess.Popen, **options
) -> Iterator[subprocess.Popen]:
    """A process that does not outlive the test, in the environment of a terminal."""
    environment = {name: value for name, value in os.environ.items() if name != PATIENT_VARIABLE}
    with start(command, env=environment, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def alive(pid: int) -> bool:
    """True unless a process has ended; one that nobody has waited for has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(met, seconds: float = PATIENCE) -> bool:
    """True once `met()` is, False if it is not in time."""
    ends = time.monotonic() + seconds
    while not (outcome := met()) and time.monotonic() < ends:
        time.sleep(0.05)
    return bool(outcome)


@pytest.mark.parametrize(
    ("place", "number"), zip(PLACES, [signal.SIGTERM, signal.SIGINT] * 2, strict=True)
)
def test_a_second_signal_ends_a_child_wherever_it_is(place, number):
    code = "from posbench.common.signals import Signals, end_at_second\nend_at_second()\n"
    code += f"with Signals():\n    print(flush=True)\n    {PLACES[place]}\n"
    with started([sys.executable, "-c", code], stdout=subprocess.PIPE, process_group=0) as process:
        process.stdout.readline()
        for _ in range(2):  # from the terminal and from its parent: one stop
            process.send_signal(number)
        time.sleep(SAME_STOP_SECONDS + 0.3)
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(PATIENCE) == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_child_without_its_parent_ends_also_in_a_long_call(tmp_path):
    child = (
        "import os\nfrom posbench.common import signals\nsignals.ORPHAN_SECONDS ="
        " 0.5\nsignals.die_with_parent()\n"
    )
    child += (
        f"with signals.Signals():\n    open('pid', 'w').write(str(os.getpid()))\n    {LONG_CALL}\n"
    )
    parent = (
        "import os, subprocess, sys, time\nfrom posbench.common.signals import"
        " name_parent\nname_parent(os.environ)\n"
    )
    parent += (
        f"subprocess.Popen([sys.executable, '-c', {child!r}], process_group=0)\ntime.sleep(600)\n"
    )
    with started([sys.executable, "-c", parent], cwd=tmp_path) as process:
        assert until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        process.kill()
    assert until(lambda: not alive(int((tmp_path / "pid").read_text())))


@pytest.mark.parametrize("trains", [True, False])
def test_a_second_signal_to_a_command_ends_its_jobs_in_a_step_or_an_evaluation(trains, tmp_path):
    write_text(tmp_path / "text")
    (tmp_path / "mine" / "encoding").mkdir(parents=True)
    (tmp_path / "mine" / "slow.py").write_text(SLOW)
    (tmp_path / "mine" / "encoding" / "slow.yaml").write_text(
        f"_target_: slow.Slow\ntrains: {str(trains).lower()}\n"
    )
    words = [
        *SMALL,
        "data.path=text",
        "results_dir=runs",
        "cache_dir=cache",
        "encoding=slow",
        "train.checkpoint_every=2",
    ]
    script = str(CONFIGS.parent / "scripts" / "run.py")
    command = [sys.executable, script, "--config-dir", "mine", *words]
    with started(
        command,
        forked.Popen,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert until(lambda: (tmp_path / "within").exists(), 60)
        process.send_signal(signal.SIGTERM)
        time.sleep(SAME_STOP_SECONDS + 0.3)
        if trains:
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)
        stderr = process.communicate(timeout=PATIENCE)[1]
        assert process.returncode == 128 + signal.SIGTERM and "Traceback" not in stderr
    (run,) = (path for path in (tmp_path / "runs").iterdir() if (path / "config.yaml").exists())
    assert trains != (run / "model.safetensors").exists()
    with Run(run).lock(wait=False):
        assert not trains or (run / "state.pt").exists()
    ledger = (tmp_path / "runs" / "ledger.jsonl").read_text()
    assert '"interrupted"' in ledger and (not trains or "by a second signal" in ledger)
    assert not os.path.exists(run / "failure.txt")
