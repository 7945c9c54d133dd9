"""Origins of runs, read as data: directory, configuration and provenance, and the keys in which trainings differ.

A results folder may come from somebody else. Nothing in it is instantiated, resolved or imported, and control characters are replaced.
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

# Keys of config.yaml that only describe the first command: paths and evaluations.
NOT_TRAINING = {
    "extension", "scale_attention", "evaluate", "log", "allow_untested", "jobs", "results_dir", "cache_dir", "report_dir",
    "run", "runs", "out", "dry", "experiment", "hydra",
}  # fmt: skip
ABSENT = "(absent)"


def clean(value: object) -> object:
    """`value` with U+FFFD for every unprintable character in its strings and keys."""
    if isinstance(value, str):
        return value if value.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in value)
    if isinstance(value, dict):
        return {clean(key): clean(item) for key, item in value.items()}
    return [clean(item) for item in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class Origin:
    """Configuration and provenance of a run. Unreadable files give empty dicts."""

    path: Path
    config: dict[str, object]  # {dotted key: value}
    provenance: dict

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the data: hex digits, or ""."""
        return str(self.provenance.get("data_fingerprint") or "")

    @property
    def versions(self) -> dict[str, object]:
        """{name: version} of Python and the libraries."""
        found = self.provenance.get("versions")
        return found if isinstance(found, dict) else {}

    @property
    def training(self) -> dict[str, object]:
        """Settings that determine the weights, except encoding, trained scale and seed, which every row has."""
        skipped = [*(f"train.{name}" for name in NOT_TRAIN), *(f"model.{name}" for name in NOT_MODEL), "train.scale_attention"]
        kept = {key: value for key, value in self.config.items() if key.startswith(("model.", "train.")) and not _under(key, skipped)}
        if "model.checkpoint.sha256" in kept:  # the name of its folder comes first, then its shape and content
            sha256 = str(kept.pop("model.checkpoint.sha256"))
            kept = {"checkpoint": Path(str(self.config.get("model.path"))).name, **kept, "sha256": sha256[:10]}
        return {**kept, "data": self.fingerprint[:10]} if kept else {}


def _under(key: str, names: Iterable[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)


def read(path: Path) -> Origin:
    """Origin of the run in `path`. Never fails: damaged and foreign files count as empty."""
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
    """{dotted key: value} of a nested configuration. Whole floats become int, so that 1.0 and 1 are equal."""
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
    """{key: its value in each configuration, as text} for the keys that differ.

    A missing key of identity.LATER counts as its default.
    """
    keys = dict.fromkeys(key for config in configs for key in config)
    found = {}
    for key in keys:
        default = _number(LATER.get(key, ABSENT))
        if len({text(config.get(key, default)) for config in configs}) > 1:
            found[key] = [text(config.get(key, ABSENT)) for config in configs]
    return found


def text(value: object) -> str:
    """Value of a configuration as a user would type it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def settings(origin: Origin) -> dict[str, object]:
    """Settings in which two trainings are compared: the configuration without paths and evaluations, and the data fingerprint."""
    kept = {key: value for key, value in origin.config.items() if not _under(key, NOT_TRAINING)}
    return {**kept, "data fingerprint": origin.fingerprint[:16] or ABSENT}


def variants(evaluations: Iterable[Evaluation], origins: Mapping[str, Origin]) -> tuple[dict[str, str], list[str]]:
    """({run_id: words that tell it from other trainings of its encoding}, all keys in which these trainings differ).

    The words use as few keys as needed: trainings of 1000 and 2000 steps become " steps=1000" and " steps=2000". If two of one seed
    have equal or unreadable configurations, the hash in their run_id is used, since nothing else is known to differ.
    """
    groups: dict[tuple, dict[str, int]] = defaultdict(dict)
    shared = ("data", "tokenizer", "train_len", "encoding", "encoding_args", "trained_scale", "finetune")
    for evaluation in evaluations:
        row = evaluation.first
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
        if any(len(run_ids) > 1 for run_ids in alike.values()):  # mark the whole group, since it is unknown which seeds belong together
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
    """True if a directory has a run's configuration; False also for an unreadable one."""
    with contextlib.suppress(OSError):
        return (path / "config.yaml").is_file()
    return False


def inside(folder: Path) -> list[Path]:
    """Run directories in a results folder, sorted."""
    return sorted(path.parent for path in folder.glob("*/config.yaml"))


def told_apart(paths: Sequence[Path]) -> dict[Path, str]:
    """{path: its shortest ending that differs from the others}."""
    depth = 1
    while len({path.parts[-depth:] for path in paths}) < len(set(paths)):
        depth += 1
    return {path: str(clean("/".join(path.parts[-depth:]))) for path in paths}
