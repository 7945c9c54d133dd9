"""Agreement within evidence: of rows with the sums of their targets, with documents, and with the
configuration of their training.

A list of hashes (posbench/results/hashes.py) notices every altered file, as long as it is there and
was not altered too. These checks need none."""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.config import identity
from posbench.results.evaluation import Evaluation, evaluation_faults
from posbench.results.run_metadata import RunMetadata
from posbench.runs.columns import SHARED
from posbench.runs.rows import SETTING, key, same_number
from posbench.statistics.crossed import Sums, estimate

# the protocol whose units are the texts of questions, several of which may be of one document
ASKED = "accuracy"
ENGINE = "engine"  # dtype of rows that an engine was asked for, which a setting does not know
NAMED_PLACES = (
    "path",
    "root",
    "id",
)  # keys whose values evidence holds without their folders, and ids with them


def repeated_rows(rows: Iterable[dict]) -> Iterator[str]:
    """A fault for each row that an earlier one has the key of."""
    known = set()
    for row in rows:
        if key(row) in known:
            yield f"{row_name(row)} occurs twice"
        known.add(key(row))


def row_faults(
    row: dict, nll: Sums | None, correct: Sums | None, tolerance: float = 1e-9
) -> Iterator[str]:
    """Faults of a row that is a mean over targets, given the sums by document of its nll and of its
    right answers.
    """
    if nll is None or correct is None:
        return
    for column, sums in (("nll", nll), ("accuracy", correct)):
        mean = float(sums.means[0])
        if (
            row[column] is not None
            and math.isfinite(mean)
            and not same_number(row[column], mean, tolerance)
        ):
            yield f"{column} of {row_name(row)} is {row[column]}, and its sums give {mean}"
    if row["protocol"] == ASKED:
        return
    if row["n_units"] != len(nll.documents):
        yield (
            f"n_units of {row_name(row)} is {row['n_units']}, and its sums are of"
            f" {len(nll.documents)} documents"
        )
    error = standard_error(nll)
    if math.isfinite(float(nll.means[0])) and not same_number(row["nll_sem"], error, 1e-6):
        yield f"nll_sem of {row_name(row)} is {row['nll_sem']}, and its sums give {error}"


def standard_error(sums: Sums) -> float | None:
    """Standard error of a mean over targets, clustered by document.

    None for one document, and for losses that are not all finite.
    """
    error = estimate([(1.0, sums)]).sem
    return error if math.isfinite(error) else None


def training_faults(origin: RunMetadata, expected: str) -> Iterator[str]:
    """A fault of the training of this id if that does not follow from its configuration. One
    without all of its configuration has none.
    """
    if not origin.whole or not origin.fingerprint:
        return
    try:
        run_id = identity.run_id(origin.nested, origin.fingerprint)
    except (ConfigError, KeyError, TypeError, AttributeError, ValueError) as error:
        yield f"the configuration of {expected} is damaged ({error!r})"
        return
    if run_id != expected:
        yield f"the configuration of {expected} is that of {run_id}"


def setting_faults(evaluation: Evaluation, origin: RunMetadata) -> Iterator[str]:
    """Faults of rows that say another thing of their training or setting than its configuration
    does, or than the others.
    """
    dtypes = {getattr(evaluation.setting, "dtype", None), ENGINE, None}
    expected = _of_training(origin.nested) if origin.whole else {}
    config = evaluation.config
    if isinstance(config.get("extension"), dict) and str(
        config["extension"].get("_target_", "")
    ).startswith(identity.OURS):
        expected |= {
            "protocol": config.get("protocol"),
            "extension": identity.method_name(config["extension"]),
            "extension_args": identity.method_args(config["extension"]),
        }
    for column in SHARED:
        if len(values := {row[column] for row in evaluation.rows}) > 1:
            yield (
                f"{column} of evaluation {evaluation.first['eval_id']} is"
                f" {' and '.join(sorted(map(str, values)))}"
            )
    for row in evaluation.rows:
        if row["depth"] is not None and row["task"] is None:
            yield f"depth of {row_name(row)} is {row['depth']}, and it has no task"
        for column, value in expected.items():
            if value is not None and _plain(column, row[column]) != _plain(column, value):
                yield (
                    f"{column} of {row_name(row)} is {row[column]}, and in its configuration"
                    f" {value}"
                )
        if None not in (evaluation.setting, row["dtype"]) and row["dtype"] not in dtypes:
            yield (
                f"dtype of {row_name(row)} is {row['dtype']}, and in its setting"
                f" {evaluation.setting.dtype}"
            )


