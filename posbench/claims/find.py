"""Search for the evaluations on disk that match a claim's cells, read as sums over documents. Nothing in a results folder is executed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from posbench.claims.language import Cell
from posbench.common.errors import RunError
from posbench.common.files import read_json
from posbench.config.identity import LATER, NOT_EVALUATE, without_later
from posbench.report.references import reference
from posbench.runs.origins import ABSENT, clean, flatten, read
from posbench.runs.rows import eval_rows
from posbench.runs.target_losses import read_npz
from posbench.statistics.crossed import Sums, estimate, sums

# Required of a training's configuration unless a cell names another value. So is train.length, one number: the row's train_len.
PLAIN = {"model.qk_norm": "none"}
SHARED = ("run_id", "protocol", "setting")


class Missing(Exception):
    """A claim's cell was not measured. The message names the evaluation that is missing."""


@dataclass(frozen=True)
class Entry:
    """One eval file and the configuration of its training. Arrays are read when first needed."""

    path: Path
    rows: list[dict]
    config: Mapping[str, object]

    @property
    def first(self) -> dict:
        """First row, for the columns that all rows share, and for `setting`."""
        return self.rows[0]

    def row(self, length: int, task: str | None) -> dict | None:
        """Row of a length and task over all positions, or None."""
        return next((row for row in self.rows if row["length"] == length and row["task"] == task and row["position"] is None), None)

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays of the npz beside the json. Raises Missing if there is none, RunError if it is damaged."""
        path = self.path.with_suffix(".npz")
        try:
            return read_npz(path)
        except FileNotFoundError:
            raise Missing(f"{path.name} of {self.first['run_id']} is not there, and losses of single targets decide") from None
        except Exception as error:  # zipfile, zlib and numpy raise a dozen kinds of errors for damage
            raise RunError(f"{path} is damaged ({error}): delete it and {self.path.name}, and evaluate again.") from error

    def values(self, name: str, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Arrays of one length: nll or correct of every target [T], and its document [T].

        Raises Missing if this length was not evaluated, RunError if the npz is damaged.
        """
        arrays = self.arrays
        at = np.flatnonzero(arrays.get("length") == length)
        if not len(at):
            raise Missing(f"{self.first['run_id']} {self.path.name} lacks length {length}")
        try:
            found = arrays[name][at[0]] if name in arrays else arrays[f"{name}_{length}"]
            document = arrays["document"] if "document" in arrays else arrays[f"document_{length}"]
            each = found.reshape(len(document), -1)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise RunError(f"{self.path.with_suffix('.npz')} is damaged ({error!r}): delete it and {self.path.name}.") from error
        return each.astype(np.float64).ravel(), np.repeat(document, each.shape[1])

    @cached_property
    def targets(self) -> bytes:
        """Bytes that are equal for two evaluations if they scored the same targets."""
        return b"".join(np.ascontiguousarray(self.arrays[name]).astype(np.int64).tobytes() for name in ("document", "offset"))


@dataclass
class Pool:
    """Evaluations to judge claims by. `defaults`: (encoding | extension, name) -> the arguments in configs/."""

    entries: list[Entry]
    defaults: Mapping[tuple[str, str], dict]
    known: dict = field(default_factory=dict)  # (run_id, setting without stride) -> lower bound of G

    def find(self, cell: Cell) -> dict[int, Entry]:
        """Evaluations of a cell by seed. Raises Missing if no evaluation fits, RunError if two of one seed do."""
        found: dict[int, Entry] = {}
        for entry in self.entries:
            if not self._measured(cell, entry) or not self._trained(cell, entry):
                continue
            other = found.setdefault(entry.first["seed"], entry)
            if other is not entry:
                raise RunError(
                    f"{cell} fits two evaluations of seed {entry.first['seed']}, {_name(other)} and {_name(entry)}: name in the claim what "
                    "tells them apart (config: {train.steps: 1000}), or give other runs="
                )
        if not found:
            raise Missing(" and ".join([f"no evaluation of {cell}", *self.unread(cell)]))
        return dict(sorted(found.items()))

    def unread(self, cell: Cell) -> list[str]:
        """Notes on trainings that may fit the cell, but whose config.yaml cannot be read."""
        runs = dict.fromkeys(entry.first["run_id"] for entry in self.entries if not entry.config and self._measured(cell, entry))
        return [f"config.yaml of {', '.join(runs)} cannot be read, so nothing says whether it fits"] if runs else []

    def _measured(self, cell: Cell, entry: Entry) -> bool:
        """True if an evaluation has the cell's methods and protocol."""
        row = entry.first
        if any(row[name] != getattr(cell, name) for name in ("encoding", "extension", "scale_attention", "protocol")):
            return False
        if (row["trained_scale"] or "none") != cell.trained_scale or row["finetune"] or row["position"] is not None:
            return False
        for group in ("encoding", "extension"):
            wanted = {**self.defaults.get((group, row[group]), {}), **(getattr(cell, f"{group}_args") or {})}
            have = {**self.defaults.get((group, row[group]), {}), **(row[f"{group}_args"] or {})}
            if flatten(have) != flatten(wanted):
                return False
        return True

    def _trained(self, cell: Cell, entry: Entry) -> bool:
        """True if the training's configuration fits the cell. An unreadable one does not; keys of later versions have their defaults."""
        wanted = {**PLAIN, "train.length": entry.first["train_len"], **(cell.config or {})}
        return bool(entry.config) and all(entry.config.get(key, LATER.get(key, ABSENT)) == value for key, value in wanted.items())

    def reference(self, entry: Entry, kind: str) -> Entry:
        """Reference (`floor` or `half`) of an evaluation, of the same training, protocol and setting. Raises Missing if there is none."""
        found = [other for other in self.entries if _shared(other) == _shared(entry) and reference(other.first) == kind]
        if not found:
            raise Missing(f"{entry.first['run_id']} lacks recompute_window ({kind}) under {entry.first['protocol']}")
        return next((one for one in found if one.first["scale_attention"] == (one.first["trained_scale"] or "none")), found[0])

    def gain_lower(self, run: Entry) -> float:
        """Lower 95 % bound of G of one training, in bits/byte. With one seed its interval is over documents alone.

        Raises Missing if the training has no evaluation under fixed_targets with as many windows.
        """
        run_id, _ = key = run.first["run_id"], _unstrided(run)
        if key not in self.known:
            own = [one for one in self.entries if (one.first["run_id"], _unstrided(one)) == key]
            fixed = [one for one in own if one.first["protocol"] == "fixed_targets"]
            if not fixed:
                raise Missing(f"{run_id} has no fixed_targets evaluation of as many windows, so G is unknown")
            self.known[key] = estimate(self.gain_terms(fixed[:1])).interval()[0]
        return self.known[key]

    def gain_terms(self, entries: Sequence[Entry]) -> list[tuple[float, Sums]]:
        """Weighted means whose sum is G of the trainings, in bits/byte."""
        half, floor = (exact([self.reference(entry, kind) for entry in entries]) for kind in ("half", "floor"))
        return [(half[1], half[0]), (-floor[1], floor[0])]


