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
from posbench.runs.columns import SHARED_COLUMNS
from posbench.runs.rows import SETTING, row_key, same_number
from posbench.runs.target_losses import Document
from posbench.statistics.crossed import Sums, estimate

# Protocol whose units are the texts of questions, several of which may be of one document.
QUESTIONS_PROTOCOL = "accuracy"
ENGINE_DTYPE = "engine"  # dtype of rows that an engine was asked for, which a setting does not know
# Keys whose values evidence holds without their folders, and ids with them.
PLACE_KEYS = ("path", "root", "id")


def repeated_rows(rows: Iterable[dict]) -> Iterator[str]:
    """A fault for each row that an earlier one has the key of."""
    earlier = set()
    for row in rows:
        if row_key(row) in earlier:
            yield f"{row_name(row)} occurs twice"
        earlier.add(row_key(row))


def row_faults(
    row: dict, nll: Sums | None, correct: Sums | None, tolerance: float = 1e-9
) -> Iterator[str]:
    """Faults of a row that is a mean over targets, given the sums by document of its nll and of its
    right answers. Of a row whose sums are not known (None) nothing can be said.
    """
    if nll is None or correct is None:
        return
    for column, sums in (("nll", nll), ("accuracy", correct)):
        mean = float(sums.means[0])
        comparable = row[column] is not None and math.isfinite(mean)
        if comparable and not same_number(row[column], mean, tolerance):
            yield f"{column} of {row_name(row)} is {row[column]}, and its sums give {mean}"
    # The units of questions are texts, of which a document may have several.
    if row["protocol"] == QUESTIONS_PROTOCOL:
        return
    if row["n_units"] != len(nll.documents):
        yield (
            f"n_units of {row_name(row)} is {row['n_units']}, and its sums are of"
            f" {len(nll.documents)} documents"
        )
    error = standard_error(nll)
    # 1e-6: it is made of differences of near numbers, of which fewer digits are right.
    if math.isfinite(float(nll.means[0])) and not same_number(row["nll_sem"], error, 1e-6):
        yield f"nll_sem of {row_name(row)} is {row['nll_sem']}, and its sums give {error}"


def standard_error(sums: Sums) -> float | None:
    """Standard error of a mean over targets, clustered by document.

    None for one document, and for losses that are not all finite.
    """
    error = estimate([(1.0, sums)]).sem
    return error if math.isfinite(error) else None


def training_faults(metadata: RunMetadata, expected: str) -> Iterator[str]:
    """A fault of the training of this id if that does not follow from its configuration and data.
    One that lacks a part of its configuration, or the fingerprint of its data, has none.
    """
    if not metadata.has_whole_config or not metadata.fingerprint:
        return
    try:
        run_id = identity.run_id(metadata.nested_config, metadata.fingerprint)
    except (ConfigError, KeyError, TypeError, AttributeError, ValueError) as error:
        yield f"the configuration of {expected} is damaged ({error!r})"
        return
    if run_id != expected:
        yield f"the configuration of {expected} is that of {run_id}"


def setting_faults(evaluation: Evaluation, metadata: RunMetadata) -> Iterator[str]:
    """Faults of rows that say another thing of their training or setting than its configuration
    does, or than the others.
    """
    for column in SHARED_COLUMNS:
        values = {row[column] for row in evaluation.rows}
        if len(values) > 1:
            yield (
                f"{column} of evaluation {evaluation.first['eval_id']} is"
                f" {' and '.join(sorted(map(str, values)))}"
            )
    expected = _columns_of_training(metadata.nested_config) if metadata.has_whole_config else {}
    expected |= _columns_of_evaluation(evaluation.config)
    for row in evaluation.rows:
        yield from _row_setting_faults(row, expected)
        yield from _dtype_faults(row, evaluation)


def _row_setting_faults(row: dict, expected: Mapping[str, object]) -> Iterator[str]:
    """Faults of a row whose columns are not the `expected` ones; None expects nothing."""
    if row["depth"] is not None and row["task"] is None:
        yield f"depth of {row_name(row)} is {row['depth']}, and it has no task"
    for column, value in expected.items():
        if value is None:
            continue
        # Older rows and configurations lack arguments that were added later.
        in_row = _without_older_gaps(column, row[column])
        if in_row != _without_older_gaps(column, value):
            yield f"{column} of {row_name(row)} is {row[column]}, and in its configuration {value}"


def _dtype_faults(row: dict, evaluation: Evaluation) -> Iterator[str]:
    """A fault of a row in another number format than its setting has, if both are known."""
    dtype = getattr(evaluation.setting, "dtype", None)  # words of a CSV have none
    if dtype is None or row["dtype"] is None:
        return
    # Rows of an engine do not say in which format it computed.
    if row["dtype"] not in (dtype, ENGINE_DTYPE):
        yield f"dtype of {row_name(row)} is {row['dtype']}, and in its setting {dtype}"


def _columns_of_training(config: Mapping) -> dict[str, object]:
    """{column: its value in every row} of a training's configuration, as far as it decides them.

    "": `finetune` of a training that is no fine-tuning, `step` of one that is no step of another.
    """
    length = config["train"].get("length")
    parent = config["train"].get("parent")
    scale = config["train"].get("scale_attention") or identity.NO_SCALE
    columns = {
        "seed": config.get("seed"),
        # A training on several lengths counts as one on the longest.
        "train_len": max(length) if isinstance(length, list) and length else length,
        "finetune": (parent.get("run_id") if isinstance(parent, dict) else None) or "",
        "step": config["train"].get("step") or "",
    }
    if _is_ours(scale):
        columns["trained_scale"] = identity.method_label(scale, "scale_attention")
    if _is_ours(config["encoding"]):
        columns["encoding"] = identity.method_name(config["encoding"])
        columns["encoding_args"] = identity.method_args(config["encoding"])
    return columns


