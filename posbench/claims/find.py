"""Search for the evaluations on disk that match a claim's cells, read as sums over documents. Nothing in a results folder is executed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from posbench.claims.language import ClaimCell
from posbench.common.errors import RunError
from posbench.config.identity import LATER
from posbench.config.schema import TrainConfig
from posbench.report.labels import moved
from posbench.report.references import check_one_set, references
from posbench.runs.evaluation import Evaluation, load_evaluation
from posbench.runs.evidence import pool
from posbench.runs.run_metadata import ABSENT, RunMetadata, flatten
from posbench.statistics.crossed import Sums, across, estimate

# Required of a training's configuration unless a cell names another value. So is train.length, one number: the row's train_len, or the
# usual one where trainings of several lengths are there.
PLAIN = {"model.qk_norm": "none", "model.output_gate": "none", "data.mix.task": None}
USUAL = TrainConfig.length
FILLED = {"base", "max_len"}  # arguments of an encoding that only a child has: its parent's encoding, and how far it reaches


class Missing(Exception):
    """A claim's cell was not measured. The message names the evaluation that is missing."""


@dataclass
class Pool:
    """Evaluations to judge claims by, and the `origins` of their runs.

    `defaults`: (encoding | extension, name) -> the arguments in configs/.
    """

    evaluations: list[Evaluation]
    origins: Mapping[Path, RunMetadata]
    defaults: Mapping[tuple[str, str], dict]
    known: dict = field(default_factory=dict)  # `windows` of an evaluation -> lower bound of G

    @classmethod
    def read(cls, paths: Iterable[Path], defaults: Mapping[tuple[str, str], dict], evidence: Iterable[Path] = ()) -> "Pool":
        """Pool of the eval files among `paths` that exist, and of folders of evidence, each evaluation once.

        Raises RunError if one is damaged, or if one training has two weights.
        """
        own = [load_evaluation(path) for path in dict.fromkeys(paths) if path.exists()]
        evaluations, origins, _ = pool(own, evidence)
        return cls(evaluations, origins, defaults)

    def find(self, cell: ClaimCell, windows: int | None = None) -> dict[int, Evaluation]:
        """Evaluations of a cell by seed, with `windows` of those that ask for so many.

        Raises Missing if no evaluation fits, RunError if two of one seed do.
        """
        fitting = [entry for entry in self.evaluations if self._measured(cell, entry) and self._trained(cell, entry)]
        fitting = [entry for entry in fitting if windows is None or getattr(entry.setting, "windows", None) == windows]
        if "train.length" not in (cell.config or {}) and USUAL in {entry.first["train_len"] for entry in fitting}:
            fitting = [entry for entry in fitting if entry.first["train_len"] == USUAL]
        found: dict[int, Evaluation] = {}
        for entry in fitting:
            other = found.setdefault(entry.first["seed"], entry)
            if other is not entry:
                raise RunError(
                    f"{cell} fits two evaluations of seed {entry.first['seed']}, {_name(other)} and {_name(entry)}: name in the claim what "
                    "tells them apart (config: {train.steps: 1000}), or give other runs="
                )
        if not found:
            asked = f" with {windows} windows" if windows is not None else ""
            raise Missing(" and ".join([f"no evaluation of {cell}{asked}", *self.unread(cell)]))
        return dict(sorted(found.items()))

    def unread(self, cell: ClaimCell) -> list[str]:
        """Notes on trainings that may fit the cell, but whose config.yaml cannot be read."""
        unread = (entry for entry in self.evaluations if not self.origins[entry.origin].config)
        runs = dict.fromkeys(entry.first["run_id"] for entry in unread if self._measured(cell, entry))
        return [f"config.yaml of {', '.join(runs)} cannot be read, so nothing says whether it fits"] if runs else []

    def _measured(self, cell: ClaimCell, entry: Evaluation) -> bool:
        """True if an evaluation has the cell's methods and protocol."""
        row = moved(entry.first)
        if any(row[name] != getattr(cell, name) for name in ("encoding", "extension", "scale_attention", "protocol")):
            return False
        if getattr(entry.setting, "text", None) or getattr(entry.setting, "unit", "document") != "document":
            return False  # claims are about the text of the training, with intervals over documents
        if getattr(entry.setting, "split", "test") != "test" or getattr(entry.setting, "documents", None):
            return False  # all of its test documents: others serve to choose, as in search_factors.py, or are a part
        if (row["trained_scale"] or "none") != cell.trained_scale or bool(row["finetune"]) != cell.finetuned or row["position"] is not None:
            return False
        for group in ("encoding", "extension"):
            wanted = {**self.defaults.get((group, row[group]), {}), **(getattr(cell, f"{group}_args") or {})}
            args = {key: value for key, value in (row[f"{group}_args"] or {}).items() if not (cell.finetuned and key in FILLED)}
            have = {**self.defaults.get((group, row[group]), {}), **args}
            if flatten(have) != flatten(wanted):
                return False
        return True

    def _trained(self, cell: ClaimCell, entry: Evaluation) -> bool:
        """True if the training's configuration fits the cell. An unreadable one does not; keys of later versions have their defaults."""
        wanted = {**PLAIN, "train.length": entry.first["train_len"], **(cell.config or {})}
        have = self.origins[entry.origin].config
        return bool(have) and all(have.get(key, LATER.get(key, ABSENT)) == value for key, value in wanted.items())

    @cached_property
    def references(self) -> dict[tuple, Evaluation]:
        """{(key, "floor" | "half"): evaluation}."""
        return references(self.evaluations)

    def reference(self, entry: Evaluation, kind: str) -> Evaluation:
        """Reference (`floor` or `half`) of an evaluation, of the same training, protocol and setting. Raises Missing if there is none."""
        if (entry.key, kind) not in self.references:
            raise Missing(f"{entry.first['run_id']} lacks recompute_window ({kind}) under {entry.first['protocol']}")
        return self.references[entry.key, kind]

    def gain_lower(self, run: Evaluation) -> float:
        """Lower 95 % bound of G of one training, of a child that of its parent, in bits/byte. With one seed it is over documents alone.

        Raises Missing if the training has no evaluation under fixed_targets with as many windows.
        """
        training = run.first["finetune"] or run.first["run_id"]
        windows = (training, run.windows[1])
        if windows not in self.known:
            fixed = [one for one in self.evaluations if one.windows == windows and one.first["protocol"] == "fixed_targets"]
            if not fixed:
                raise Missing(f"{training} has no fixed_targets evaluation of as many windows, so G is unknown")
            self.known[windows] = estimate(self.gain_terms(fixed[:1])).interval()[0]
        return self.known[windows]

    def inside(self, entry: Evaluation, task: str) -> float:
        """Share of right answers of an evaluation of a task at the training length. Raises Missing without one."""
        row = _row_at(entry, entry.first["train_len"], task)
        if row is None:
            raise Missing(f"{_name(entry)} lacks the training length, so nothing says if {task} was learned")
        return row["accuracy"]

    def gain_terms(self, entries: Sequence[Evaluation]) -> list[tuple[float, Sums]]:
        """Weighted means whose sum is G of the trainings, in bits/byte."""
        half, floor = (exact([self.reference(entry, kind) for entry in entries]) for kind in ("half", "floor"))
        return [(half[1], half[0]), (-floor[1], floor[0])]


