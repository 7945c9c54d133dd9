"""Where runs come from, and what tells them apart: their directories, configurations and provenance, read as data.

A results folder may be somebody else's. Nothing in it is instantiated, resolved or imported, and its text loses what a terminal would obey.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from posbench.common.errors import ConfigError, RunError
from posbench.common.files import read_json
from posbench.config.identity import LATER, NOT_MODEL, NOT_TRAIN
from posbench.runs.directory import Run

if TYPE_CHECKING:
    from posbench.runs.evaluation import Evaluation

# What config.yaml says of the first command alone: paths, and what was evaluated with it.
NOT_TRAINING = {
    "extension", "scale_attention", "evaluate", "log", "allow_untested", "jobs", "results_dir", "cache_dir", "report_dir",
    "run", "runs", "out", "dry", "experiment", "hydra",
}  # fmt: skip
ABSENT = "(absent)"


def clean(value: object) -> object:
    """`value` with a question mark box for every character of its strings that does not print, in keys as well."""
    if isinstance(value, str):
        return value if value.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in value)
    if isinstance(value, dict):
        return {clean(key): clean(item) for key, item in value.items()}
    return [clean(item) for item in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class Origin:
    """What a run's directory says of its training; empty dicts where it says nothing that can be read."""

    path: Path
    config: dict[str, object]  # dotted key -> value
    provenance: dict

    @property
    def fingerprint(self) -> str:
        """Of the data: hex, or empty."""
        return str(self.provenance.get("data_fingerprint") or "")

    @property
    def versions(self) -> dict[str, object]:
        """Of Python and of the libraries."""
        found = self.provenance.get("versions")
        return found if isinstance(found, dict) else {}

    @property
    def training(self) -> dict[str, object]:
        """What makes the weights what they are, but for encoding, trained scale and seed, which every row has."""
        skipped = [*(f"train.{name}" for name in NOT_TRAIN), *(f"model.{name}" for name in NOT_MODEL), "train.scale_attention"]
        kept = {key: value for key, value in self.config.items() if key.startswith(("model.", "train.")) and not _under(key, skipped)}
        if "model.checkpoint.sha256" in kept:  # a checkpoint is told by its folder's name first, its shape and content after that
            sha256 = str(kept.pop("model.checkpoint.sha256"))
            kept = {"checkpoint": Path(str(self.config.get("model.path"))).name, **kept, "sha256": sha256[:10]}
        return {**kept, "data": self.fingerprint[:10]} if kept else {}