def _of_training(config: Mapping) -> dict[str, object]:
    """{column: its value in every row} of a training's configuration, as far as it decides them."""
    length, parent = config["train"].get("length"), config["train"].get("parent")
    scale = config["train"].get("scale_attention") or identity.NO_SCALE
    found = {
        "seed": config.get("seed"),
        "train_len": max(length) if isinstance(length, list) and length else length,
        "finetune": (parent.get("run_id") if isinstance(parent, dict) else None) or "",
    }
    if str(scale.get("_target_", "")).startswith(identity.OURS):
        found["trained_scale"] = identity.method_label(scale, "scale_attention")
    if str(config["encoding"].get("_target_", "")).startswith(identity.OURS):
        found["encoding"] = identity.method_name(config["encoding"])
        found["encoding_args"] = identity.method_args(config["encoding"])
    return found


def _plain(column: str, value: object) -> object:
    """A value without what rows of earlier versions lack: no scale is none, and arguments at their
    default are left out.
    """
    if column == "trained_scale":
        return value or "none"
    if column == "finetune":
        return value or ""
    if column.endswith("_args"):
        return identity.canonical(
            identity.without_later(column.removesuffix("_args"), dict(value or {}))
        )
    return value


def document_faults(evaluations: Iterable[Evaluation]) -> Iterator[str]:
    """Faults of rows whose sums are not over the documents of their targets, or that have other
    bytes than these.

    The documents are those of the scored tokens, or of windows of equally many: then each row has
    so many times their counts."""
    for evaluation in evaluations:
        documents = {one.document: one for one in evaluation.stored.documents}
        if len(documents) < len(evaluation.stored.documents):
            yield f"a document of targets {evaluation.stored.targets} is listed twice"
        n_targets = sum(one.n_targets for one in documents.values())
        sizes = [one.n_bytes for one in documents.values()]
        for row in evaluation.rows:
            sums = evaluation.sums(row)
            if sums is None:
                continue
            counts = dict(zip(sums.documents.tolist(), sums.counts.tolist(), strict=True))
            if not counts.keys() <= documents.keys():
                yield f"{row_name(row)} has sums over documents that are not those of its targets"
                continue
            if row["protocol"] == ASKED:  # a part of a task is asked in some of the texts
                continue
            if any(
                counts.get(document, 0) * n_targets != row["n_targets"] * one.n_targets
                for document, one in documents.items()
            ):
                yield (
                    f"{row_name(row)} has other numbers of targets in its documents than they state"
                )
            elif (
                row["n_targets"] == n_targets and None not in sizes and row["n_bytes"] != sum(sizes)
            ):
                yield (
                    f"n_bytes of {row_name(row)} is {row['n_bytes']}, and its documents have"
                    f" {sum(sizes)}"
                )


def row_name(row: dict) -> str:
    """A row in words, such as "rope-64-s0-1a2b3c4d5e fixed_targets pi + none at length 128"."""
    place = "" if row["position"] is None else f", position {row['position']}"
    task = f" {row['task']}" if row["task"] else ""
    method = f"{row['extension']} + {row['scale_attention']}"
    return f"{row['run_id']} {row['protocol']}{task} {method} at length {row['length']}{place}"


def _names_a_place(config: Mapping) -> bool:
    """True if a part that makes the id names a place, which evidence holds without its folders."""
    if not all(isinstance(config.get(part), dict) for part in ("encoding", "model")):
        return False

    def named(node: object) -> bool:
        if isinstance(node, dict):
            return any(
                name in NAMED_PLACES and isinstance(item, str) or named(item)
                for name, item in node.items()
            )
        return isinstance(node, list) and any(map(named, node))

    parts = (
        config["encoding"],
        {key: value for key, value in config["model"].items() if key not in identity.NOT_MODEL},
    )
    return any(map(named, parts))


def evidence_faults(
    rows: Iterable[dict],
    evaluations: Iterable[Evaluation],
    origins: Mapping[Path, RunMetadata],
    tolerance: float,
) -> Iterator[str]:
    """Faults of a folder of evidence, in words; `rows` with their settings as the file has them."""
    settings = {
        key(row): row[SETTING] for row in rows if SETTING in row
    }  # files of earlier versions lack the column
    yield from repeated_rows(rows)
    for origin in origins.values():
        if not _names_a_place(origin.nested):
            yield from training_faults(origin, origin.path.name)
    for evaluation in evaluations:
        yield from evaluation_faults(evaluation)
        yield from setting_faults(evaluation, origins[evaluation.origin])
        for row in evaluation.rows:
            if settings.get(key(row), evaluation.words) != evaluation.words:
                yield (
                    f"setting of {row_name(row)} is {settings[key(row)]}, and that of its"
                    f" evaluation {evaluation.words}"
                )
            yield from row_faults(
                row, evaluation.sums(row), evaluation.sums(row, "correct"), tolerance
            )
    yield from document_faults(evaluations)
