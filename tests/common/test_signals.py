"""Children of a command that was killed outright."""

import subprocess
import sys

import pytest

CHILD = (
    "import time; from posbench.common import signals; {late}signals.die_with_parent();"
    " print('watching', flush=True); time.sleep(60)"
)
PARENT = """
import os, signal, subprocess, sys
from posbench.common.signals import name_parent
name_parent(os.environ)
stdout = subprocess.PIPE if sys.argv[2] else None
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=stdout)
if sys.argv[2]:
    child.stdout.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("mode", ["watching", ""])
def test_a_child_ends_with_its_parent_also_with_one_that_died_before_the_child_could_look(mode):
    code = CHILD.format(late="" if mode else "time.sleep(0.3); ")
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, code, mode],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as parent:
        _, stderr = parent.communicate(
            timeout=20
        )  # the end of stderr is that of the child, which holds it too
    assert parent.returncode == -9 and not stderr
