"""Trainings behind the rows of a report: one record each, read from the run's directory."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

import numpy as np

from posbench.common.files import read_lines
from posbench.runs.directory import Run
from posbench.runs.run_metadata import RunMetadata

NOTED_AS = {"changed": "dirty_diff", "weights_sha256": "sha256", "parameters": "n_parameters"}  # in provenance and summary
SHARE = 0.2  # share of the steps, at the end, used for the slope


@dataclass(frozen=True, kw_only=True)
class Training:
    """Record of one training, with losses in nats/token. Fields that the directory does not give are empty."""

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
    end_slope: float | None  # nats/token per million further tokens, extrapolated from the last fifth
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


def trainings(origins: Iterable[RunMetadata], names: Mapping[str, str] | None = None) -> list[Training]:
    """Trainings of run directories, in their order. Unreadable fields stay empty. `names` is {run_id: display name of the encoding}."""
    return [_training_of(origin, names or {}) for origin in origins if origin.config or origin.provenance]


def _training_of(origin: RunMetadata, names: Mapping[str, str]) -> Training:
    found = {**origin.provenance, **origin.versions, **origin.summary}
    found = {one.name: found.get(NOTED_AS.get(one.name, one.name)) for one in fields(Training)}
    name = origin.path.name
    return Training(**{**found, "run_id": name, "encoding": names.get(name), "end_slope": end_slope(origin)})


def end_slope(origin: RunMetadata) -> float | None:
    """Slope of a line fitted through the last logged training losses, per million tokens."""
    if origin.end_slope is not None:
        return origin.end_slope
    try:
        lines = [(line["tokens"] / 1e6, line["loss"]) for line in read_lines(Run(origin.path).train_log) if "loss" in line]
        points = np.array(lines, dtype=float)
    except (ValueError, KeyError, TypeError):
        return None
    late = points[points[:, 0] >= (1 - SHARE) * points[-1, 0]] if len(points) else points
    return float(np.polyfit(*late.T, 1)[0]) if len(late) >= 3 and np.isfinite(late).all() else None
