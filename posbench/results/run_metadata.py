"""Metadata of runs, read as data: configuration, provenance, and the lines of trainings.csv.

A results folder may come from somebody else. Nothing in it is instantiated, resolved or imported,
and control characters are replaced."""

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from posbench.common.defuse import printable
from posbench.common.errors import RunError
from posbench.common.files import read_json, read_lines
from posbench.config.identity import (
    CHOICE_KEY,
    MODEL_KEYS_NOT_HASHED,
    TRAIN_KEYS_NOT_HASHED,
    text_name,
)
from posbench.runs.directory import Run

if TYPE_CHECKING:
    pass

# Keys of config.yaml that only describe the first command: paths and evaluations.
NOT_TRAINING = {
    "extension", "scale_attention", "evaluate", "log", "allow_untested", "check", "jobs",
    "results_dir", "cache_dir", "report_dir", "run", "runs", "out", "dry", "experiment", "hydra",
    "step", "name",
}  # fmt: skip
ABSENT_WORD = "(absent)"
# {field of Training: its key in provenance or summary}, where the names differ
NAME_IN_METADATA = {
    "changed": "dirty_diff",
    "weights_sha256": "sha256",
    "parameters": "n_parameters",
}
OWN_FILES = "local"  # yaml of configs/data that reads the user's own files
OWN_BOOKS = "books"  # that reads the user's own books
# Settings of a text of which a word tells more than a hash.
TEXT_SETTINGS = (
    *("data.tokenizer", "data.vocab_size", "data.bos", "data.mix.task", "data.mix.share"),
    *("data.source.pairs", "data.source.distinct", "data.source.reverse_answer"),
)
HASH_KEY = "data.hash"  # of the text, its tokenizer and BOS
SLOPE_SHARE = 0.2  # share of the steps, at the end, used for the slope
# Keys of the place of a checkpoint or of an engine, of which a server says a name alone.
PLACE_KEYS = ("model.path", "model.engine.path", "encoding.name")


@dataclass(frozen=True)
class RunMetadata:
    """Configuration (`nested_config`), provenance and summary of a run. Unreadable files give empty
    dicts.

    `end_slope` is known only where the log of the training is not: see
    posbench/results/evidence.py. `run_id` is the one that the rows of the run have; None: the name
    of its folder, which a user may have renamed."""

    path: Path
    nested_config: dict
    provenance: dict
    summary: dict = field(default_factory=dict)
    end_slope: float | None = None
    run_id: str | None = None

    @property
    def id(self) -> str:
        """Id of the training."""
        return self.run_id or self.path.name

    @cached_property
    def config(self) -> dict[str, object]:
        """{dotted key: value} of the configuration."""
        return flatten(self.nested_config)

    @property
    def has_whole_config(self) -> bool:
        """True if the configuration has all parts of a training's."""
        return all(
            isinstance(self.nested_config.get(part), dict)
            for part in ("encoding", "model", "train", "data")
        )

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the data: hex digits, or ""."""
        return str(self.provenance.get("data_fingerprint") or "")

    @property
    def versions(self) -> dict[str, object]:
        """{name: version} of Python and the libraries."""
        versions = self.provenance.get("versions")
        return versions if isinstance(versions, dict) else {}

    @property
    def training(self) -> dict[str, object]:
        """Settings that determine the weights, except encoding, trained scale and seed, which every
        row has; {} of a run whose configuration cannot be read.
        """
        # Rows have columns for the trained scale, and for the parent of a fine-tuned training.
        skipped = [
            *(f"train.{name}" for name in (*TRAIN_KEYS_NOT_HASHED, "scale_attention", "parent")),
            *(f"model.{name}" for name in MODEL_KEYS_NOT_HASHED),
        ]
        settings = {}
        for key, value in self.config.items():
            if key.startswith(("model.", "train.")) and not is_under(key, skipped):
                settings[key] = value
        if not settings:
            return {}
        if "model.checkpoint.sha256" in settings:
            # The name of its folder comes first, then its shape and content.
            sha256 = str(settings.pop("model.checkpoint.sha256"))
            settings = {"checkpoint": self._place_name(), **settings, "sha256": sha256[:10]}
        lengths = settings.get("train.length")  # [64] and 64 are the same training
        if isinstance(lengths, list) and len(lengths) == 1:
            settings["train.length"] = lengths[0]
        return {**settings, **self._text_settings()}

    def _text_settings(self) -> dict[str, object]:
        """Settings of the text: its name, then what may differ in texts of one name, its hash last.

        The hash also stands for the content of the user's own files."""
        data = self.nested_config.get("data")
        settings = {}
        if isinstance(data, dict):
            settings["data"] = self.text
            for key, value in self.config.items():
                if is_under(key, TEXT_SETTINGS):
                    settings[key] = value
        return {**settings, HASH_KEY: self.fingerprint[:10]}

    @property
    def text(self) -> str:
        """Name of the text, "" if unknown; of the user's own files, which may all be called local,
        theirs.
        """
        data = self.nested_config.get("data")
        if not isinstance(data, dict):
            return ""
        name = data.get("name")
        if data.get("path") and name in (None, OWN_FILES, OWN_BOOKS):
            name = text_name({"path": data["path"]})
        return str(name or "")

    def _place_name(self) -> str:
        """Name of the folder of a checkpoint, or of the model that an engine serves, else ""."""
        for key in PLACE_KEYS:
            if self.config.get(key):
                # A file in a wheel stands behind the wheel's name and a colon.
                return Path(str(self.config[key]).rpartition(":")[2]).name
        return ""


