"""Search for the evaluations of a claim's cells on disk, read as sums over documents.

Nothing in a results folder is executed.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from posbench.common.errors import RunError
from posbench.config.identity import FIELDS_ADDED_LATER
from posbench.config.names import shipped_yamls
from posbench.config.schema import TrainConfig
from posbench.report.labels import with_trained_part_as_extension
from posbench.report.references import References, check_losses, check_targets_of_sections
from posbench.results.evaluation import Evaluation, load_evaluation
from posbench.results.evidence import pooled_evaluations
from posbench.results.run_metadata import ABSENT_WORD, RunMetadata, flatten
from posbench.statistics.crossed import Sums, estimate, joined_seeds
from posbench.tools.claims.language import ClaimCell

# Required of a training's configuration unless a cell names another value. So is train.length, one
# number: the row's train_len, or the usual one where trainings of several lengths are there.
PLAIN_TRAINING = {"model.qk_norm": "none", "model.output_gate": "none", "data.mix.task": None}
USUAL_TEXT = "pysource"  # of configs/run.yaml
USUAL_TRAIN_LEN = TrainConfig.length
# Claims are about the text of the training, all of its test documents, with intervals over
# documents.
PLAIN_SETTING = {"text": None, "unit": "document", "split": "test", "documents": None}
# Protocols that read G: the first of them that was evaluated.
GAIN_PROTOCOLS = ("fixed_targets", "tiled_targets")
# Arguments of an encoding that only a child has: its parent's encoding, and how far it reaches.
CHILD_ARGUMENTS = {"base", "max_len"}


class MissingEvaluation(Exception):
    """A claim's cell was not measured. The message names the evaluation that is missing."""


