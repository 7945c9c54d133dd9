"""What takes room in a results folder and is not needed: found, told, and deleted only when asked.

Deleted is nothing but what posbench or wandb made there, by its name and place, under the run's lock; a run that a living process works on
is left alone, and no link is followed.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from posbench import failure
from posbench.errors import RunError
from posbench.files import locked, read_json
from posbench.listing import Entry, files, read_config
from posbench.runs import Run

TOKENS = re.compile(r"[0-9a-f]{24}")
TEMPORARY = re.compile(r"\..+-[a-z0-9_]{8}(\.[a-z0-9]+)?")  # as tempfile names what files.py writes
OWN = re.compile(
    rf"config\.yaml|provenance\.json|train\.jsonl?|model\.safetensors|state(\.previous)?\.pt|{re.escape(failure.NAME)}|\.lock"
    rf"|evals/\w+/[^/]+\.(json|npz)|(evals/\w+/)?{TEMPORARY.pattern}"
)


@dataclass(frozen=True)
class Waste:
    """Something that can go: a file or a folder, its size in bytes, why, and the lock that whoever uses it holds, if any."""

    path: Path
    size: int
    why: str
    lock: Path | None = None


def find(folder: Path, runs: Iterable[Entry], unfinished: Iterable[str] = ()) -> Iterator[Waste]:
    """What can go of these runs and of wandb's folders.

    Runs that never got anywhere go whole, and so do trainings that did not finish and whose state is in `unfinished`.
    """
    ids = set()
    for entry in runs:
        ids.add(entry.path.name)
        run = Run(entry.path)
        if entry.state == "running":
            continue
        if entry.state == "unstarted" or (entry.state in unfinished and not run.finished):
            if not foreign(entry.path):
                told = "it never got anywhere" if entry.state == "unstarted" else entry.told
                yield Waste(entry.path, entry.size, told, entry.path / ".lock")
            continue
        yield from _leftovers(run)
    for path in sorted((folder / ".wandb" / "wandb").glob("offline-run-*")):
        mine = any(path.name.split("-", 3)[-1].startswith(run_id) for run_id in ids)
        if mine and path.is_dir() and not path.is_symlink() and any(path.glob("*.wandb.synced")):
            yield Waste(path, measure(path), "wandb sync has uploaded it")


def foreign(path: Path) -> list[Path]:
    """What lies in a run's directory and is none of its files; a directory that holds any is not deleted."""
    found = [item for item in path.rglob("*") if item.is_symlink() or not item.is_dir()]
    return [item for item in found if item.is_symlink() or not OWN.fullmatch(item.relative_to(path).as_posix())]


def measure(path: Path) -> int:
    """Bytes of a file, or of all files below a folder."""
    return sum(item.stat(follow_symlinks=False).st_size for item in files(path)) if path.is_dir() else path.stat().st_size


def delete(waste: Waste) -> str:
    """Delete it; why not, where it cannot or must not go, else ""."""
    try:
        with FileLock(waste.lock, timeout=0) if waste.lock else contextlib.nullcontext():
            if measure(waste.path) != waste.size:
                return "it has changed in the meantime"
            if waste.path.is_dir():
                shutil.rmtree(waste.path)
            else:
                waste.path.unlink()
    except Timeout:
        return "a living process works on it"
    except OSError as error:
        return str(error)
    return ""


def unused_tokens(cache: Path, runs: Iterable[Entry]) -> Iterator[Waste]:
    """The token folders of a cache that none of these runs was trained on, as far as their configurations say."""
    from posbench.data.tokenizers import tokenizer_name

    used = set()
    for entry in runs:
        data = read_config(Run(entry.path))[0].get("data") or {}
        with contextlib.suppress(KeyError, TypeError):
            used.add(_tokens(data["name"], data["source"], tokenizer_name(data["tokenizer"], data["vocab_size"])))
    for manifest in sorted(cache.glob("*/manifest.json")):
        folder, content = manifest.parent, {}
        with contextlib.suppress(RunError):
            content = read_json(manifest)
        if not TOKENS.fullmatch(folder.name) or folder.is_symlink() or not {"name", "source", "tokenizer"} <= set(content):
            continue
        if _tokens(content["name"], content["source"], content["tokenizer"]) not in used:
            why = f"tokens of {content['name']} ({content['tokenizer']}), on which no run of this results folder was trained"
            yield Waste(folder, measure(folder), why, Path(f"{folder}.lock"))


def _tokens(name: str, source: object, tokenizer: str) -> str:
    return json.dumps([name, source, tokenizer], sort_keys=True, default=str)


def _leftovers(run: Run) -> Iterator[Waste]:
    """What a run's directory holds beyond the run."""
    for item in files(run.path):
        path = Path(item)
        inside = path.relative_to(run.path).as_posix()
        if not OWN.fullmatch(inside):
            continue
        if run.finished and re.fullmatch(r"state(\.previous)?\.pt", inside):
            why = "the training is finished: its weights are there"
        elif TEMPORARY.fullmatch(item.name):
            if locked(path):
                continue
            why = "half of a file whose writer is gone"
        elif path.suffix == ".npz" and not path.with_suffix(".json").exists():
            why = "arrays without the rows they belong to"
        else:
            continue
        yield Waste(path, item.stat(follow_symlinks=False).st_size, why, run.path / ".lock")
