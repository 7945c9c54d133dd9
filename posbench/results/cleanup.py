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

from posbench.common.errors import ConfigError, RunError
from posbench.common.files import is_locked, read_json
from posbench.results.inventory import Entry, describe_run
from posbench.results.run_metadata import OWN_FILES, read_metadata, read_or_empty
from posbench.results.search import files_below, run_directories
from posbench.runs.directory import Run
from posbench.runs.partial_evaluation import PART_ENDING

TOKEN_FOLDER_NAME = re.compile(r"[0-9a-f]{24}(_(train|validation|test))*")
TOKENIZER_ENDINGS = (".json", ".gguf", ".model")  # of files, which no hub name has
# Names of files that common/files.py is writing.
TEMPORARY_NAME = re.compile(r"\..+-[a-z0-9_]{8}(\.[a-z0-9]+)?")
EVALUATION_PATH = re.compile(
    rf"evals/\w+/[^/]+\.(json|npz)|(evals/\w+/)?({TEMPORARY_NAME.pattern})"
)


@dataclass(frozen=True)
class Waste:
    """File or folder that can be deleted: its size in bytes, the reason, and why it could not be
    deleted.
    """

    path: Path
    size: int
    why: str
    not_deleted: str = ""


Candidate = tuple[Path, str]  # a path that can be deleted, and the reason


def find_waste(
    folder: Path,
    entries: Collection[Entry],
    unfinished: Collection[str] = (),
    older: float = 0.0,
    delete: bool = False,
) -> Iterator[Waste]:
    """Find what can be deleted of these runs and of wandb's folders, and with `delete` delete it.

    Of runs unchanged for `older` seconds, those without any progress go whole, and so do unfinished
    trainings whose state is in `unfinished`."""
    for entry in entries:
        # A run that is unreadable, gone, or at work is skipped.
        with (
            contextlib.suppress(OSError, RunError),
            _obstacle_to_lock(Run(entry.path).lock_file, delete) as obstacle,
        ):
            if delete and not obstacle:
                entry, _ = describe_run(entry.path, held=True)  # as it is now
            if entry.state != "running" and entry.age >= older:
                yield from _waste_of_candidates(
                    _candidates_of_run(entry, unfinished), delete, obstacle
                )
    yield from _waste_of_candidates(
        _uploaded_copies(folder, [entry.path for entry in entries]), delete, ""
    )


def unused_tokens(cache: Path, folder: Path, delete: bool = False) -> Iterator[Waste]:
    """Find, and with `delete` delete, token folders of a cache that no run in `folder` was trained
    on, by the runs' configurations.
    """
    used = _keys_of_used_tokens(folder)
    for manifest in sorted(cache.glob("*/manifest.json")):
        tokens = manifest.parent
        content = read_or_empty(read_json, manifest)
        if not TOKEN_FOLDER_NAME.fullmatch(tokens.name) or tokens.is_symlink():
            continue
        if not {"name", "source", "tokenizer"} <= set(content):  # damaged
            continue
        keys = {
            _tokens_key(content["name"], content["source"], tokenizer)
            for tokenizer in (content["tokenizer"], None)
        }
        if keys & used:
            continue
        with (
            contextlib.suppress(OSError),  # Timeout: another process uses these tokens
            _obstacle_to_lock(Path(f"{tokens}.lock"), delete) as obstacle,
        ):
            if delete and keys & _keys_of_used_tokens(folder):
                continue  # a run was made meanwhile
            why = (
                f"tokens of {content['name']} ({content['tokenizer']}), on which no run of this"
                " results folder was trained"
            )
            yield from _waste_of_candidates([(tokens, why)], delete, obstacle)


@contextlib.contextmanager
def _obstacle_to_lock(lock: Path, delete: bool) -> Iterator[str]:
    """Hold the lock with `delete`; yield why it cannot be, or "". Raises Timeout, an OSError, while
    another process has it.
    """
    obstacle = ""
    with contextlib.ExitStack() as stack:
        try:
            if delete:
                stack.enter_context(FileLock(lock, timeout=0))
        except Timeout:
            raise
        except OSError as error:
            obstacle = str(error)
        yield obstacle


def _waste_of_candidates(
    candidates: Iterable[Candidate], delete: bool, obstacle: str
) -> Iterator[Waste]:
    """Waste of candidates; with `delete` they are deleted, unless `obstacle` says why their lock is
    not held.
    """
    for path, why in candidates:
        not_deleted = obstacle
        size = _size(path)
        try:
            if delete and not obstacle:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        except OSError as error:
            not_deleted = str(error)
        yield Waste(path, size, why, not_deleted)


def _size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    if path.is_dir():
        return sum(status.st_size for _, status in files_below(path))
    return path.stat().st_size