@dataclass
class Pool:
    """Evaluations to judge claims by, and `origins`: the metadata of their runs.

    `defaults` are {(group, method): arguments in configs/} of encodings and extensions, `texts`
    the names of data that are meant where several fit.
    """

    evaluations: list[Evaluation]
    origins: Mapping[Path, RunMetadata]
    defaults: Mapping[tuple[str, str], dict]
    texts: Collection[str] = ()

    def __post_init__(self):
        self.references = References(self.evaluations)
        self.gain_bounds: dict[tuple, float] = {}  # `windows` of an evaluation -> lower bound of G

    @classmethod
    def read(
        cls,
        paths: Iterable[Path],
        defaults: Mapping[tuple[str, str], dict],
        evidence: Iterable[Path] = (),
    ) -> "Pool":
        """Pool of the eval files that exist and of folders of evidence, each evaluation once.

        Raises RunError for damage, or two weights of one training.
        """
        loaded = [load_evaluation(path) for path in dict.fromkeys(paths) if path.exists()]
        for evaluation in loaded:
            check_losses(evaluation)
        evaluations, origins, _ = pooled_evaluations(loaded, evidence)
        return cls(evaluations, origins, defaults)

    def evaluations_by_seed(
        self, cell: ClaimCell, windows: int | None = None, seeds: Collection[int] = ()
    ) -> dict[int, Evaluation]:
        """Evaluations of a cell by seed, of `windows` and `seeds` if given, else of all.

        Raises MissingEvaluation if none fits, RunError if two of one seed do.
        """
        fitting = [entry for entry in self.evaluations if self._fits(cell, entry)]
        if seeds:  # other stages may have trained this method in several ways
            fitting = [entry for entry in fitting if entry.first["seed"] in seeds]
        if windows is not None:
            fitting = [entry for entry in fitting if _n_windows(entry) == windows]
        if "train.length" not in (cell.config or {}):
            fitting = _of_usual_train_len(fitting)
        # Other experiments may have the same models on another text.
        of_text = [entry for entry in fitting if _name_of_text(entry) in self.texts]
        if of_text:
            fitting = of_text
        if not fitting:
            of_windows = "" if windows is None else f" with {windows} windows"
            raise MissingEvaluation(f"no evaluation of {cell}{of_windows}")
        by_seed: dict[int, Evaluation] = {}
        for entry in fitting:
            first = by_seed.setdefault(entry.first["seed"], entry)
            if first is not entry:
                raise RunError(
                    f"{cell} fits two evaluations of seed {entry.first['seed']},"
                    f" {_run_and_file(first)} and {_run_and_file(entry)}: name in the claim what"
                    " tells them apart (config: {train.steps: 1000}), or give other runs="
                )
        return dict(sorted(by_seed.items()))

    def _fits(self, cell: ClaimCell, entry: Evaluation) -> bool:
        """True for an evaluation of the cell's methods, protocol and training."""
        row = with_trained_part_as_extension(entry.first)
        return (
            _same_methods(cell, row)
            and _has_plain_setting(entry.setting)
            and self._same_arguments(cell, row)
            and self._same_training(cell, entry)
        )

    def _same_arguments(self, cell: ClaimCell, row: dict) -> bool:
        """True if the methods of a row have the cell's arguments, or defaults where it names none.

        A child's encoding also records its parent and its reach, which no claim names.
        """
        for group in ("encoding", "extension"):
            defaults = self.defaults.get((group, row[group]), {})
            arguments = dict(row[f"{group}_args"] or {})
            if cell.finetuned:
                for key in CHILD_ARGUMENTS:
                    arguments.pop(key, None)
            cell_arguments = getattr(cell, f"{group}_args") or {}
            if flatten({**defaults, **arguments}) != flatten({**defaults, **cell_arguments}):
                return False
        return True

    def _same_training(self, cell: ClaimCell, entry: Evaluation) -> bool:
        """True if the training has the configuration that the cell asks for.

        An unreadable configuration fits none. Keys that are younger than it have their defaults.
        """
        config = self.origins[entry.origin].config
        if not config:
            return False
        required = {
            **PLAIN_TRAINING,
            "train.length": entry.first["train_len"],
            **(cell.config or {}),
        }
        # A key that is in neither has ABSENT_WORD, which differs from every value asked for.
        return all(
            config.get(key, FIELDS_ADDED_LATER.get(key, ABSENT_WORD)) == value
            for key, value in required.items()
        )

    def recompute_reference(self, entry: Evaluation, kind: str) -> Evaluation:
        """Reference of an evaluation, of the same training, protocol and setting.

        `kind` is floor or half. Raises MissingEvaluation if there is none.
        """
        if (entry.key, kind) not in self.references.floors:
            raise MissingEvaluation(
                f"{entry.first['run_id']} lacks recompute_window ({kind}) under"
                f" {entry.first['protocol']}"
            )
        return self.references.floors[entry.key, kind]

    def gain_lower(self, entry: Evaluation) -> float:
        """Lower 95 % bound of G of a training, of a child that of its parent, in bits/byte.

        With one seed it is over documents alone. It is read by fixed_targets, or by tiled_targets
        where that was not evaluated. Raises MissingEvaluation if the training has neither with as
        many windows.
        """
        training = entry.first["finetune"] or entry.first["run_id"]
        _, setting = entry.windows
        windows = (training, setting)  # those that the training, or a child's parent, was read in
        if windows not in self.gain_bounds:
            reading = self._evaluation_for_gain(training, windows)
            self.gain_bounds[windows] = estimate(self.gain_terms([reading])).interval()[0]
        return self.gain_bounds[windows]

    def _evaluation_for_gain(self, training: str, windows: tuple) -> Evaluation:
        """Evaluation of these windows by the first of GAIN_PROTOCOLS that there is."""
        of_windows = [entry for entry in self.evaluations if entry.windows == windows]
        for protocol in GAIN_PROTOCOLS:
            for entry in of_windows:
                if entry.first["protocol"] == protocol:
                    return entry
        raise MissingEvaluation(
            f"{training} has no {' or '.join(GAIN_PROTOCOLS)} evaluation of as many windows, so G"
            " is unknown"
        )

    def gain_terms(self, entries: Sequence[Evaluation]) -> list[tuple[float, Sums]]:
        """Weighted means whose sum is G of the trainings, in bits/byte."""
        half = sums_at_full_window([self.recompute_reference(entry, "half") for entry in entries])
        floor = sums_at_full_window([self.recompute_reference(entry, "floor") for entry in entries])
        return [(half.factor, half.sums), (-floor.factor, floor.sums)]


def text_of_experiment(name: str) -> str:
    """Name of the text that an experiment's models are trained on: the usual one, if its yaml
    states none.
    """
    experiment = shipped_yamls("experiment").get(name, {})
    return experiment.get("base", {}).get("data", USUAL_TEXT)


def _name_of_text(entry: Evaluation) -> str:
    """Name of the text of a training: pysource also where a task is mixed into it."""
    return entry.first["data"].partition("+")[0]


class SumsAndFactor(NamedTuple):
    """Sums over documents of several seeds, and the factor from their mean to bits/byte."""

    sums: Sums
    factor: float  # 1 for correct answers