def _columns_of_evaluation(config: Mapping) -> dict[str, object]:
    """{column: its value in every row} of an evaluation's configuration, if it is known.

    {} for an extension of somebody's own, too: its name depends on yamls that evidence lacks."""
    extension = config.get("extension")
    if not isinstance(extension, dict) or not _is_ours(extension):
        return {}
    return {
        "protocol": config.get("protocol"),
        "extension": identity.method_name(extension),
        "extension_args": identity.method_args(extension),
    }


def _is_ours(node: Mapping) -> bool:
    """True for a method of posbench, whose name does not depend on a user's yamls."""
    return str(node.get("_target_", "")).startswith(identity.POSBENCH_PREFIX)


def _without_older_gaps(column: str, value: object) -> object:
    """A value without what rows of earlier versions lack: no scale is none, and arguments at their
    default are left out.
    """
    if column == "trained_scale":
        return value or "none"
    if column in ("finetune", "step"):
        return value or ""
    if column.endswith("_args"):
        group = column.removesuffix("_args")
        return identity.canonical(identity.without_new_defaults(group, dict(value or {})))
    return value


def document_faults(evaluations: Iterable[Evaluation]) -> Iterator[str]:
    """Faults of rows whose sums are not over the documents of their targets, or that have other
    bytes than these.

    The documents are those of the scored tokens, or of windows of equally many: then each row has
    so many times their counts."""
    for evaluation in evaluations:
        stored = evaluation.stored
        documents = {document.document: document for document in stored.documents}
        if len(documents) < len(stored.documents):
            yield f"a document of targets {stored.targets} is listed twice"
        for row in evaluation.rows:
            sums = evaluation.sums(row)
            if sums is not None:
                yield from _row_document_faults(row, sums, documents)


def _row_document_faults(row: dict, sums: Sums, documents: Mapping[int, Document]) -> Iterator[str]:
    """Faults of a row with these sums over these documents {number: document}."""
    counts = dict(zip(sums.documents.tolist(), sums.counts.tolist(), strict=True))
    if not counts.keys() <= documents.keys():
        yield f"{row_name(row)} has sums over documents that are not those of its targets"
        return
    if row["protocol"] == QUESTIONS_PROTOCOL:  # a part of a task is asked in some of the texts
        return
    n_targets = sum(document.n_targets for document in documents.values())
    for number, document in documents.items():
        # A document's share of the targets is the same in the sums, compared in whole numbers.
        if counts.get(number, 0) * n_targets != row["n_targets"] * document.n_targets:
            yield f"{row_name(row)} has other numbers of targets in its documents than they state"
            return
    sizes = [document.n_bytes for document in documents.values()]
    # Only a row of exactly these targets has their bytes.
    if row["n_targets"] != n_targets or None in sizes:
        return
    if row["n_bytes"] != sum(sizes):
        yield (
            f"n_bytes of {row_name(row)} is {row['n_bytes']}, and its documents have {sum(sizes)}"
        )


def row_name(row: dict) -> str:
    """A row in words, such as "rope-64-s0-1a2b3c4d5e fixed_targets pi + none at length 128"."""
    place = "" if row["position"] is None else f", position {row['position']}"
    task = f" {row['task']}" if row["task"] else ""
    method = f"{row['extension']} + {row['scale_attention']}"
    return f"{row['run_id']} {row['protocol']}{task} {method} at length {row['length']}{place}"


def _names_a_place(config: Mapping) -> bool:
    """True if the hashed part of a configuration holds a path.

    Evidence stores only the file's name of it, so the id cannot be computed again."""
    encoding = config.get("encoding")
    model = config.get("model")
    if not isinstance(encoding, dict) or not isinstance(model, dict):
        return False
    hashed = {
        key: value for key, value in model.items() if key not in identity.MODEL_KEYS_NOT_HASHED
    }
    return _holds_a_place(encoding) or _holds_a_place(hashed)


def _holds_a_place(node: object) -> bool:
    """True if a key of PLACE_KEYS is set to text, at any depth."""
    if isinstance(node, list):
        return any(_holds_a_place(item) for item in node)
    if not isinstance(node, dict):
        return False
    if any(isinstance(node.get(key), str) for key in PLACE_KEYS):
        return True
    return any(_holds_a_place(value) for value in node.values())


def evidence_faults(
    rows: Iterable[dict],
    evaluations: Iterable[Evaluation],
    origins: Mapping[Path, RunMetadata],
    tolerance: float,
) -> Iterator[str]:
    """Faults of a folder of evidence, in words; `rows` with their settings as the file has them."""
    # Files of earlier versions lack the column.
    settings = {row_key(row): row[SETTING] for row in rows if SETTING in row}
    yield from repeated_rows(rows)
    for metadata in origins.values():
        # Evidence has no folders, so an id that was made of one cannot be made again.
        if not _names_a_place(metadata.nested_config):
            yield from training_faults(metadata, metadata.path.name)
    for evaluation in evaluations:
        yield from evaluation_faults(evaluation)
        yield from setting_faults(evaluation, origins[evaluation.origin])
        for row in evaluation.rows:
            setting = settings.get(row_key(row), evaluation.setting_in_words)
            if setting != evaluation.setting_in_words:
                yield (
                    f"setting of {row_name(row)} is {setting}, and that of its evaluation"
                    f" {evaluation.setting_in_words}"
                )
            correct = evaluation.sums(row, "correct")
            yield from row_faults(row, evaluation.sums(row), correct, tolerance)
    yield from document_faults(evaluations)