def _name(entry: Evaluation) -> str:
    return f"{entry.first['run_id']}/{entry.path.name}"


def measured(entries: Sequence[Evaluation], length: int, name: str = "nll", task: str | None = None) -> tuple[Sums, float]:
    """Sums over documents of nll or correct of each entry, and the factor from their mean to bits/byte (1 for correct).

    Raises Missing if a length was not evaluated, RunError if seeds scored different targets or targets do not weigh alike.
    """
    values, factors = [], set()
    for entry in entries:
        row = _row_at(entry, length, task)
        if row is None or name == "nll" and not row["n_bytes"]:
            raise Missing(f"{_name(entry)} lacks length {length}")
        found = _row_sums(entry, row, name)
        mean = float(found.means[0])
        if name == "nll" and np.isfinite(mean) and not np.isclose(mean, row["nll"], rtol=1e-3):
            raise RunError(f"{_name(entry)} weighs its targets ({row['nll']:.4f}, their plain mean is {mean:.4f}): claims cannot use it.")
        values.append(found)
        factors.add(row["n_targets"] / (np.log(2) * row["n_bytes"]) if name == "nll" else 1.0)
    whole = across(values)
    if len(factors) > 1 or whole is None:
        raise RunError(f"seeds of {_name(entries[0])} scored different targets at length {length}: evaluate all with one setting.")
    return whole, float(factors.pop())


def _row_at(entry: Evaluation, length: int, task: str | None) -> dict | None:
    """Row of a length and a task, over all depths."""
    whole = (length, task, None, None)
    return next((row for row in entry.rows if (row["length"], row["task"], row["position"], row.get("depth")) == whole), None)


def exact(entries: Sequence[Evaluation]) -> tuple[Sums, float]:
    """Sums and factor of references, as from `measured`, at their shortest length where every target has its full window.

    Raises Missing if a reference has no such length.
    """
    rows = [one.exact_row() for one in entries]
    if None in rows:
        lacking = entries[rows.index(None)]
        raise Missing(f"{_name(lacking)} lacks a length of at least {lacking.exact_from} tokens, where every target has its full window")
    whole = across([_row_sums(entry, row, "nll") for entry, row in zip(entries, rows, strict=True)])
    if whole is None:
        raise RunError(f"seeds of {_name(entries[0])} scored different targets: evaluate all with one setting.")
    row = rows[0]
    return whole, row["n_targets"] / (float(np.log(2)) * row["n_bytes"])


def same_targets(entries: Sequence[Evaluation]) -> None:
    """Check evaluations protocol by protocol. Raises Missing for one without arrays, RunError unless all scored the same targets."""
    check_one_set(map(_with_losses, entries), lambda entry: entry.first["protocol"])


def _row_sums(entry: Evaluation, row: dict, name: str) -> Sums:
    """Sums of nll or correct of a row. Raises Missing without the losses of its targets."""
    found = _with_losses(entry).sums(row, name)
    if found is None:
        raise Missing(f"{_name(entry)} lacks length {row['length']}")
    return found


def _with_losses(entry: Evaluation) -> Evaluation:
    if not entry.stored.targets:
        raise Missing(f"{entry.stored.path.name} of {entry.first['run_id']} is not there, and losses of single targets decide")
    return entry