def _candidates_of_run(entry: Entry, unfinished: Collection[str]) -> Iterator[Candidate]:
    """Waste of one run: the whole directory if nothing came of it, or if its training is not
    finished and its state is in `unfinished`, those that the user lets go; else its leftover files.
    """
    run = Run(entry.path)
    unstarted = entry.state == "unstarted"
    # A finished training keeps its weights, even if it is "failed" by a later evaluation, and one
    # with evaluations was finished once: here it is a copy without all files.
    keeps_results = run.finished or entry.evaluations
    goes_whole = not keeps_results and (unstarted or entry.state in unfinished)
    if not goes_whole:
        yield from _leftovers(run)
    elif not foreign_files(entry.path):  # a user's own files would go with the directory
        yield entry.path, "it never got anywhere" if unstarted else entry.state_in_words


def _uploaded_copies(folder: Path, run_paths: Iterable[Path]) -> Iterator[Candidate]:
    """Copies of these runs that wandb has uploaded to their end."""
    home = folder / ".wandb" / "wandb"
    # A link leads to files that are not these results', and nothing there is deleted.
    if home.is_symlink() or home.parent.is_symlink():
        return
    # A process that works on a run still writes its copy.
    ended_runs = [path.name for path in run_paths if not is_locked(Run(path).lock_file)]
    for path in sorted(home.glob("offline-run-*")):
        name = path.name.split("-", 3)[-1]  # rope-64-s0-... of offline-run-20260101_000000-rope-...
        of_ended_run = any(name.startswith(run_id) for run_id in ended_runs)
        if not of_ended_run or not path.is_dir() or path.is_symlink():
            continue
        if _is_uploaded_to_its_end(path):
            yield path, "wandb sync has uploaded it"


def _is_uploaded_to_its_end(copy: Path) -> bool:
    """True for a folder of wandb that it has uploaded and that nobody wrote to afterwards."""
    markers = list(copy.glob("*.wandb.synced"))
    for marker in markers:
        data = marker.with_suffix("")  # NAME.wandb of NAME.wandb.synced
        if data.exists() and data.stat().st_mtime > marker.stat().st_mtime:
            return False
    return bool(markers)


def foreign_files(path: Path) -> list[Path]:
    """Files in a run's directory that posbench did not make. A directory with any of them is not
    deleted.
    """
    run = Run(path)
    foreign = []
    for item in path.rglob("*"):
        # posbench makes no links.
        if item.is_symlink() or (not item.is_dir() and not _is_made_by_posbench(run, item)):
            foreign.append(item)
    return foreign


def _is_made_by_posbench(run: Run, path: Path) -> bool:
    """True for a file of a run that posbench has made, by its name and place."""
    within = path.relative_to(run.path).as_posix()
    return path in run.files or EVALUATION_PATH.fullmatch(within) is not None


def _leftovers(run: Run) -> Iterator[Candidate]:
    """Files of a run that are of no use."""
    for path, _ in files_below(run.path):
        if not _is_made_by_posbench(run, path):
            continue
        if run.finished and path in (run.state, run.previous_state):
            yield path, "the training is finished: its weights are there"
        elif TEMPORARY_NAME.fullmatch(path.name):
            if not is_locked(path):
                yield path, "half of a file whose writer is gone"
        # Parts of an evaluation that will be resumed have no rows yet.
        elif path.suffix == ".npz" and not path.name.endswith(PART_ENDING):
            if not path.with_suffix(".json").exists():
                yield path, "arrays without the rows they belong to"


def _keys_of_used_tokens(folder: Path) -> set[str]:
    """Keys (`_tokens_key`) of the tokens that the runs of a folder were trained on; one without a
    tokenizer stands for those of a text in any.
    """
    used = set()
    for path in run_directories(folder):
        data = read_metadata(path).nested_config.get("data") or {}
        with contextlib.suppress(KeyError, TypeError):
            tokenizer = _tokenizer_of(data)
            used.add(_tokens_key(data["name"], data["source"], tokenizer))
            if data.get("path"):  # tokens of own files, under the name that all of them had once
                used.add(_tokens_key(OWN_FILES, data["source"], tokenizer))
    return used


def _tokenizer_of(data: dict) -> str | None:
    """Name of a run's tokenizer as manifests have it; None if its file is not on this machine,
    since the name has a digest of it. Raises KeyError for a damaged configuration.
    """
    from posbench.data.tokenizers import tokenizer_name

    tokenizer = str(data["tokenizer"])  # anything, in a damaged configuration
    is_lost = tokenizer.endswith(TOKENIZER_ENDINGS) and not Path(tokenizer).exists()
    if is_lost:  # which reads like a hub name
        return None
    try:
        return tokenizer_name(tokenizer, data["vocab_size"])
    except (ConfigError, RunError, OSError):
        return None


def _tokens_key(name: str, source: object, tokenizer: str | None) -> str:
    return json.dumps([name, source, tokenizer], sort_keys=True, default=str)
