"""Evidence of a report: sums over documents for its rows, and configurations, small enough to
commit and pool.

Every interval, G and usable length follows from them, without the runs and without the losses of
single targets. In a report's folder:

rows.csv       the rows
sums.npz       an entry for each row and document, sorted: row (its number in rows.csv), document,
               n_targets, and the sums nll and correct
documents.csv  a line for each document of each set of targets (Document)
configs.jsonl  a line for each training, in each folder that it was evaluated in: run_id, config,
               provenance, summary, end_slope; evaluations: {eval_id: targets, setting, machines:
               {length: machine, if it is known}, guesses, if any, and config (protocol, version,
               extension, scale_attention, evaluate), of which eval_id is the hash, if it is known}
hashes.json    the SHA-256 of all files of the report (posbench/results/hashes.py)

Rows whose targets do not weigh alike, and rows of CSVs, have no entries.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath

import numpy as np

from posbench.common.csv_records import from_csv, to_csv
from posbench.common.defuse import printable
from posbench.common.errors import RunError
from posbench.common.files import nan_as_none, read_bytes, write_atomic
from posbench.results.bundle import shown_folder
from posbench.results.consistency import evidence_faults, training_faults
from posbench.results.evaluation import Evaluation, drop_duplicate_rows, evaluation_faults
from posbench.results.hashes import HASHES, MISSING, altered_files
from posbench.results.run_metadata import RunMetadata, end_slope, read_metadata
from posbench.results.search import CONFIGS, ROWS, SUMS
from posbench.runs.npz import read_npz, write_npz
from posbench.runs.rows import SETTING, read_csv
from posbench.runs.setting import Setting
from posbench.runs.target_losses import LOSS_ARRAYS, Document, Place, PooledLosses, part_of
from posbench.statistics.crossed import Sums

DOCUMENTS_CSV = "documents.csv"
SAME_MEAN = 1e-5  # part of a mean by which that of a row may differ from that of its sums
ENTRY_FIELDS = ("row", "document", "n_targets")
# {field of sums.npz: its type}
FIELD_DTYPES = {**dict.fromkeys(ENTRY_FIELDS, np.int64), "nll": np.float64, "correct": np.int64}
HASHED_KEYS = ("protocol", "version", "extension", "scale_attention", "evaluate")
PATH_KEYS = {  # keys of a configuration whose values are paths
    "path",
    "tokenizer",
    "cache_dir",
    "results_dir",
    "report_dir",
    "run",
    "runs",
    "key_run",
    "out",
}
PATH_KEYS |= {"root", "id"}  # and of what an engine says of itself
# An absolute path among the words of a command.
TYPED_PATH = re.compile(r"(?<![^\s='\"\[,:])/(?:[^\s/'\",\]]+/)*([^\s/'\",\]]+)/?")


def write_evidence(
    folder: Path, evaluations: Sequence[Evaluation], origins: Mapping[Path, RunMetadata]
) -> list[Path]:
    """Write the evidence of evaluations whose rows, in this order, are rows.csv of the folder;
    returns the files.
    """
    write_npz(folder / SUMS, _sums_entries(evaluations))
    with_losses = [
        evaluation
        for evaluation in evaluations
        if not evaluation.rows_alone and evaluation.stored.targets
    ]
    documents: dict[str, Sequence[Document]] = {}  # {targets: their documents}
    lines: dict[Path, str] = {}  # {run directory: its line of configs.jsonl}
    for evaluation in with_losses:
        documents[evaluation.stored.targets] = evaluation.stored.documents
        if evaluation.origin not in lines:
            lines[evaluation.origin] = _config_line(origins[evaluation.origin], with_losses)
    all_documents = [document for of_targets in documents.values() for document in of_targets]
    write_atomic(folder / DOCUMENTS_CSV, to_csv(all_documents, Document))
    write_atomic(folder / CONFIGS, "".join(lines.values()))
    return [folder / name for name in (SUMS, DOCUMENTS_CSV, CONFIGS)]


def _sums_entries(evaluations: Iterable[Evaluation]) -> dict[str, np.ndarray]:
    """{field of sums.npz: array [entries]}."""
    entries: dict[str, list[np.ndarray]] = {name: [] for name in (*ENTRY_FIELDS, *LOSS_ARRAYS)}
    number = -1  # of a row in rows.csv
    for evaluation in evaluations:
        for row in evaluation.rows:
            number += 1
            nll, correct = (evaluation.sums(row, name) for name in LOSS_ARRAYS)
            # A row that weighs its targets does not follow from their sums.
            if nll is None or correct is None or not is_mean(nll, row):
                continue
            entries["row"].append(np.full(len(nll.counts), number))
            entries["document"].append(nll.documents)
            entries["n_targets"].append(nll.counts)
            # [0]: sums of one evaluation have one column.
            entries["nll"].append(nll.totals[0])
            entries["correct"].append(correct.totals[0])
    return {
        # concatenate refuses an empty list
        name: np.concatenate(parts or [np.zeros(0)]).astype(FIELD_DTYPES[name])
        for name, parts in entries.items()
    }


def is_mean(sums: Sums, row: dict, column: str = "nll") -> bool:
    """True if a column of the row is the plain mean of all targets, or if that is not finite."""
    mean = float(sums.means[0])
    if not math.isfinite(mean):
        return True
    value = row[column]
    return value is not None and math.isclose(mean, value, rel_tol=SAME_MEAN, abs_tol=1e-7)


def without_folders(value: object, key: str | None = None) -> object:
    """A configuration without the folders of absolute paths: values of the keys in PATH_KEYS, or in
    lists there, and words of a command.

    >>> without_folders({"path": "/home/me/books", "command": "run.py out=/home/me/books seed=1"})
    {'path': 'books', 'command': 'run.py out=books seed=1'}
    """
    if key == "command":
        return TYPED_PATH.sub(r"\1", value) if isinstance(value, str) else value
    if isinstance(value, dict):
        return {name: without_folders(item, name) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(item, key) for item in value]
    if key in PATH_KEYS and isinstance(value, str) and PurePath(value).is_absolute():
        return PurePath(value).name
    return value


def provenance_record(metadata: RunMetadata) -> dict:
    """Parts of a run's metadata that do not depend on where its folder lies: run_id, config,
    provenance, summary.
    """
    parts = {
        "config": metadata.nested_config,
        "provenance": metadata.provenance,
        "summary": metadata.summary,
    }
    return {"run_id": metadata.id, **without_folders(parts)}


def _config_line(metadata: RunMetadata, evaluations: Iterable[Evaluation]) -> str:
    """Line of configs.jsonl of a run, with those of the evaluations that are of it."""
    facts: dict[str, dict] = {}  # {eval_id: what is known of the evaluation}
    for evaluation in evaluations:
        if evaluation.origin == metadata.path:
            of_evaluation = facts.setdefault(evaluation.first["eval_id"], _new_facts(evaluation))
            _add_facts(of_evaluation, evaluation)
    line = {
        **provenance_record(metadata),
        "end_slope": end_slope(metadata),
        "evaluations": facts,
    }
    return json.dumps(nan_as_none(line), sort_keys=True, default=str) + "\n"


def _new_facts(evaluation: Evaluation) -> dict:
    setting = evaluation.setting
    return {
        "targets": evaluation.stored.targets,
        "setting": setting.as_dict() if isinstance(setting, Setting) else None,
        "machines": {},
    }


def _add_facts(facts: dict, evaluation: Evaluation) -> None:
    """Add what differs between the lengths of an evaluation, which several files may hold, and the
    configuration, which is the same in all of them but may be lacking.
    """
    for row in evaluation.rows:
        length = str(row["length"])
        facts["machines"][length] = evaluation.machines.get(length)
    config = _hashed_config(evaluation)
    if config:
        facts["config"] = config
    if evaluation.guesses:
        facts["guesses"] = {**facts.get("guesses", {}), **evaluation.guesses}


def _hashed_config(evaluation: Evaluation) -> dict | None:
    """Configuration of an evaluation without the folders of paths; None if it is not known, or if
    its id does not follow from that.
    """
    config = without_folders(nan_as_none(evaluation.config))
    config = {name: config[name] for name in HASHED_KEYS if name in config}
    if len(config) < len(HASHED_KEYS) or any(evaluation_faults(replace(evaluation, config=config))):
        return None
    return config


def notes_on_altered_files(folder: Path) -> list[str]:
    """Notes on files of a report that are others than it wrote. Raises RunError if one of the
    evidence is, or is missing.
    """
    altered = altered_files(folder)
    where = shown_folder(folder)
    for name in (ROWS, SUMS, DOCUMENTS_CSV, CONFIGS):
        if name in altered:
            raise RunError(
                f"{where}/{name} {altered[name]}, so it was changed after the report was written:"
                f" restore it, make the report again, or delete {HASHES} to read what nothing"
                " vouches for."
            )
    # A committed folder lacks some files on purpose.
    changed = [name for name, fault in altered.items() if fault != MISSING]
    if not changed:
        return []
    return [f"{where}: changed after the report was written: {', '.join(changed)}."]


@dataclass
class _Trainings:
    """Lines of configs.jsonl: `origins` as of `read_evidence`, the facts of the evaluations of each
    origin, and the first origin that names an evaluation, at a length or (None) at all.
    """

    origins: dict[Path, RunMetadata] = field(default_factory=dict)
    facts: dict[Path, dict[str, dict]] = field(default_factory=dict)
    places: dict[tuple[str, str, str | None], Path] = field(default_factory=dict)

    def add(self, path: Path, line: dict) -> None:
        """Add the line of a run in `path`."""
        self.origins[path] = RunMetadata(
            path,
            dict(line["config"]),
            dict(line["provenance"]),
            dict(line["summary"]),
            line["end_slope"],
        )
        self.facts[path] = line["evaluations"]
        for eval_id, facts in line["evaluations"].items():
            measured_lengths = facts["machines"]  # {length: machine}
            # None: the evaluation as a whole. The first of several lines that have it counts.
            for length in (*measured_lengths, None):
                self.places.setdefault((line["run_id"], eval_id, length), path)

    def origin_of(self, row: dict) -> Path | None:
        """Origin of a row, that of its length first; None without any."""
        evaluation = row["run_id"], row["eval_id"]
        of_length = self.places.get((*evaluation, str(row["length"])))
        return of_length or self.places.get((*evaluation, None))


def read_evidence(folder: Path) -> tuple[list[Evaluation], dict[Path, RunMetadata], list[str]]:
    """Evaluations of a folder of evidence, the origins of their trainings by `Evaluation.origin`,
    and a note on rows without evidence.

    These rows are left out; another note names files of the report that are not those that it
    wrote. An origin is FOLDER/RUN for the first line of a training, FOLDER/NUMBER/RUN for those of
    other folders that it was evaluated in. Raises RunError for damaged and altered files."""
    notes = notes_on_altered_files(folder)
    where = shown_folder(folder)
    rows = read_csv(folder / ROWS)
    try:
        trainings = _read_trainings(folder)
        evaluations = list(_read_evaluations(folder, rows, trainings))
        fault = next(evidence_faults(rows, evaluations, trainings.origins, SAME_MEAN), None)
    except RunError:
        raise
    except Exception as error:  # json, numpy and strange values raise a dozen kinds of errors
        again = f"recreate it with scripts/report.py, or leave {where} out"
        raise RunError(f"The evidence in {where} is damaged ({error!r}): {again}.") from error
    if fault:
        again = f"restore its files, make the report again, or leave {where} out"
        raise RunError(f"The evidence in {where} does not hold together ({fault}): {again}.")
    n_without = len(rows) - sum(len(evaluation.rows) for evaluation in evaluations)
    if n_without:
        notes.append(
            f"{where}: {n_without} of {len(rows)} rows have no sums over documents and are left"
            f" out; name {where}/{ROWS} for their means."
        )
    return evaluations, trainings.origins, notes


def _read_trainings(folder: Path) -> _Trainings:
    """Trainings of configs.jsonl; a further line of one run has its number in its path."""
    trainings = _Trainings()
    for number, text in enumerate(read_bytes(folder / CONFIGS).decode().splitlines()):
        line = printable(json.loads(text))
        path = folder / line["run_id"]
        if path in trainings.origins:
            path = folder / str(number) / line["run_id"]
        trainings.add(path, line)
    return trainings


def _read_evaluations(
    folder: Path, rows: Sequence[dict], trainings: _Trainings
) -> Iterator[Evaluation]:
    """Yield the evaluations of the rows that a line of configs.jsonl names."""
    numbers: dict[tuple[Path, str], list[int]] = {}  # {(origin, eval_id): numbers of its rows}
    for number, row in enumerate(rows):
        origin = trainings.origin_of(row)
        if origin:
            numbers.setdefault((origin, row["eval_id"]), []).append(number)
    sums = _stored_sums(folder / SUMS, rows)
    documents: dict[str, list[Document]] = {}  # {targets: their documents}
    for document in from_csv(
        folder / DOCUMENTS_CSV, Document, "a CSV of documents", "scripts/report.py"
    ):
        documents.setdefault(document.targets, []).append(document)
    for (origin, eval_id), of_evaluation in numbers.items():
        facts = trainings.facts[origin][eval_id]
        targets = facts["targets"]
        sums_by_place = {}
        for number in of_evaluation:
            sums_by_place |= sums.get(number, {})
        eval_rows = [_without_setting(rows[number]) for number in of_evaluation]
        yield Evaluation(
            eval_rows,
            origin / "evals" / eval_rows[0]["protocol"] / f"{eval_id}.json",
            facts["setting"] and Setting.of(facts["setting"]),
            PooledLosses(folder / SUMS, sums_by_place, targets, documents.get(targets, [])),
            machines=dict(facts.get("machines") or {}),
            guesses=dict(facts.get("guesses") or {}),
            config=dict(facts.get("config") or {}),
        )


def _without_setting(row: dict) -> dict:
    return {name: value for name, value in row.items() if name != SETTING}


def _stored_sums(path: Path, rows: Sequence[dict]) -> dict[int, dict[Place, Sums]]:
    """{row number: {place: Sums}}. Raises ValueError for entries that do not fit the rows."""
    stored = read_npz(path)
    row_E, document_E, count_E = (stored[name] for name in ENTRY_FIELDS)
    if len({array.shape for array in stored.values()}) > 1:
        raise ValueError("its arrays do not fit together")
    sums_by_row = {}
    for number in np.unique(row_E).tolist():
        low, high = np.searchsorted(row_E, [number, number + 1])
        row = rows[number]
        documents = document_E[low:high]
        counts = count_E[low:high]
        fits = (
            counts.min() >= 1
            and counts.sum() == row["n_targets"]
            and (np.diff(documents) > 0).all()
        )
        if not fits:
            raise ValueError(f"row {number} has {row['n_targets']} targets, and its entries others")
        sums_by_row[number] = {}
        for name in LOSS_ARRAYS:
            place = Place(name, row["length"], row["position"], part_of(row))
            totals = stored[name][None, low:high].astype(np.float64)  # [one column, documents]
            sums_by_row[number][place] = Sums(documents, counts, totals)
    return sums_by_row


def pooled_evaluations(
    evaluations: Sequence[Evaluation],
    folders: Iterable[Path],
    further: Callable[[list[Evaluation]], Iterable[Evaluation]] = lambda _: (),
) -> tuple[list[Evaluation], dict[Path, RunMetadata], list[str]]:
    """(evaluations and those of folders of evidence, each row once; the origins of all; notes on
    rows that repeat).

    `further(evaluations)` returns further evaluations, those of CSVs. They come last, so that the
    sums of a repeated row are kept rather than its mean. Evidence of a run directory that is itself
    here, or in an earlier folder of evidence, gets the same origin.

    Raises RunError if one training has two different weights, even if its rows repeat, since their
    losses cannot be paired, and for a run directory whose config.yaml is that of another training.
    """
    pooled = list(evaluations)
    of_evidence: dict[Path, RunMetadata] = {}
    notes = []
    for folder in folders:
        folder_evaluations, folder_origins, folder_notes = read_evidence(folder)
        pooled += folder_evaluations
        of_evidence |= folder_origins
        notes += folder_notes
    pooled += further(pooled)
    distinct, repeats = drop_duplicate_rows(pooled)
    origins: dict[Path, RunMetadata] = {}
    for evaluation in pooled:
        path = evaluation.origin
        if path not in origins:
            origins[path] = of_evidence.get(path) or _metadata_of(evaluation)
    _check_trainings(evaluations, origins)  # of run directories; evidence is checked when read
    _check_weights(origins)
    distinct = _with_common_origins(distinct, origins)
    used = dict.fromkeys(evaluation.origin for evaluation in distinct)
    return distinct, {path: origins[path] for path in used}, notes + repeats


def _metadata_of(evaluation: Evaluation) -> RunMetadata:
    """Metadata of the run directory of an evaluation, whose name may be another than its id."""
    metadata = read_metadata(evaluation.origin)
    if evaluation.rows_alone:  # a CSV is no run
        return metadata
    return replace(metadata, run_id=evaluation.first["run_id"])


def _check_weights(origins: Mapping[Path, RunMetadata]) -> None:
    """Raise RunError for a training that has different weights in two folders."""
    weights: dict[str, tuple[str, Path]] = {}  # {run_id: (hash, the first folder with it)}
    for path, metadata in origins.items():
        sha256 = str(metadata.summary.get("sha256") or "")
        if not sha256:
            continue
        first_sha256, first_path = weights.setdefault(metadata.id, (sha256, path))
        if first_sha256 != sha256:
            raise RunError(
                f"{first_path} and {path} are the same training with different weights"
                f" ({first_sha256[:10]} and {sha256[:10]}), not two seeds, so their evaluations"
                " cannot be paired: leave one of them out."
            )


def _with_common_origins(
    evaluations: Iterable[Evaluation], origins: Mapping[Path, RunMetadata]
) -> list[Evaluation]:
    """Evaluations, those of evidence in the first origin that has the same record as theirs.

    An origin follows from `path`. Others keep theirs, which is a file on this machine.
    """
    first: dict[str, Path] = {}  # {record of a training: the first origin that has it}
    common: dict[Path, Path] = {}
    for path, metadata in origins.items():
        record = json.dumps(nan_as_none(provenance_record(metadata)), sort_keys=True, default=str)
        common[path] = first.setdefault(record, path)
    moved = []
    for evaluation in evaluations:
        if isinstance(evaluation.stored, PooledLosses):  # of evidence, whose path names no file
            within = evaluation.path.relative_to(evaluation.origin)
            evaluation = replace(evaluation, path=common[evaluation.origin] / within)
        moved.append(evaluation)
    return moved


def _check_trainings(
    evaluations: Iterable[Evaluation], origins: Mapping[Path, RunMetadata]
) -> None:
    """Raise RunError for a run directory whose config.yaml does not give the id that its rows
    have.
    """
    run_ids = {}
    for evaluation in evaluations:
        if not evaluation.rows_alone:
            run_ids[evaluation.origin] = evaluation.first["run_id"]
    for path, run_id in run_ids.items():
        fault = next(training_faults(origins[path], run_id), None)
        if fault:
            raise RunError(
                f"{path}/config.yaml was changed after the training ({fault}): restore it, or leave"
                " this run out."
            )
