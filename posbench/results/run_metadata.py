"""Metadata of runs, read as data: configuration, provenance, the keys in which trainings differ,
and the lines of trainings.csv.

A results folder may come from somebody else. Nothing in it is instantiated, resolved or imported,
and control characters are replaced."""

import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from posbench.common.defuse import printable
from posbench.common.errors import RunError
from posbench.common.files import read_json, read_lines
from posbench.config.identity import CHOICE, FIELDS_ADDED_LATER, NOT_MODEL, NOT_TRAIN, run_prefix
from posbench.config.names import closest_yaml
from posbench.runs.directory import Run

if TYPE_CHECKING:
    from posbench.results.evaluation import Evaluation

# Keys of config.yaml that only describe the first command: paths and evaluations.
NOT_TRAINING = {
    "extension", "scale_attention", "evaluate", "log", "allow_untested", "check", "jobs", "results_dir", "cache_dir", "report_dir",
    "run", "runs", "out", "dry", "experiment", "hydra",
}  # fmt: skip
ABSENT = "(absent)"
NOTED_AS = {
    "changed": "dirty_diff",
    "weights_sha256": "sha256",
    "parameters": "n_parameters",
}  # in provenance and summary
SHARE = 0.2  # share of the steps, at the end, used for the slope
PLACES = (
    "model.path",
    "model.engine.path",
    "encoding.name",
)  # of a checkpoint; of an engine, of which a server says a name alone


@dataclass(frozen=True)
class RunMetadata:
    """Configuration (`nested`), provenance and summary of a run. Unreadable files give empty dicts.

    `end_slope` is known only where the log of the training is not: see
    posbench/results/evidence.py."""

    path: Path
    nested: dict
    provenance: dict
    summary: dict = field(default_factory=dict)
    end_slope: float | None = None

    @cached_property
    def config(self) -> dict[str, object]:
        """{dotted key: value} of the configuration."""
        return flatten(self.nested)

    @property
    def whole(self) -> bool:
        """True if the configuration has all parts of a training's."""
        return all(
            isinstance(self.nested.get(part), dict)
            for part in ("encoding", "model", "train", "data")
        )

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
        """Settings that determine the weights, except encoding, trained scale and seed, which every
        row has.
        """
        skipped = [
            *(f"train.{name}" for name in (*NOT_TRAIN, "scale_attention", "parent")),
            *(f"model.{name}" for name in NOT_MODEL),
        ]
        kept = {
            key: value
            for key, value in self.config.items()
            if key.startswith(("model.", "train.")) and not under(key, skipped)
        }
        if (
            "model.checkpoint.sha256" in kept
        ):  # the name of its folder comes first, then its shape and content
            sha256 = str(kept.pop("model.checkpoint.sha256"))
            place = next((found for key in PLACES if (found := self.config.get(key))), "")
            kept = {
                "checkpoint": Path(str(place).rpartition(":")[2]).name,
                **kept,
                "sha256": sha256[:10],
            }
        if isinstance(lengths := kept.get("train.length"), list) and len(lengths) == 1:
            kept["train.length"] = lengths[0]
        return {**kept, "data": self.fingerprint[:10]} if kept else {}


def under(key: str, names: Iterable[str]) -> bool:
    """True for one of the names or a key below it: encoding.slope_scale stands under encoding."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


def read_metadata(path: Path) -> RunMetadata:
    """Metadata of the run in `path`. Never fails: damaged and foreign files count as empty."""
    run = Run(path)
    return RunMetadata(
        path,
        or_nothing(run.read_config),
        or_nothing(read_json, run.provenance),
        or_nothing(read_json, run.summary),
    )


def or_nothing(reader: Callable[..., object], *given: object) -> dict:
    """Printable content that `reader` returns; {} if it is no dict, or if the file is missing or
    damaged.
    """
    with contextlib.suppress(RunError, OSError):
        content = printable(reader(*given))
        return content if isinstance(content, dict) else {}
    return {}


def flatten(node: object, prefix: str = "") -> dict[str, object]:
    """{dotted key: value} of a nested configuration. Whole floats become int, so that 1.0 and 1 are
    equal.
    """
    if not isinstance(node, dict):
        return {}
    flat: dict[str, object] = {}
    for key, value in node.items():
        if isinstance(value, dict) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = _whole_as_int(value)
    return flat


def _whole_as_int(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def differing(configs: Sequence[Mapping[str, object]]) -> dict[str, list[str]]:
    """{key: its value in each configuration, as text} for the keys that differ.

    A missing key of identity.FIELDS_ADDED_LATER counts as its default.
    """
    keys = dict.fromkeys(key for config in configs for key in config)
    found = {}
    for key in keys:
        default = _whole_as_int(FIELDS_ADDED_LATER.get(key, ABSENT))
        if len({text(config.get(key, default)) for config in configs}) > 1:
            found[key] = [text(config.get(key, ABSENT)) for config in configs]
    return found


def text(value: object) -> str:
    """Value of a configuration as a user would type it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def training_settings(origin: RunMetadata) -> dict[str, object]:
    """Settings in which two trainings are compared: the configuration without paths and
    evaluations, and the data fingerprint.
    """
    kept = {
        key: value
        for key, value in origin.config.items()
        if not under(key, NOT_TRAINING) and not key.endswith(f".{CHOICE}")
    }
    return {**kept, "data fingerprint": origin.fingerprint[:16] or ABSENT}