def _under(key: str, names: Iterable[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)


def read(path: Path) -> Origin:
    """What the run in `path` says of itself. Never fails: a damaged or foreign file says nothing."""
    run = Run(path)
    try:
        config = flatten(clean(run.read_config()))
    except RunError:
        config = {}
    try:
        provenance = clean(read_json(run.provenance))
    except (RunError, OSError):
        provenance = {}
    return Origin(path, config, provenance if isinstance(provenance, dict) else {})


def flatten(node: object, prefix: str = "") -> dict[str, object]:
    """Dotted keys of a nested configuration; 1.0 and 1 are one number."""
    if not isinstance(node, dict):
        return {}
    flat: dict[str, object] = {}
    for key, value in node.items():
        if isinstance(value, dict) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = _number(value)
    return flat


def _number(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def differing(configs: Sequence[Mapping[str, object]]) -> dict[str, list[str]]:
    """Key -> its value in each configuration as text, for the keys that are not the same in all.

    Where a key that came after the first release is absent and the others hold its default, nothing differs.
    """
    keys = dict.fromkeys(key for config in configs for key in config)
    found = {}
    for key in keys:
        default = _number(LATER.get(key, ABSENT))
        if len({text(config.get(key, default)) for config in configs}) > 1:
            found[key] = [text(config.get(key, ABSENT)) for config in configs]
    return found


def text(value: object) -> str:
    """A configuration's value as one would type it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def settings(origin: Origin) -> dict[str, object]:
    """What two trainings are compared by: all of the configuration but what says where files lie and what was evaluated first."""
    kept = {key: value for key, value in origin.config.items() if not _under(key, NOT_TRAINING)}
    return {**kept, "data fingerprint": origin.fingerprint[:16] or ABSENT}


def variants(evaluations: Iterable[Evaluation], origins: Mapping[str, Origin]) -> tuple[dict[str, str], list[str]]:
    """({run_id: what tells it from the other trainings of its encoding, in words}, every key these trainings differ in).

    The words name no more keys than it takes: two trainings of 1000 and 2000 steps are ` steps=1000` and ` steps=2000`. Two of one seed
    whose configurations do not tell them apart, or cannot be read, go by the hash in their run_id: nothing else is known to differ.
    """
    groups: dict[tuple, dict[str, int]] = defaultdict(dict)
    shared = ("data", "tokenizer", "train_len", "encoding", "encoding_args", "trained_scale", "finetune")
    for evaluation in evaluations:
        row = evaluation.rows[0]
        groups[evaluation.source, *(text(row[name]) for name in shared)][row["run_id"]] = row["seed"]
    words: dict[str, str] = {}
    keys: dict[str, None] = {}
    for group in groups.values():
        known = {run_id: origins[run_id].training for run_id in group if run_id in origins and origins[run_id].training}
        found = differing(list(known.values()))
        telling: list[str] = []
        for key in found:
            if _distinct(found, [*telling, key]) > _distinct(found, telling):
                telling.append(key)
        keys |= dict.fromkeys(found)
        if telling:
            short = [key.split(".")[-1] for key in telling]
            names = short if len(set(short)) == len(short) else telling
            for index, run_id in enumerate(known):
                words[run_id] = "".join(f" {name}={found[key][index]}" for name, key in zip(names, telling, strict=True))
        alike: dict[tuple, list[str]] = defaultdict(list)
        for run_id, seed in group.items():
            alike[words.get(run_id, ""), seed].append(run_id)
        if any(len(run_ids) > 1 for run_ids in alike.values()):  # then all of the group: which seeds belong together is not known
            keys["run_id"] = None
            hashes = [run_id.rsplit("-", 1)[-1] for run_id in group]
            names = hashes if len(set(hashes)) == len(hashes) else list(group)
            words |= {run_id: f"{words.get(run_id, '')} run={name}" for run_id, name in zip(group, names, strict=True)}
    return words, list(keys)


def _distinct(found: dict[str, list[str]], keys: list[str]) -> int:
    return len(set(zip(*(found[key] for key in keys), strict=True))) if keys else 1


def find(asked: Iterable[object]) -> tuple[list[Path], list[Path]]:
    """(run directories, CSVs) named by paths and globs: a run itself, a folder of runs, a file.

    Raises ConfigError for a name that leads to neither.
    """
    runs: dict[Path, Path] = {}
    files: dict[Path, Path] = {}
    ways = "give run directories, a folder of them, a CSV of losses, or a quoted glob of any of these."
    for name in asked:
        name = os.path.expanduser(str(name))
        paths = [Path(name)] if name and Path(name).exists() else [Path(path) for path in sorted(glob.glob(name))]
        csvs = [path for path in paths if path.is_file() and path.suffix.lower() == ".csv"]
        found = [run for path in paths for run in ([path] if has_config(path) else inside(path))]
        if not found and not csvs:
            held = f" There is a {Path(name) / 'rows.csv'}: name that." if name and (Path(name) / "rows.csv").is_file() else ""
            raise ConfigError(f"runs={clean(name)} leads to no training and no CSV: {ways}{held}")
        for run in found:
            runs.setdefault(run.resolve(), run)
        for file in csvs:
            files.setdefault(file.resolve(), file)
    if not runs and not files:
        raise ConfigError(f"runs=[] names nothing: {ways}")
    return list(runs.values()), list(files.values())


def has_config(path: Path) -> bool:
    """Whether a directory holds a run's configuration; False as well for one that cannot be read."""
    with contextlib.suppress(OSError):
        return (path / "config.yaml").is_file()
    return False


def inside(folder: Path) -> list[Path]:
    """The run directories in a results folder, sorted."""
    return sorted(path.parent for path in folder.glob("*/config.yaml"))


def told_apart(paths: Sequence[Path]) -> dict[Path, str]:
    """Each path by as few of its last parts as tell it from the others."""
    depth = 1
    while len({path.parts[-depth:] for path in paths}) < len(set(paths)):
        depth += 1
    return {path: str(clean("/".join(path.parts[-depth:]))) for path in paths}
