"""Atomic folders: whole or absent."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.common.files import disk_errors, sync_folder


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """Yield a new folder beside `out`; it takes that name on success and vanishes on failure.

    `out` may be an empty folder. Leftovers of a killed process are deleted first. Files are synced to the disk.
    Raises ConfigError while another process writes `out`, RunError when it cannot be written.
    """
    folder = out.with_name(f".{out.name}.part")
    with disk_errors(out), ExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"Another process writes out={out}: wait for it, or give another folder.") from error
        except OSError:
            pass  # a file system without locks
        for left in folder.iterdir():
            left.unlink()
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder
        for path in folder.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        os.replace(folder, out)
        sync_folder(out.parent)