def variants(
    evaluations: "Iterable[Evaluation]", origins: Mapping[str, RunMetadata]
) -> tuple[dict[str, dict[str, str]], list[str]]:
    """({run_id: {key: words} that tell it from other trainings of its encoding}, all keys in which
    these trainings differ).

    The words are `setting_words` of `distinguishing_keys`. A key that is named at one training
    length, or with one set of the encoding's arguments, is named everywhere, so that one name means
    one way of training. If two of one seed have equal or unreadable configurations, the hash in
    their run_id is used, since nothing else is known to differ."""
    groups: dict[tuple, dict[str, int]] = defaultdict(dict)
    shared = ("data", "tokenizer", "trained_scale", "finetune")
    for evaluation in evaluations:
        row = {**evaluation.first, "finetune": run_prefix(evaluation.first["finetune"] or "")}
        encoding = closest_yaml("encoding", row["encoding"], row["encoding_args"])
        kind = (evaluation.source, encoding, *(text(row[name]) for name in shared))
        groups[kind, row["train_len"], text(row["encoding_args"])][row["run_id"]] = row["seed"]
    configs = [
        {one: origins[one].training for one in group if one in origins and origins[one].training}
        for group in groups.values()
    ]
    named: dict[tuple, dict[str, None]] = defaultdict(dict)
    keys: dict[str, None] = {}
    for (kind, *_), known in zip(groups, configs, strict=True):
        named[kind] |= dict.fromkeys(distinguishing_keys(list(known.values())))
        keys |= dict.fromkeys(differing(list(known.values())))
    words: dict[str, dict[str, str]] = {}
    for (kind, *_), group, known in zip(groups, groups.values(), configs, strict=True):
        words |= {
            run_id: setting_words(config, list(named[kind]))
            for run_id, config in known.items()
            if named[kind]
        }
        alike = Counter((*words.get(run_id, {}).values(), seed) for run_id, seed in group.items())
        if (
            max(alike.values()) > 1
        ):  # mark the whole group, since it is unknown which seeds belong together
            keys["run_id"] = None
            hashes = [run_id.rsplit("-", 1)[-1] for run_id in group]
            names = hashes if len(set(hashes)) == len(hashes) else list(group)
            words |= {
                run_id: {**words.get(run_id, {}), "run_id": f" run={name}"}
                for run_id, name in zip(group, names, strict=True)
            }
    return words, list(keys)


def distinguishing_keys(configs: Sequence[Mapping[str, object]]) -> dict[str, list[str]]:
    """{key: its value in each configuration, as text} for as few keys as tell the configurations
    apart.
    """
    kept: dict[str, list[str]] = {}
    for key, values in differing(configs).items():
        if len(set(zip(*kept.values(), values, strict=True))) > len(
            set(zip(*kept.values(), strict=True))
        ):
            kept[key] = values
    return kept


def setting_words(config: Mapping[str, object], keys: Sequence[str]) -> dict[str, str]:
    """{key: words such as " steps=1000"} of a configuration."""
    short = [key.rpartition(".")[2] for key in keys]
    names = short if len(set(short)) == len(short) else keys
    return {
        key: f" {name}={text(config.get(key, FIELDS_ADDED_LATER.get(key, ABSENT)))}"
        for key, name in zip(keys, names, strict=True)
    }


@dataclass(frozen=True, kw_only=True)
class Training:
    """Record of one training, with losses in nats/token. Fields that the directory does not give
    are empty.
    """

    run_id: str
    encoding: str | None = None  # display name as in the tables; older CSVs lack this column
    seed: int | None
    commit: str | None  # commit of the code, 40 hex digits
    changed: str | None  # hash of uncommitted changes, empty if there were none
    data_fingerprint: str | None
    weights_sha256: str | None
    parameters: int | None
    tokens: int | None
    loss: float | None  # mean over the last steps
    validation_loss: float | None
    end_slope: (
        float | None
    )  # nats/token per million further tokens, extrapolated from the last fifth
    started: str | None
    seconds: float | None
    device: str | None
    threads: int | None
    platform: str | None
    processor: str | None = None  # older CSVs lack this column
    python: str | None
    torch: str | None
    numpy: str | None
    tokenizers: str | None


def trainings(
    origins: Iterable[RunMetadata], names: Mapping[str, str] | None = None
) -> list[Training]:
    """Trainings of run directories, in their order. Unreadable fields stay empty. `names` is
    {run_id: display name of the encoding}.
    """
    made = []
    for origin in (origin for origin in origins if origin.config or origin.provenance):
        found = {**origin.provenance, **origin.versions, **origin.summary}
        found = {one.name: found.get(NOTED_AS.get(one.name, one.name)) for one in fields(Training)}
        name = origin.path.name
        made.append(
            Training(
                **{
                    **found,
                    "run_id": name,
                    "encoding": (names or {}).get(name),
                    "end_slope": end_slope(origin),
                }
            )
        )
    return made


def end_slope(origin: RunMetadata) -> float | None:
    """Slope of a line fitted through the last logged training losses, per million tokens."""
    if origin.end_slope is not None:
        return origin.end_slope
    import numpy as np

    try:
        lines = [
            (line["tokens"] / 1e6, line["loss"])
            for line in read_lines(Run(origin.path).train_log)
            if "loss" in line
        ]
        points = np.array(lines, dtype=float)
    except (ValueError, KeyError, TypeError):
        return None
    late = points[points[:, 0] >= (1 - SHARE) * points[-1, 0]] if len(points) else points
    return float(np.polyfit(*late.T, 1)[0]) if len(late) >= 3 and np.isfinite(late).all() else None
