"""Evidence of a report: sums over documents for its rows, and configurations, small enough to
commit and pool.

Every interval, G and usable length follows from them, without the runs and without the losses of
single targets. In a report's folder:

rows.csv       the rows
sums.npz       an entry for each row and document, sorted: row (its number in rows.csv), document, n_targets, and the sums nll and correct
documents.csv  a line for each document of each set of targets (Document)
configs.jsonl  a line for each training, in each folder that it was evaluated in: run_id, config, provenance, summary, end_slope;
               evaluations: {eval_id: targets, setting, machines: {length: machine, if it is known},
               guesses, if any, and config (protocol, version, extension, scale_attention,
               evaluate), of which eval_id is the hash, if it is known}
hashes.json    the SHA-256 of all files of the report (posbench/results/hashes.py)

Rows whose targets do not weigh alike, and rows of CSVs, have no entries.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath

import numpy as np

from posbench.common.csv_records import from_csv, to_csv
from posbench.common.defuse import printable
from posbench.common.errors import RunError
from posbench.common.files import atomic_path, finite, read_bytes, write_atomic
from posbench.results.bundle import shown_folder
from posbench.results.consistency import evidence_faults, training_faults
from posbench.results.evaluation import Evaluation, drop_duplicate_rows, evaluation_faults
from posbench.results.hashes import HASHES, MISSING, altered_files
from posbench.results.run_metadata import RunMetadata, end_slope, read_metadata
from posbench.results.search import CONFIGS, ROWS, SUMS
from posbench.runs.rows import read_csv
from posbench.runs.setting import Setting
from posbench.runs.target_losses import NAMES, Document, Place, PooledLosses, part_of, read_npz
from posbench.statistics.crossed import Sums

DOCUMENTS = "documents.csv"
SAME_MEAN = 1e-5  # part of a mean by which that of a row may differ from that of its sums
ENTRY = ("row", "document", "n_targets")
PATHS = {
    "path",
    "tokenizer",
    "cache_dir",
    "results_dir",
    "report_dir",
    "run",
    "runs",
    "key_run",
    "out",
}  # keys of a configuration
PATHS |= {"root", "id"}  # and of what an engine says of itself
TYPED = re.compile(
    r"(?<![^\s='\"\[,:])/(?:[^\s/'\",\]]+/)*([^\s/'\",\]]+)/?"
)  # an absolute path among the words of a command


def write_evidence(
    folder: Path, evaluations: Sequence[Evaluation], origins: Mapping[Path, RunMetadata]
) -> list[Path]:
    """Write the evidence of evaluations whose rows, in this order, are rows.csv of the folder;
    returns the files.
    """
    entries: dict[str, list] = {name: [] for name in (*ENTRY, *NAMES)}
    numbered = enumerate((evaluation, row) for evaluation in evaluations for row in evaluation.rows)
    for number, (evaluation, row) in numbered:
        found = [evaluation.sums(row, name) for name in NAMES]
        if None in found or not is_mean(found[0], row):
            continue
        documents, counts = found[0].documents, found[0].counts
        for name, values in zip(
            entries,
            (np.full(len(counts), number), documents, counts, *(one.totals[0] for one in found)),
            strict=True,
        ):
            entries[name].append(values)
    arrays = {
        name: np.concatenate(parts) if parts else np.zeros(0) for name, parts in entries.items()
    }
    kinds = {**dict.fromkeys(ENTRY, np.int64), "nll": np.float64, "correct": np.int64}
    with atomic_path(folder / SUMS) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(
            file, **{name: array.astype(kinds[name]) for name, array in arrays.items()}
        )
    own = [
        evaluation
        for evaluation in evaluations
        if not evaluation.rows_alone and evaluation.stored.targets
    ]
    sets = {evaluation.stored.targets: evaluation.stored.documents for evaluation in own}
    write_atomic(
        folder / DOCUMENTS,
        to_csv((one for documents in sets.values() for one in documents), Document),
    )
    write_atomic(
        folder / CONFIGS,
        "".join(
            _config_line(origins[path], own) for path in dict.fromkeys(one.origin for one in own)
        ),
    )
    return [folder / name for name in (SUMS, DOCUMENTS, CONFIGS)]


def is_mean(found: Sums, row: dict) -> bool:
    """True if the row is the plain mean of all targets, or if that is not finite."""
    mean = float(found.means[0])
    return (
        not math.isfinite(mean)
        or row["nll"] is not None
        and math.isclose(mean, row["nll"], rel_tol=SAME_MEAN, abs_tol=1e-7)
    )


def portable(value: object, key: str | None = None) -> object:
    """A configuration without the folders of absolute paths: values of the keys in PATHS, or in
    lists there, and words of a command.
    """
    if key == "command":
        return TYPED.sub(r"\1", value) if isinstance(value, str) else value
    if isinstance(value, dict):
        return {name: portable(item, name) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [portable(item, key) for item in value]
    return (
        PurePath(value).name
        if key in PATHS and isinstance(value, str) and PurePath(value).is_absolute()
        else value
    )


def provenance_record(origin: RunMetadata) -> dict:
    """Parts of an origin that do not depend on where its folder lies: run_id, config, provenance,
    summary.
    """
    parts = {"config": origin.nested, "provenance": origin.provenance, "summary": origin.summary}
    return {"run_id": origin.path.name, **portable(parts)}


def _config_line(origin: RunMetadata, evaluations: Iterable[Evaluation]) -> str:
    own: dict[str, dict] = {}
    for one in evaluations:
        if one.origin == origin.path:
            setting = one.setting.as_dict() if isinstance(one.setting, Setting) else None
            known = own.setdefault(
                one.first["eval_id"],
                {"targets": one.stored.targets, "setting": setting, "machines": {}},
            )
            known["machines"] |= {
                length: one.machines.get(length)
                for length in (str(row["length"]) for row in one.rows)
            }
            if config := _hashed_config(one):
                known["config"] = config
            if one.guesses:
                known["guesses"] = {**known.get("guesses", {}), **one.guesses}
    parts = {**provenance_record(origin), "end_slope": end_slope(origin), "evaluations": own}
    return json.dumps(finite(parts), sort_keys=True, default=str) + "\n"


def _hashed_config(evaluation: Evaluation) -> dict | None:
    """Configuration of an evaluation without the folders of paths; None if it is not known, or if
    its id does not follow from that.
    """
    config = portable(finite(evaluation.config))
    names = ("protocol", "version", "extension", "scale_attention", "evaluate")
    config = {name: config[name] for name in names if name in config}
    follows = len(config) == len(names) and not any(
        evaluation_faults(replace(evaluation, config=config))
    )
    return config if follows else None


def check_folder(folder: Path) -> list[str]:
    """Notes on files of a report that are others than it wrote. Raises RunError if one of the
    evidence is, or is missing.
    """
    altered = altered_files(folder)
    where = shown_folder(folder)
    for name in (ROWS, SUMS, DOCUMENTS, CONFIGS):
        if name in altered:
            raise RunError(
                f"{where}/{name} {altered[name]}, so it was changed after the report was written:"
                f" restore it, make the report again, or delete {HASHES} to read what nothing"
                " vouches for."
            )
    changed = [name for name, fault in altered.items() if fault != MISSING]
    return (
        [f"{where}: changed after the report was written: {', '.join(changed)}."] if changed else []
    )


def read_evidence(folder: Path) -> tuple[list[Evaluation], dict[Path, RunMetadata], list[str]]:
    """Evaluations of a folder of evidence, the origins of their trainings by `Evaluation.origin`,
    and a note on rows without evidence.

    These rows are left out; another note names files of the report that are not those that it
    wrote. An origin is FOLDER/RUN for the first line of a training, FOLDER/NUMBER/RUN for those of
    other folders that it was evaluated in. Raises RunError for damaged and altered files."""
    notes = check_folder(folder)
    where, rows = shown_folder(folder), read_csv(folder / ROWS)
    origins: dict[Path, RunMetadata] = {}
    listed: dict[Path, dict] = {}  # the evaluations of each
    places: dict[
        tuple[str, str, str | None], Path
    ] = {}  # (run_id, eval_id, length) -> the first origin that names it
    apart: dict[tuple[Path, str], list[int]] = {}
    try:
        for number, text in enumerate(read_bytes(folder / CONFIGS).decode().splitlines()):
            line = printable(json.loads(text))
            path = folder / line["run_id"]
            path = folder / str(number) / line["run_id"] if path in origins else path
            origins[path] = RunMetadata(
                path,
                dict(line["config"]),
                dict(line["provenance"]),
                dict(line["summary"]),
                line["end_slope"],
            )
            listed[path] = line["evaluations"]
            for name, one in line["evaluations"].items():
                for length in (*one["machines"], None):
                    places.setdefault((line["run_id"], name, length), path)
        for number, row in enumerate(rows):
            known = row["run_id"], row["eval_id"]
            if path := places.get((*known, str(row["length"]))) or places.get((*known, None)):
                apart.setdefault((path, row["eval_id"]), []).append(number)
        sums, documents = _stored_sums(folder / SUMS, rows), {}
        for one in from_csv(
            folder / DOCUMENTS, Document, "a CSV of documents", "scripts/report.py"
        ):
            documents.setdefault(one.targets, []).append(one)
        found = []
        for (run, name), numbers in apart.items():
            one, own = (
                listed[run][name],
                {key: value for number in numbers for key, value in sums.get(number, {}).items()},
            )
            setting = one["setting"] and Setting.of(one["setting"])
            losses = PooledLosses(
                folder / SUMS, own, one["targets"], documents.get(one["targets"], [])
            )
            path = run / "evals" / rows[numbers[0]]["protocol"] / f"{name}.json"
            stripped = [
                {key: value for key, value in rows[number].items() if key != "setting"}
                for number in numbers
            ]
            facts = {fact: dict(one.get(fact) or {}) for fact in ("machines", "guesses", "config")}
            found.append(Evaluation(stripped, path, setting, losses, **facts))
        fault = next(evidence_faults(rows, found, origins, SAME_MEAN), None)
    except RunError:
        raise
    except (
        Exception
    ) as error:  # zipfile, zlib, json and numpy raise a dozen kinds of errors for damage
        again = f"recreate it with scripts/report.py, or leave {where} out"
        raise RunError(f"The evidence in {where} is damaged ({error!r}): {again}.") from error
    if fault:
        again = f"restore its files, make the report again, or leave {where} out"
        raise RunError(f"The evidence in {where} does not hold together ({fault}): {again}.")
    left = len(rows) - sum(len(one.rows) for one in found)
    note = (
        f"{where}: {left} of {len(rows)} rows have no sums over documents and are left out; name"
        f" {where}/{ROWS} for their means."
    )
    return found, origins, [*notes, *([note] if left else [])]


def _stored_sums(path: Path, rows: Sequence[dict]) -> dict[int, dict[Place, Sums]]:
    """{row number: {(name, length, position, part): Sums}}. Raises ValueError for entries that do
    not fit the rows.
    """
    stored = read_npz(path)
    row_E, document_E, count_E = (stored[name] for name in ENTRY)
    if len({array.shape for array in stored.values()}) > 1:
        raise ValueError("its arrays do not fit together")
    found = {}
    for number in np.unique(row_E).tolist():
        low, high = np.searchsorted(row_E, [number, number + 1])
        row, counts = rows[number], count_E[low:high]
        if (
            counts.min() < 1
            or counts.sum() != row["n_targets"]
            or (np.diff(document_E[low:high]) <= 0).any()
        ):
            raise ValueError(f"row {number} has {row['n_targets']} targets, and its entries others")
        parts = {
            name: Sums(
                document_E[low:high], counts, stored[name][None, low:high].astype(np.float64)
            )
            for name in NAMES
        }
        found[number] = {
            (name, row["length"], row["position"], part_of(row)): one for name, one in parts.items()
        }
    return found


def pool(
    evaluations: Sequence[Evaluation],
    folders: Iterable[Path],
    beside: Callable[[list[Evaluation]], Iterable[Evaluation]] = lambda _: (),
) -> tuple[list[Evaluation], dict[Path, RunMetadata], list[str]]:
    """(evaluations and those of folders of evidence, each row once; the origins of all; notes on
    rows that repeat).

    `beside(evaluations)` returns further evaluations, those of CSVs. They come last, so that the
    sums of a repeated row are kept rather than its mean. Evidence of a run directory that is itself
    here, or in an earlier folder of evidence, gets the same origin.

    Raises RunError if one training has two different weights, even if its rows repeat, since their
    losses cannot be paired, and for a run directory whose config.yaml is that of another training.
    """
    pooled, origins, left_out = list(evaluations), {}, []
    for folder in folders:
        found, known, note = read_evidence(folder)
        pooled += found
        origins |= known
        left_out += note
    pooled += beside(pooled)
    kept, notes = drop_duplicate_rows(pooled)
    origins = {
        path: origins.get(path) or read_metadata(path)
        for path in dict.fromkeys(one.origin for one in pooled)
    }
    _check_trainings(evaluations, origins)
    weights: dict[str, tuple[str, Path]] = {}
    for path, origin in origins.items():
        sha256 = str(origin.summary.get("sha256") or "")
        known, other = weights.setdefault(path.name, (sha256, path)) if sha256 else (sha256, path)
        if known != sha256:
            raise RunError(
                f"{other} and {path} are the same training with different weights ({known[:10]} and"
                f" {sha256[:10]}), not two seeds, so their evaluations cannot be paired: leave one"
                " of them out."
            )
    first: dict[str, Path] = {}
    same = {
        path: first.setdefault(
            json.dumps(finite(provenance_record(origin)), sort_keys=True, default=str), path
        )
        for path, origin in origins.items()
    }
    for number, one in enumerate(kept):
        if isinstance(one.stored, PooledLosses):
            kept[number] = replace(one, path=same[one.origin] / one.path.relative_to(one.origin))
    return (
        kept,
        {path: origins[path] for path in dict.fromkeys(one.origin for one in kept)},
        left_out + notes,
    )


def _check_trainings(
    evaluations: Iterable[Evaluation], origins: Mapping[Path, RunMetadata]
) -> None:
    """Raise RunError for a run directory whose config.yaml does not give the id that its rows
    have.
    """
    run_ids = {
        evaluation.origin: evaluation.first["run_id"]
        for evaluation in evaluations
        if not evaluation.rows_alone
    }
    for path, run_id in run_ids.items():
        if fault := next(training_faults(origins[path], run_id), None):
            raise RunError(
                f"{path}/config.yaml was changed after the training ({fault}): restore it, or leave"
                " this run out."
            )
