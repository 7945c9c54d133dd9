"""Search for the evaluations on disk that match a claim's cells, read as sums over documents.
Nothing in a results folder is executed.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from posbench.common.errors import RunError
from posbench.config.identity import LATER
from posbench.config.schema import TrainConfig
from posbench.report.labels import trained_part_moved
from posbench.report.references import References, check_losses, check_one_set
from posbench.results.evaluation import Evaluation, load_evaluation
from posbench.results.evidence import pool
from posbench.results.run_metadata import ABSENT, RunMetadata, flatten
from posbench.statistics.crossed import Sums, across, estimate
from posbench.tools.claims.language import ClaimCell

# Required of a training's configuration unless a cell names another value. So is train.length, one
# number: the row's train_len, or the usual one where trainings of several lengths are there.
PLAIN = {"model.qk_norm": "none", "model.output_gate": "none", "data.mix.task": None}
USUAL = TrainConfig.length
# Claims are about the text of the training, all of its test documents, with intervals over
# documents.
PLAIN_SETTING = {"text": None, "unit": "document", "split": "test", "documents": None}
GAIN_BY = (
    "fixed_targets",
    "tiled_targets",
)  # protocols that read G, the first one that was evaluated
FILLED = {
    "base",
    "max_len",
}  # arguments of an encoding that only a child has: its parent's encoding, and how far it reaches


class Missing(Exception):
    """A claim's cell was not measured. The message names the evaluation that is missing."""


@dataclass
class Pool:
    """Evaluations to judge claims by, `origins` of their runs, `defaults`: {(encoding or extension,
    name): arguments in configs/}.
    """

    evaluations: list[Evaluation]
    origins: Mapping[Path, RunMetadata]
    defaults: Mapping[tuple[str, str], dict]

    def __post_init__(self):
        self.references = References(self.evaluations)
        self.gains: dict[tuple, float] = {}  # `windows` of an evaluation -> lower bound of G

    @classmethod
    def read(
        cls,
        paths: Iterable[Path],
        defaults: Mapping[tuple[str, str], dict],
        evidence: Iterable[Path] = (),
    ) -> "Pool":
        """Pool of eval files that exist and of evidence, each once. Raises RunError for damage, or
        two weights of one training.
        """
        own = [load_evaluation(path) for path in dict.fromkeys(paths) if path.exists()]
        for evaluation in own:
            check_losses(evaluation)
        evaluations, origins, _ = pool(own, evidence)
        return cls(evaluations, origins, defaults)

    def find(
        self, cell: ClaimCell, windows: int | None = None, seeds: Collection[int] = ()
    ) -> dict[int, Evaluation]:
        """Evaluations of a cell by seed, of `windows` and `seeds` if given, else of all.

        Raises Missing if none fits, RunError if two of one seed do.
        """
        fitting = [entry for entry in self.evaluations if self._fits(cell, entry)]
        if seeds:  # other stages may have trained this method in several ways
            fitting = [entry for entry in fitting if entry.first["seed"] in seeds]
        fitting = [
            entry
            for entry in fitting
            if windows is None or getattr(entry.setting, "windows", None) == windows
        ]
        if "train.length" not in (cell.config or {}) and USUAL in {
            entry.first["train_len"] for entry in fitting
        }:
            fitting = [entry for entry in fitting if entry.first["train_len"] == USUAL]
        found: dict[int, Evaluation] = {}
        for entry in fitting:
            other = found.setdefault(entry.first["seed"], entry)
            if other is not entry:
                raise RunError(
                    f"{cell} fits two evaluations of seed {entry.first['seed']}, {_name(other)} and"
                    f" {_name(entry)}: name in the claim what tells them apart (config:"
                    " {train.steps: 1000}), or give other runs="
                )
        if not found:
            raise Missing(
                f"no evaluation of {cell}"
                + (f" with {windows} windows" if windows is not None else "")
            )
        return dict(sorted(found.items()))

    def _fits(self, cell: ClaimCell, entry: Evaluation) -> bool:
        """True for the cell's methods, protocol and training. An unreadable configuration fits
        none; later keys have their defaults.
        """
        row, setting = trained_part_moved(entry.first), entry.setting
        if any(
            row[name] != getattr(cell, name)
            for name in ("encoding", "extension", "scale_attention", "protocol")
        ):
            return False
        if any(
            getattr(setting, name, usual) not in (usual, None)
            for name, usual in PLAIN_SETTING.items()
        ):
            return False
        if (
            (row["trained_scale"] or "none") != cell.trained_scale
            or bool(row["finetune"]) != cell.finetuned
            or row["position"] is not None
        ):
            return False
        for group in ("encoding", "extension"):
            usual, args = self.defaults.get((group, row[group]), {}), row[f"{group}_args"] or {}
            have = {
                **usual,
                **{
                    key: value
                    for key, value in args.items()
                    if not (cell.finetuned and key in FILLED)
                },
            }
            if flatten(have) != flatten({**usual, **(getattr(cell, f"{group}_args") or {})}):
                return False
        wanted = {**PLAIN, "train.length": entry.first["train_len"], **(cell.config or {})}
        have = self.origins[entry.origin].config
        return bool(have) and all(
            have.get(key, LATER.get(key, ABSENT)) == value for key, value in wanted.items()
        )

    def reference(self, entry: Evaluation, kind: str) -> Evaluation:
        """Reference (`floor` or `half`) of an evaluation, of the same training, protocol and
        setting. Raises Missing if there is none.
        """
        if (entry.key, kind) not in self.references.floors:
            raise Missing(
                f"{entry.first['run_id']} lacks recompute_window ({kind}) under"
                f" {entry.first['protocol']}"
            )
        return self.references.floors[entry.key, kind]

    def gain_lower(self, run: Evaluation) -> float:
        """Lower 95 % bound of G of one training, of a child that of its parent, in bits/byte. With
        one seed it is over documents alone.

        It is read by fixed_targets, or by tiled_targets where that was not evaluated. Raises
        Missing if the training has neither with as many windows."""
        training = run.first["finetune"] or run.first["run_id"]
        windows = (training, run.windows[1])
        if windows not in self.gains:
            of_windows = [entry for entry in self.evaluations if entry.windows == windows]
            fixed = [
                entry for name in GAIN_BY for entry in of_windows if entry.first["protocol"] == name
            ]
            if not fixed:
                raise Missing(
                    f"{training} has no {' or '.join(GAIN_BY)} evaluation of as many windows, so G"
                    " is unknown"
                )
            self.gains[windows] = estimate(self.gain_terms(fixed[:1])).interval()[0]
        return self.gains[windows]

    def gain_terms(self, entries: Sequence[Evaluation]) -> list[tuple[float, Sums]]:
        """Weighted means whose sum is G of the trainings, in bits/byte."""
        half, floor = (
            exact([self.reference(entry, kind) for entry in entries]) for kind in ("half", "floor")
        )
        return [(half[1], half[0]), (-floor[1], floor[0])]