def _same_methods(cell: ClaimCell, row: dict) -> bool:
    """True if a row has the cell's methods and protocol, and is of no single position."""
    names = ("encoding", "extension", "scale_attention", "protocol")
    return (
        all(row[name] == getattr(cell, name) for name in names)
        and (row["trained_scale"] or "none") == cell.trained_scale
        and bool(row["finetune"]) == cell.finetuned
        and row["position"] is None
    )


def _has_plain_setting(setting: object) -> bool:
    """True if claims are judged under a setting; what it does not state may be as usual."""
    return all(
        getattr(setting, name, usual) in (usual, None) for name, usual in PLAIN_SETTING.items()
    )


def _n_windows(entry: Evaluation) -> int | None:
    return getattr(entry.setting, "windows", None)


def _of_usual_train_len(entries: list[Evaluation]) -> list[Evaluation]:
    """Evaluations of trainings of the usual length, or all if there are none."""
    return [entry for entry in entries if entry.first["train_len"] == USUAL_TRAIN_LEN] or entries


def _run_and_file(entry: Evaluation) -> str:
    """Words for an evaluation in an error: its run and the name of its file."""
    return f"{entry.first['run_id']}/{entry.path.name}"


def row_at(entry: Evaluation, length: int, task: str | None) -> dict:
    """Row of a length and a task, over all depths. Raises MissingEvaluation without one."""
    # Other rows of the length are parts of it: of one position, or of one depth of an answer.
    for row in entry.rows:
        labels = (row["length"], row["task"], row["position"], row.get("depth"))
        if labels == (length, task, None, None):
            return row
    raise MissingEvaluation(f"{_run_and_file(entry)} lacks length {length}")


def sums_at_lengths(
    entries: Sequence[Evaluation],
    lengths: Sequence[int],
    quantity: str = "nll",
    task: str | None = None,
) -> SumsAndFactor:
    """Sums over documents of nll or correct, of each entry at its length.

    Raises MissingEvaluation if a length was not evaluated, RunError if seeds scored different
    targets or targets do not weigh alike.
    """
    sums_of_seeds = []
    factors = set()
    for entry, length in zip(entries, lengths, strict=True):
        row = row_at(entry, length, task)
        sums = entry.sampled_sums(row, quantity)
        # Without bytes a loss cannot be had in bits per byte, the unit of claims.
        if sums is None or (quantity == "nll" and not row["n_bytes"]):
            raise MissingEvaluation(f"{_run_and_file(entry)} lacks length {length}")
        if quantity == "nll":
            plain_mean = float(sums.means[0])  # the only one, of this quantity
            _check_equal_weights(entry, row, plain_mean)
            factors.add(row["n_targets"] / (np.log(2) * row["n_bytes"]))  # nats/target to bits/byte
        else:
            factors.add(1.0)  # a share of answers
        sums_of_seeds.append(sums)
    sums_of_all = joined_seeds(sums_of_seeds)  # None if their documents differ
    if len(factors) > 1 or sums_of_all is None:
        raise RunError(
            f"seeds of {_run_and_file(entries[0])} scored different targets at length {length}:"
            " evaluate all with one setting."
        )
    return SumsAndFactor(sums_of_all, float(factors.pop()))


def _check_equal_weights(entry: Evaluation, row: dict, plain_mean: float) -> None:
    """Raise RunError if a row's loss is another mean of its targets than the plain one."""
    if np.isfinite(plain_mean) and not np.isclose(plain_mean, row["nll"], rtol=1e-3):
        raise RunError(
            f"{_run_and_file(entry)} weighs its targets ({row['nll']:.4f}, their plain mean is"
            f" {plain_mean:.4f}): claims cannot use it."
        )


def sums_at_full_window(entries: Sequence[Evaluation]) -> SumsAndFactor:
    """Losses of references, each at its shortest length where every target has its full window.

    Raises MissingEvaluation without one.
    """
    rows = [entry.exact_row() for entry in entries]
    for entry, row in zip(entries, rows, strict=True):
        if row is None:
            raise MissingEvaluation(
                f"{_run_and_file(entry)} lacks a length of at least {entry.exact_from} tokens,"
                " where every target has its full window"
            )
    check_same_targets(entries)
    return sums_at_lengths(entries, [row["length"] for row in rows])


def check_same_targets(entries: Sequence[Evaluation]) -> None:
    """Check evaluations protocol by protocol.

    Raises MissingEvaluation for one without arrays, RunError unless all scored the same targets.
    """
    for entry in entries:
        if not entry.stored.targets:
            raise MissingEvaluation(
                f"{entry.stored.path.name} of {entry.first['run_id']} is not there, and losses of"
                " single targets decide"
            )
    check_targets_of_sections(entries, lambda entry: entry.first["protocol"])
