"""Files of a results folder that are no longer needed: find them, and delete them on request.

Only files whose name and place show that posbench or wandb made them are deleted, under the run's lock. A run that a living process
works on is skipped, and links are not followed. The reason is checked again under the lock, since another process may have changed it.
"""

import contextlib
import json
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from posbench.common.errors import RunError
from posbench.common.files import locked, read_json
from posbench.runs.directory import Run
from posbench.runs.inventory import Entry, describe_run
from posbench.runs.run_metadata import or_nothing, read_metadata
from posbench.runs.search import files, run_directories
from posbench.runs.unfinished import PART

TOKENS = re.compile(r"[0-9a-f]{24}(_(train|validation|test))*")
# Temporary names: of common/files.py (by tempfile), and of safetensors, which earlier versions wrote with.
TEMPORARY = re.compile(r"\..+-[a-z0-9_]{8}(\.[a-z0-9]+)?|\.tmp[A-Za-z0-9]{6}")
OWN = re.compile(rf"evals/\w+/[^/]+\.(json|npz)|(evals/\w+/)?({TEMPORARY.pattern})")


@dataclass(frozen=True)
class Waste:
    """File or folder that can be deleted: its size in bytes, the reason, and the lock that its users hold, if any.

    `newest` is the time of its last written file in ns, 0 if it has none. `again` repeats the search that found it.
    """

    path: Path
    size: int
    newest: int
    why: str
    lock: Path | None
    again: "Callable[[], Iterable[Waste]]" = field(compare=False)


def _folder(path: Path, why: str, lock: Path | None, again: Callable[[], Iterable[Waste]]) -> Waste:
    found = [status for item, status in files(path) if item.name != ".lock"]
    newest = max((status.st_mtime_ns for status in found), default=0)
    return Waste(path, sum(status.st_size for status in found), newest, why, lock, again)


def find_waste(folder: Path, runs: Iterable[Entry], unfinished: Collection[str] = ()) -> Iterator[Waste]:
    """Find what can be deleted of these runs and of wandb's folders.

    Runs without any progress are deleted whole, and so are unfinished trainings whose state is in `unfinished`.
    """
    ids = set()
    for entry in runs:
        ids.add(entry.path.name)
        if entry.state != "running":
            found = []
            with contextlib.suppress(OSError, RunError):  # unreadable, or deleted meanwhile: skip it
                found = list(_of_run(entry, unfinished))
            yield from found
    yield from _uploaded(folder, ids)


def _of_run(entry: Entry, unfinished: Collection[str]) -> Iterator[Waste]:
    """Waste of one run: the whole directory if nothing came of it, else its leftover files."""
    run = Run(entry.path)
    if entry.state == "unstarted" or (entry.state in unfinished and not run.finished):
        if not foreign_files(entry.path):
            told = "it never got anywhere" if entry.state == "unstarted" else entry.told
            # The caller of `again` holds the lock.
            yield _folder(entry.path, told, run.lock_file, lambda: _of_run(describe_run(entry.path, time.time(), held=True)[0], unfinished))
    else:
        yield from _leftovers(run)


def _uploaded(folder: Path, ids: Collection[str]) -> Iterator[Waste]:
    """wandb's offline folders of these runs that were uploaded."""
    home = folder / ".wandb" / "wandb"
    if home.is_symlink() or home.parent.is_symlink():
        return
    for path in sorted(home.glob("offline-run-*")):
        mine = any(path.name.split("-", 3)[-1].startswith(run_id) for run_id in ids)
        if mine and path.is_dir() and not path.is_symlink() and any(path.glob("*.wandb.synced")):
            yield _folder(path, "wandb sync has uploaded it", None, partial(_uploaded, folder, ids))


def foreign_files(path: Path) -> list[Path]:
    """Files in a run's directory that posbench did not make. A directory with any of them is not deleted."""
    found = [item for item in path.rglob("*") if item.is_symlink() or not item.is_dir()]
    return [item for item in found if item.is_symlink() or not _made_here(Run(path), item)]


def _made_here(run: Run, path: Path) -> bool:
    """True if place and name of a file in a run's directory show that posbench made it."""
    return path in run.files or OWN.fullmatch(path.relative_to(run.path).as_posix()) is not None


def delete(waste: Waste) -> str:
    """Delete a file or folder. Returns "", or the reason why it was kept."""
    try:
        with FileLock(waste.lock, timeout=0) if waste.lock else contextlib.nullcontext():
            if waste not in waste.again():
                return "it has changed in the meantime"
            if waste.path.is_dir():
                shutil.rmtree(waste.path)
            else:
                waste.path.unlink()
    except Timeout:
        return "a living process works on it"
    except (OSError, RunError) as error:
        return str(error)
    return ""


def unused_tokens(cache: Path, folder: Path, name: str = "*") -> Iterator[Waste]:
    """Token folders of a cache that no run in `folder` was trained on, according to the runs' configurations. `name` restricts them."""
    from posbench.data.tokenizer_files import tokenizer_name

    used = set()
    for path in run_directories(folder):
        data = read_metadata(path).nested.get("data") or {}
        with contextlib.suppress(KeyError, TypeError):
            used.add(_tokens_key(data["name"], data["source"], tokenizer_name(data["tokenizer"], data["vocab_size"])))
    for manifest in sorted(cache.glob(f"{name}/manifest.json")):
        tokens, content = manifest.parent, or_nothing(partial(read_json, manifest))
        if not TOKENS.fullmatch(tokens.name) or tokens.is_symlink() or not {"name", "source", "tokenizer"} <= set(content):
            continue
        if _tokens_key(content["name"], content["source"], content["tokenizer"]) not in used:
            why = f"tokens of {content['name']} ({content['tokenizer']}), on which no run of this results folder was trained"
            yield _folder(tokens, why, Path(f"{tokens}.lock"), partial(unused_tokens, cache, folder, tokens.name))


def _tokens_key(name: str, source: object, tokenizer: str) -> str:
    return json.dumps([name, source, tokenizer], sort_keys=True, default=str)


def _leftovers(run: Run) -> Iterator[Waste]:
    """Leftover files in a run's directory that the run no longer needs."""
    for path, status in files(run.path):
        if not _made_here(run, path):
            continue
        if run.finished and path in (run.state, run.previous_state):
            why = "the training is finished: its weights are there"
        elif TEMPORARY.fullmatch(path.name):
            if locked(path):
                continue
            why = "half of a file whose writer is gone"
        elif path.suffix == ".npz" and not path.name.endswith(PART) and not path.with_suffix(".json").exists():
            why = "arrays without the rows they belong to"
        else:
            continue
        yield Waste(path, status.st_size, status.st_mtime_ns, why, run.lock_file, partial(_leftovers, run))