def is_under(key: str, names: Iterable[str]) -> bool:
    """True for one of the names or a key below it.

    >>> is_under("encoding.slope_scale", ["encoding"]), is_under("encodings", ["encoding"])
    (True, False)
    """
    return any(key == name or key.startswith(f"{name}.") for name in names)


def read_metadata(path: Path) -> RunMetadata:
    """Metadata of the run in `path`. Never fails: damaged and foreign files count as empty."""
    run = Run(path)
    return RunMetadata(
        path,
        read_or_empty(run.read_config),
        read_or_empty(read_json, run.provenance),
        read_or_empty(read_json, run.summary),
    )


def read_or_empty(reader: Callable[..., object], *arguments: object) -> dict:
    """Printable content that `reader` returns; {} if it is no dict, or if the file is missing or
    damaged.
    """
    with contextlib.suppress(RunError, OSError):
        content = printable(reader(*arguments))
        if isinstance(content, dict):
            return content
    return {}


def flatten(node: object, prefix: str = "") -> dict[str, object]:
    """{dotted key: value} of a nested configuration, {} of anything else. Whole floats become int,
    so that 1.0 and 1 are equal.
    >>> flatten({"train": {"steps": 100, "lr": 1.0}, "seed": 0})
    {'train.steps': 100, 'train.lr': 1, 'seed': 0}
    """
    if not isinstance(node, dict):
        return {}
    flat: dict[str, object] = {}
    for key, value in node.items():
        if isinstance(value, dict) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = whole_as_int(value)
    return flat


def whole_as_int(value: object) -> object:
    """The value, a whole float as an int."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def typed_text(value: object) -> str:
    """Value of a configuration as a user would type it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def training_settings(metadata: RunMetadata) -> dict[str, object]:
    """Settings in which two trainings are compared: the configuration without paths and
    evaluations, and the data fingerprint.
    """
    settings = {}
    for key, value in metadata.config.items():
        if not is_under(key, NOT_TRAINING) and not key.endswith(f".{CHOICE_KEY}"):
            settings[key] = value
    settings["data fingerprint"] = metadata.fingerprint[:16] or ABSENT_WORD
    return settings


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
    # nats/token per million further tokens, extrapolated from the last fifth
    end_slope: float | None
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


def training_records(
    runs: Iterable[RunMetadata], names: Mapping[str, str] | None = None
) -> list[Training]:
    """Trainings of run directories, in their order. Unreadable fields stay empty. `names` is
    {run_id: display name of the encoding}.
    """
    return [
        _training_record(metadata, (names or {}).get(metadata.id))
        for metadata in runs
        if metadata.config or metadata.provenance
    ]


def _training_record(metadata: RunMetadata, encoding: str | None) -> Training:
    """Training of a run; the metadata may note a column under another name (NAME_IN_METADATA)."""
    facts = {**metadata.provenance, **metadata.versions, **metadata.summary}
    values = {
        column.name: facts.get(NAME_IN_METADATA.get(column.name, column.name))
        for column in fields(Training)
    }
    values["run_id"] = metadata.id
    values["encoding"] = encoding
    values["end_slope"] = end_slope(metadata)
    return Training(**values)


def end_slope(metadata: RunMetadata) -> float | None:
    """Slope of a line fitted through the last logged training losses, per million tokens; None if
    the log is damaged, or has fewer than three of them.
    """
    if metadata.end_slope is not None:
        return metadata.end_slope
    import numpy as np

    try:
        points = np.array(
            [
                (line["tokens"] / 1e6, line["loss"])
                for line in read_lines(Run(metadata.path).train_log)
                if "loss" in line
            ],
            dtype=float,
        )
    except (ValueError, KeyError, TypeError):
        return None
    if not len(points):
        return None
    late = points[points[:, 0] >= (1 - SLOPE_SHARE) * points[-1, 0]]
    if len(late) < 3 or not np.isfinite(late).all():  # a line fits any two points
        return None
    return float(np.polyfit(*late.T, 1)[0])
