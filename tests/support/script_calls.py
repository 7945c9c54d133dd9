"""A script as typed on the command line, run in this process: a child would spend more than a
second on its imports alone.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from blank_pictures import blank_pictures
from conftest import CONFIGS
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins

from posbench.results import bundle as results_bundle
from posbench.sweep import child_processes, worker
from posbench.sweep import job_process as job


class Here:
    """Stands in for subprocess and for the child that a job is started in: the same spec file, the
    same exit code.
    """

    DEVNULL = PIPE = None

    @classmethod
    def Popen(cls, command: list[str], **_: object) -> Here:
        child = cls()
        child.stderr, child.code = open(os.devnull, "rb"), job.main(command[-1])
        return child

    def wait(self) -> int:
        return self.code


def call(
    capfd: pytest.CaptureFixture, folder: Path, name: str, *overrides: str, pictures: bool = False
) -> subprocess.CompletedProcess:
    """scripts/NAME.py with these overrides, in `folder`: its exit code and what it said. Without
    `pictures`, those that it writes are blank.
    """
    typed = [str(CONFIGS.parent / "scripts" / f"{name}.py"), *overrides]
    capfd.readouterr()
    # puts Hydra's own launchers where the script takes them away, which other tests must not see
    Plugins.instance()
    with (
        blank_pictures(*([] if pictures else ["png", "svg", "pdf"])),
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(SystemExit) as ended,
    ):
        patch.setitem(
            ConfigStore.instance().repo["hydra"],
            "launcher",
            dict(ConfigStore.instance().repo["hydra"]["launcher"]),
        )
        patch.chdir(folder)
        patch.setattr(sys, "argv", list(typed))
        patch.setattr(worker, "subprocess", Here)
        patch.setattr(results_bundle, "_names_of_folders", {})  # a process has its own
        patch.setattr(
            child_processes, "NOTED_SECONDS", 0
        )  # parent and child are one process, so both have noted a signal
        runpy.run_path(typed[0], run_name="__main__")
    return subprocess.CompletedProcess(typed, ended.value.code or 0, *capfd.readouterr())
