"""Provenance of a number: code, command, versions, machine, data."""

import functools
import hashlib
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import posbench
from posbench.common.machine import processor

COMMAND_VARIABLE = "POSBENCH_COMMAND"  # the typed command, passed on to child processes
PACKAGE = Path(posbench.__file__).resolve().parent
ACTING_FILES = ("*.py", "posbench", "configs", "scripts")  # as git selects paths
LIBRARIES = ("torch", "numpy", "tokenizers", "datasets")


def _git_output(*args: str) -> bytes | None:
    """Output of git in the package's folder, None when it fails."""
    # In a commit hook GIT_* point git at another repository.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        return subprocess.run(
            ("git", *args),
            cwd=PACKAGE.parent,
            env=environment,
            capture_output=True,
            check=True,
            timeout=30,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None


@functools.cache
def commit_and_changes() -> tuple[str | None, str | None]:
    """(commit, hash of the uncommitted changes or None); (None, None) outside the package's own
    repository.

    New files count if they can act on a result: Python, and what lies in a folder of the code. A
    log or a note beside them does not. A package that is installed inside another project's
    repository is not tracked there and counts as outside."""
    if _git_output("ls-files", "--error-unmatch", f"{PACKAGE.name}/__init__.py") is None:
        return None, None
    commit = _git_output("rev-parse", "HEAD")
    changed = _git_output("diff", "HEAD", "--binary")
    new = _git_output("ls-files", "--others", "--exclude-standard", "-z", "--", *ACTING_FILES)
    if commit is None or changed is None or new is None:
        return None, None
    digest = hashlib.sha256(changed)
    for name in filter(None, new.split(b"\0")):
        path = PACKAGE.parent / os.fsdecode(name)
        digest.update(name + (path.read_bytes() if path.is_file() else b""))
    changes = digest.hexdigest()[:16] if changed or new else None
    return commit.decode().strip(), changes


def commit_of_row() -> str | None:
    """Commit for a row: 12 hex digits, with + appended if the code was changed since; None outside
    git.
    """
    revision, dirty = commit_and_changes()
    if revision is None:
        return None
    return revision[:12] + ("+" if dirty else "")


def machine_facts(device: str) -> dict:
    """Description of this machine and the versions of the libraries."""
    import torch

    return {
        "versions": {
            "python": platform.python_version(),
            "posbench": posbench.__version__,
            **{name: version(name) for name in LIBRARIES},
        },
        "platform": platform.platform(),
        "processor": processor(),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
        "threads": torch.get_num_threads(),
    }


def collect_provenance(
    seed: int, device: str, data_fingerprint: str, n_parameters: int | None
) -> dict:
    """Content of provenance.json: code, command, versions, machine, data and size of one
    training.
    """
    revision, dirty = commit_and_changes()
    return {
        "commit": revision,
        "dirty_diff": dirty,
        # Of a child process the command that was typed, which began it.
        "command": os.environ.get(COMMAND_VARIABLE) or shlex.join(sys.orig_argv),
        "seed": seed,
        **machine_facts(device),
        "data_fingerprint": data_fingerprint,
        "n_parameters": n_parameters,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
