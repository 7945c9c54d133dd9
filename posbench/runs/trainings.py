"""Trainings behind the rows of a report: one record each, read from the run's directory."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from posbench.common.files import read_lines
from posbench.runs.directory import Run
from posbench.runs.run_metadata import RunMetadata

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
    said, summary = origin.provenance, origin.summary
    return Training(
        run_id=origin.path.name,
        encoding=names.get(origin.path.name),
        changed=said.get("dirty_diff"),
        weights_sha256=summary.get("sha256"),
        parameters=said.get("n_parameters"),
        end_slope=end_slope(origin),
        **{name: said.get(name) for name in ("seed", "commit", "data_fingerprint", "started")},
        **{name: said.get(name) for name in ("device", "threads", "platform", "processor")},
        **{name: summary.get(name) for name in ("tokens", "loss", "validation_loss", "seconds")},
        **{name: origin.versions.get(name) for name in ("python", "torch", "numpy", "tokenizers")},
    )


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