def _shared(entry: Entry) -> tuple:
    return tuple(entry.first[name] for name in SHARED)


def _unstrided(entry: Entry) -> str:
    """Setting of an evaluation without its stride, which may differ between protocols of the same windows."""
    asked = json.loads(entry.first["setting"])
    return json.dumps({key: value for key, value in asked.items() if key != "stride"}, sort_keys=True)


def _name(entry: Entry) -> str:
    return f"{entry.first['run_id']}/{entry.path.name}"


def measured(entries: Sequence[Entry], length: int, name: str = "nll", task: str | None = None) -> tuple[Sums, float]:
    """Sums over documents of nll or correct of each entry, and the factor from their mean to bits/byte (1 for correct).

    Raises Missing if a length was not evaluated, RunError if seeds scored different targets or targets do not weigh alike.
    """
    values, factors = [], set()
    for entry in entries:
        row = entry.row(length, task)
        if row is None or not row["n_bytes"]:
            raise Missing(f"{_name(entry)} lacks length {length}")
        value_T, document_T = entry.values(name, length)
        if name == "nll" and np.isfinite(value_T).all() and not np.isclose(value_T.mean(), row["nll"], rtol=1e-3):
            raise RunError(
                f"{_name(entry)} weighs its targets ({row['nll']:.4f}, their plain mean is {value_T.mean():.4f}): no claim rests on it."
            )
        values.append(value_T)
        factors.add(row["n_targets"] / (np.log(2) * row["n_bytes"]) if name == "nll" else 1.0)
    if len(factors) > 1 or len({len(value_T) for value_T in values}) > 1:
        raise RunError(f"seeds of {_name(entries[0])} scored different targets at length {length}: evaluate all with one setting.")
    return sums(values, document_T), float(factors.pop())


def exact(entries: Sequence[Entry]) -> tuple[Sums, float]:
    """Sums and factor of references, as from `measured`, at their shortest length where every target has its full window.

    Raises Missing if a reference has no length of at least twice the training length.
    """
    lengths = [min((row["length"] for row in one.rows if row["length"] >= 2 * row["train_len"]), default=0) for one in entries]
    if 0 in lengths:
        raise Missing(f"{_name(entries[lengths.index(0)])} lacks twice the training length")
    values = [entry.values("nll", length) for entry, length in zip(entries, lengths, strict=True)]
    row = entries[0].row(lengths[0], None)
    return sums([value_T for value_T, _ in values], values[0][1]), row["n_targets"] / (float(np.log(2)) * row["n_bytes"])


def index(paths: Iterable[Path]) -> list[Entry]:
    """Entries of the eval files among `paths` that exist, each once. Raises RunError if one is damaged."""
    configs: dict[Path, Mapping] = {}
    entries = []
    for path in dict.fromkeys(paths):
        if not path.exists():
            continue
        content = clean(read_json(path))
        rows, config = eval_rows(content, path), content.get("config")
        evaluate = config.get("evaluate") if isinstance(config, dict) else None
        if not isinstance(evaluate, dict | None):
            raise RunError(f"{path} is damaged (it says no configuration): delete it and evaluate again.")
        if not rows:
            continue
        said = {key: value for key, value in (evaluate or {}).items() if key not in NOT_EVALUATE}
        setting = json.dumps(without_later("evaluate", said), sort_keys=True)
        run = path.parents[2]
        if run not in configs:
            configs[run] = read(run).config
        entries.append(Entry(path, [{**row, "setting": setting} for row in rows], configs[run]))
    return entries