def _name(entry: Evaluation) -> str:
    return f"{entry.first['run_id']}/{entry.path.name}"


def row_at(entry: Evaluation, length: int, task: str | None) -> dict:
    """Row of a length and a task, over all depths. Raises Missing without one."""
    whole = (length, task, None, None)
    for row in entry.rows:
        if (row["length"], row["task"], row["position"], row.get("depth")) == whole:
            return row
    raise Missing(f"{_name(entry)} lacks length {length}")


def measured(
    entries: Sequence[Evaluation],
    lengths: Sequence[int],
    name: str = "nll",
    task: str | None = None,
) -> tuple[Sums, float]:
    """Sums over documents of nll or correct of each entry at its length, and the factor from their
    mean to bits/byte (1 for correct).

    Raises Missing if a length was not evaluated, RunError if seeds scored different targets or
    targets do not weigh alike."""
    values, factors = [], set()
    for entry, length in zip(entries, lengths, strict=True):
        row = row_at(entry, length, task)
        found = entry.sampled_sums(row, name)
        if found is None or name == "nll" and not row["n_bytes"]:
            raise Missing(f"{_name(entry)} lacks length {length}")
        mean = float(found.means[0])
        if name == "nll" and np.isfinite(mean) and not np.isclose(mean, row["nll"], rtol=1e-3):
            raise RunError(
                f"{_name(entry)} weighs its targets ({row['nll']:.4f}, their plain mean is"
                f" {mean:.4f}): claims cannot use it."
            )
        values.append(found)
        factors.add(row["n_targets"] / (np.log(2) * row["n_bytes"]) if name == "nll" else 1.0)
    whole = across(values)
    if len(factors) > 1 or whole is None:
        raise RunError(
            f"seeds of {_name(entries[0])} scored different targets at length {length}: evaluate"
            " all with one setting."
        )
    return whole, float(factors.pop())


def exact(entries: Sequence[Evaluation]) -> tuple[Sums, float]:
    """Sums and factor of references, each at its shortest length where every target has its full
    window. Raises Missing without one.
    """
    rows = [one.exact_row() for one in entries]
    if None in rows:
        lacking = entries[rows.index(None)]
        raise Missing(
            f"{_name(lacking)} lacks a length of at least {lacking.exact_from} tokens, where every"
            " target has its full window"
        )
    same_targets(entries)
    return measured(entries, [row["length"] for row in rows])


def same_targets(entries: Sequence[Evaluation]) -> None:
    """Check evaluations protocol by protocol. Raises Missing for one without arrays, RunError
    unless all scored the same targets.
    """
    for entry in entries:
        if not entry.stored.targets:
            raise Missing(
                f"{entry.stored.path.name} of {entry.first['run_id']} is not there, and losses of"
                " single targets decide"
            )
    check_one_set(entries, lambda entry: entry.first["protocol"])
