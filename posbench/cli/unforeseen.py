"""Report of an unforeseen error: one sentence on stderr, and the traceback in a file.

POSBENCH_TRACEBACK=1 prints the traceback instead, for debugging.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from pathlib import Path
from types import FrameType

from posbench.config.typed_args import shown

PRINT = "POSBENCH_TRACEBACK"
HERE = Path(__file__).parents[1]
OURS = (HERE, HERE.parent / "scripts")


def tell(error: Exception, results_dir: object = None) -> int:
    """Print where `error` came from and the path of its traceback. Returns the exit code 1."""
    if os.environ.get(PRINT):
        traceback.print_exception(error)
        return 1
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if any(map(Path(frame.f_code.co_filename).is_relative_to, OURS))]
    place = f" in {_place(frames[-1])}" if frames else ""
    path = getattr(error, "filename", None) or next(filter(None, map(_path, reversed(frames))), None)
    reading = f", at work on {shown(str(path))}" if path else ""
    said = shown(next(iter(str(error).splitlines()), ""))
    print(f"failed: unforeseen {type(error).__name__}{place}{reading} ({said}): {_kept(error, results_dir)}.", file=sys.stderr)
    return 1


def _place(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_qualname.split('.<locals>')[0]}"


def _path(frame: FrameType) -> Path | None:
    """A path among the local variables of a frame, or None."""
    held = [value if isinstance(value, Path) else getattr(value, "path", None) for value in frame.f_locals.values()]
    return next((value for value in held if isinstance(value, Path)), None)


def _kept(error: Exception, results_dir: object) -> str:
    """Write the traceback beside Hydra's files or to the temporary folder, and return the words that name the file.

    If neither can be written, the traceback is printed.
    """
    folders = [Path(results_dir) / ".hydra"] if isinstance(results_dir, str) else []
    for folder in [*folders, None]:
        try:
            number, name = tempfile.mkstemp(".txt", "traceback-", folder, text=True)
            with open(number, "w", encoding="utf-8") as file:
                file.write(f"{' '.join(sys.orig_argv)}\n\n{''.join(traceback.format_exception(error))}")
            return f"the traceback is in {name}"
        except OSError:
            continue
    traceback.print_exception(error)
    return f"the traceback is above, since {tempfile.gettempdir()} cannot be written"
