"""Files of a results folder that are no longer needed: find them, and delete them on request.

Only files whose name and place show that posbench or wandb made them are deleted. What goes of a
run is looked for under the run's lock, so that no other process changes it meanwhile. A run that a
living process works on is skipped, and links are not followed."""

import contextlib
import json
import re
import shutil
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from posbench.common.errors import RunError
from posbench.common.files import locked, read_json
from posbench.results.inventory import Entry, describe_run
from posbench.results.run_metadata import or_nothing, read_metadata
from posbench.results.search import files, run_directories
from posbench.runs.directory import Run
from posbench.runs.partial_evaluation import PART

TOKENS = re.compile(r"[0-9a-f]{24}(_(train|validation|test))*")
TEMPORARY = re.compile(
    r"\..+-[a-z0-9_]{8}(\.[a-z0-9]+)?"
)  # names of files that common/files.py is writing
OWN = re.compile(rf"evals/\w+/[^/]+\.(json|npz)|(evals/\w+/)?({TEMPORARY.pattern})")


@dataclass(frozen=True)
class Waste:
    """File or folder that can be deleted: its size in bytes, the reason, and why it could not be
    deleted.
    """

    path: Path
    size: int
    why: str
    kept: str = ""


def find_waste(
    folder: Path,
    found: Collection[Entry],
    unfinished: Collection[str] = (),
    older: float = 0.0,
    delete: bool = False,
) -> Iterator[Waste]:
    """Find what can be deleted of these runs and of wandb's folders, and with `delete` delete it.

    Of runs unchanged for `older` seconds, those without any progress go whole, and so do unfinished
    trainings whose state is in `unfinished`."""
    for entry in found:
        # A run that is unreadable, gone, or at work is skipped.
        with (
            contextlib.suppress(OSError, RunError),
            _held(Run(entry.path).lock_file, delete) as kept,
        ):
            now = describe_run(entry.path, held=True)[0] if delete and not kept else entry
            if now.state != "running" and now.age >= older:
                yield from _taken(_of_run(now, unfinished), delete, kept)
    yield from _taken(_uploaded(folder, [entry.path.name for entry in found]), delete, "")


def unused_tokens(cache: Path, folder: Path, delete: bool = False) -> Iterator[Waste]:
    """Find, and with `delete` delete, token folders of a cache that no run in `folder` was trained
    on, by the runs' configurations.
    """
    used = _tokens_used(folder)
    for manifest in sorted(cache.glob("*/manifest.json")):
        tokens, content = manifest.parent, or_nothing(read_json, manifest)
        if (
            not TOKENS.fullmatch(tokens.name)
            or tokens.is_symlink()
            or not {"name", "source", "tokenizer"} <= set(content)
        ):
            continue
        if (key := _tokens_key(content["name"], content["source"], content["tokenizer"])) in used:
            continue
        with contextlib.suppress(OSError), _held(Path(f"{tokens}.lock"), delete) as kept:
            if not delete or key not in _tokens_used(folder):
                why = (
                    f"tokens of {content['name']} ({content['tokenizer']}), on which no run of this"
                    " results folder was trained"
                )
                yield from _taken([(tokens, why)], delete, kept)


@contextlib.contextmanager
def _held(lock: Path, delete: bool) -> Iterator[str]:
    """Hold the lock with `delete`; yield why it cannot be, or "". Raises Timeout, an OSError, while
    another process has it.
    """
    kept = ""
    with contextlib.ExitStack() as stack:
        try:
            if delete:
                stack.enter_context(FileLock(lock, timeout=0))
        except Timeout:
            raise
        except OSError as error:
            kept = str(error)
        yield kept


def _taken(found: Iterable[tuple[Path, str]], delete: bool, unheld: str) -> Iterator[Waste]:
    """Waste of paths, each with the reason; with `delete` it is deleted, unless `unheld` says why
    their lock is not held.
    """
    for path, why in found:
        size, kept = (
            (
                sum(status.st_size for _, status in files(path))
                if path.is_dir()
                else path.stat().st_size
            ),
            unheld,
        )
        try:
            if delete and not kept:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        except OSError as error:
            kept = str(error)
        yield Waste(path, size, why, kept)


def _of_run(entry: Entry, unfinished: Collection[str]) -> Iterator[tuple[Path, str]]:
    """Waste of one run: the whole directory if nothing came of it, else its leftover files."""
    run = Run(entry.path)
    if entry.state != "unstarted" and (entry.state not in unfinished or run.finished):
        yield from _leftovers(run)
    elif not foreign_files(entry.path):
        yield entry.path, "it never got anywhere" if entry.state == "unstarted" else entry.told


def _uploaded(folder: Path, ids: Iterable[str]) -> Iterator[tuple[Path, str]]:
    home = folder / ".wandb" / "wandb"
    if home.is_symlink() or home.parent.is_symlink():
        return
    for path in sorted(home.glob("offline-run-*")):
        mine = any(path.name.split("-", 3)[-1].startswith(run_id) for run_id in ids)
        if mine and path.is_dir() and not path.is_symlink() and any(path.glob("*.wandb.synced")):
            yield path, "wandb sync has uploaded it"


def foreign_files(path: Path) -> list[Path]:
    """Files in a run's directory that posbench did not make. A directory with any of them is not
    deleted.
    """
    found = [item for item in path.rglob("*") if item.is_symlink() or not item.is_dir()]
    return [item for item in found if item.is_symlink() or not _made_here(Run(path), item)]


def _made_here(run: Run, path: Path) -> bool:
    return path in run.files or OWN.fullmatch(path.relative_to(run.path).as_posix()) is not None


def _leftovers(run: Run) -> Iterator[tuple[Path, str]]:
    for path in (path for path, _ in files(run.path) if _made_here(run, path)):
        if run.finished and path in (run.state, run.previous_state):
            yield path, "the training is finished: its weights are there"
        elif TEMPORARY.fullmatch(path.name):
            if not locked(path):
                yield path, "half of a file whose writer is gone"
        elif (
            path.suffix == ".npz"
            and not path.name.endswith(PART)
            and not path.with_suffix(".json").exists()
        ):
            yield path, "arrays without the rows they belong to"


def _tokens_used(folder: Path) -> set[str]:
    from posbench.data.tokenizers import tokenizer_name

    used = set()
    for path in run_directories(folder):
        data = read_metadata(path).nested.get("data") or {}
        with contextlib.suppress(KeyError, TypeError):
            used.add(
                _tokens_key(
                    data["name"],
                    data["source"],
                    tokenizer_name(data["tokenizer"], data["vocab_size"]),
                )
            )
    return used


def _tokens_key(name: str, source: object, tokenizer: str) -> str:
    return json.dumps([name, source, tokenizer], sort_keys=True, default=str)
