"""Stored evaluations: the rows of an eval json, the losses of its targets, and its setting."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from posbench.common.defuse import printable
from posbench.common.errors import RunError
from posbench.common.files import read_json
from posbench.config import identity
from posbench.runs.rows import check_digest, eval_rows, row_key, same_values
from posbench.runs.setting import Setting
from posbench.runs.target_losses import PooledLosses, TargetLosses, part_of
from posbench.statistics.crossed import Sums, joined_strata


@dataclass(frozen=True)
class Evaluation:
    """Rows of one evaluation, from an eval json or a CSV, with its setting, None if it is
    unknown.
    """

    rows: list[dict]
    path: Path  # the json, or the CSV
    setting: Setting | str | None = None  # a CSV has its words alone
    stored: TargetLosses | PooledLosses | None = None  # None for a CSV
    source: str | None = None  # name of the CSV, if it is to be shown
    # {length: machine that evaluated it}, as far as it is known
    machines: dict = field(default_factory=dict)
    # {length: {task: {guess: share that it gets right}}}, of accuracy
    guesses: dict = field(default_factory=dict)
    # protocol, version, extension, scale_attention and evaluate, if they are known
    config: dict = field(default_factory=dict)

    @property
    def first(self) -> dict:
        """First row, for the columns that all rows share."""
        return self.rows[0]

    @property
    def rows_alone(self) -> bool:
        """True for an evaluation that was read from a CSV (.csv, .CSV)."""
        return self.path.suffix.lower() == ".csv"

    @property
    def origin(self) -> Path:
        """Run directory of the evaluation (RUN of RUN/evals/PROTOCOL/NAME.json), or its CSV."""
        return self.path if self.rows_alone else self.path.parents[2]

    @property
    def key(self) -> tuple:
        """Training, protocol and setting, which evaluations must share to be compared."""
        return self.first["run_id"], self.first["protocol"], self.setting

    @property
    def setting_in_words(self) -> str | None:
        """Setting in words, as a report and its CSVs show it."""
        return None if self.setting is None else str(self.setting)

    @property
    def windows(self) -> tuple:
        """Training and setting without stride, which evaluations of the same windows share,
        whatever their protocol.
        """
        setting = self.setting
        if isinstance(setting, Setting):  # not the words of a CSV, nor None
            setting = setting.unstrided
        return self.first["run_id"], setting

    @property
    def full_from(self) -> int | None:
        """Shortest text, in tokens, that gives every target train_len tokens of context; None if
        unknown.
        """
        if self.rows_alone or not isinstance(self.setting, Setting):
            return None
        if self.setting.targets is None:  # a task asks for them, wherever they are
            return None
        return self.setting.shortest_exact(self.first["train_len"])

    @property
    def exact_from(self) -> int:
        """Shortest text, in tokens, that counts as giving every target its full window; twice the
        training length if unknown.
        """
        return self.full_from or 2 * self.first["train_len"]

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays of the targets by name, {} without any. Raises RunError if they are damaged."""
        return self.stored.arrays if self.stored else {}

    def check_arrays(self) -> None:
        """Raise RunError for damaged arrays, by reading them."""
        if self.stored:
            self.stored.arrays  # noqa: B018  (which the property keeps)

    def losses(self, length: int) -> np.ndarray | None:
        """Loss of every target [n_targets] at `length`, or None."""
        if "nll" not in self.arrays:
            return None
        indices = np.flatnonzero(self.arrays["length"] == length)
        return self.arrays["nll"][indices[0]] if len(indices) else None

    def sums(self, row: dict, name: str = "nll") -> Sums | None:
        """Sums by document of a row's nll or correct; None if their losses are not known.

        A row by position is of the bin of positions that ends there (it begins behind the end of
        the bin before it), or of all positions beyond its `start`.
        """
        if self.stored is None or self.lacks_stored_losses(row):
            return None
        if row["position"] is None:
            return self.stored.sums(name, row["length"], part=part_of(row))
        return self.stored.sums(name, row["length"], self._columns(row))

    def mean(self, row: dict, name: str) -> float | None:
        """Mean of a row's nll or correct over its targets; None if their losses are not known."""
        # Of every target's loss where these are kept; parts of a task have sums alone.
        if (
            isinstance(self.stored, TargetLosses)
            and part_of(row) is None
            and not self.lacks_stored_losses(row)
        ):
            losses_NS = self.stored.at(name, row["length"])
            return None if losses_NS is None else float(losses_NS[:, self._columns(row)].mean())
        sums = self.sums(row, name)
        return None if sums is None else float(sums.means[0])  # of the one column

    def _columns(self, row: dict) -> slice:
        """Targets of a window that a row is of: all of them, or those of its bin."""
        if row["position"] is None:
            return slice(None)
        earlier_ends = [
            other["position"]
            for other in self.rows
            if other["length"] == row["length"] and other["position"] < row["position"]
        ]
        start = row.get("start", max(earlier_ends, default=0))
        return slice(start, row["position"])

    def sampled_sums(self, row: dict, name: str = "nll") -> Sums | None:
        """Same as `sums`, for intervals: texts of a task that asks at several depths are drawn anew
        for each, which is a stratum.
        """
        strata = [self.sums(of_depth, name) for of_depth in self.rows_by_depth(row)]
        if len(strata) < 2 or None in strata:
            return self.sums(row, name)
        return joined_strata(strata)

    def rows_by_depth(self, row: dict) -> list[dict]:
        """Rows of the depths that a row over all depths is the mean of, in their order; [] for any
        other row.
        """
        if row["depth"] is not None or row["task"] is None:
            return []
        of_depths = [
            other
            for other in self.rows
            if (other["task"], other["length"]) == (row["task"], row["length"])
            and other["depth"] is not None
        ]
        return sorted(of_depths, key=lambda other: other["depth"])

    def lacks_stored_losses(self, row: dict) -> bool:
        """True for a row of a length beside its first, such as the control of protocol repeat: of
        these only the mean is kept.
        """
        return (
            row["position"] is None and part_of(row) is None and row is not self.row(row["length"])
        )

    def same_targets(self, other: "Evaluation") -> bool:
        """True if both scored the same targets, in the same order."""
        return self.stored.targets == other.stored.targets

    def row(self, length: int) -> dict | None:
        """Row of `length`, or None. Protocols by position have no such row."""
        for row in self.rows:
            if row["length"] == length and row["position"] is None:
                return row
        return None

    def exact_row(self, length: int = 0) -> dict | None:
        """Row of `length` if it gives every target its full window, else of the shortest evaluated
        length that does, or None.
        """
        exact = sorted(row["length"] for row in self.rows if row["length"] >= self.exact_from)
        if not exact:
            return None
        return self.row(length if length in exact else exact[0])


def load_evaluations(
    paths: Iterable[Path], skip_damaged: bool, check: Callable[[Evaluation], object]
) -> tuple[list[Evaluation], list[str]]:
    """(evaluations with their arrays, notes about the damaged ones left out).

    Raises RunError for a damaged file, or as `check`, which is called with each evaluation; with
    `skip_damaged` only if all are damaged."""
    loaded = []
    damaged = []
    for path in paths:
        try:
            evaluation = load_evaluation(path)
            evaluation.check_arrays()
            check(evaluation)
            loaded.append(evaluation)
        except RunError as error:
            if not skip_damaged:
                raise
            damaged.append(error)
    if damaged and not loaded:
        raise damaged[0]
    return loaded, [f"Left out: {printable(str(error))}" for error in damaged]


def load_evaluation(path: Path) -> Evaluation:
    """Evaluation from one eval json. Its arrays are read when they are first needed. Raises
    RunError for a damaged json.
    """
    try:
        stored = read_json(path)
        content = printable(stored)
        rows = eval_rows(content, path)
        check_digest(stored, path)
        config = content.get("config", {})
        setting = None
        if config.get("evaluate"):
            setting = Setting.of(config["evaluate"], config.get("version", 1))
    except (TypeError, AttributeError, KeyError) as error:
        raise RunError(f"{path} is damaged ({error!r}): delete it and evaluate again.") from error
    if not rows:
        raise RunError(f"{path} holds no rows: delete it and evaluate again.")
    losses = TargetLosses(path.with_suffix(".npz"), {row["length"] for row in rows})
    evaluation = Evaluation(
        rows,
        path,
        setting,
        losses,
        machines=_dict_or_empty(content, "machines"),
        guesses=_dict_or_empty(content, "guesses"),
        config=config,
    )
    # The id is that of the config as it was written, with the line ends of a chat template.
    as_written = replace(evaluation, config=stored.get("config", {}))
    fault = next(evaluation_faults(as_written), None)
    if fault:
        raise RunError(
            f"{path} was changed after it was written ({fault}): restore it, or delete it and"
            " evaluate again."
        )
    return evaluation


def _dict_or_empty(content: dict, name: str) -> dict:
    """Facts by length of an eval json; {} for what is no mapping."""
    facts = content.get(name)
    return facts if isinstance(facts, dict) else {}


def evaluation_faults(evaluation: Evaluation) -> Iterator[str]:
    """A fault of an evaluation whose id does not follow from its configuration.

    One that does not know its configuration has none, nor has one in which unprintable characters
    were replaced (by U+FFFD), since the id follows from the original ones.
    """
    config, row = evaluation.config, evaluation.first
    if "\ufffd" in repr(config):
        return
    try:
        methods = config["extension"], config["scale_attention"]
        eval_id = identity.eval_id(
            config["protocol"],
            *methods,
            config["evaluate"],
            row["run_id"],
            config.get("version", 1),
        )
    except (KeyError, TypeError, AttributeError):
        return
    if eval_id != row["eval_id"]:
        yield (
            f"the settings of evaluation {row['eval_id']} of {row['run_id']} are those of {eval_id}"
        )


def drop_duplicate_rows(evaluations: list[Evaluation]) -> tuple[list[Evaluation], list[str]]:
    """(evaluations without rows that an earlier one also holds, notes). Rows repeat when a run lies
    in two folders.
    """
    first: dict[tuple, dict] = {}  # {key: the first row that has it}
    distinct = []
    n_repeated = 0
    n_different = 0
    for evaluation in evaluations:
        new_rows = [row for row in evaluation.rows if row_key(row) not in first]
        for row in evaluation.rows:
            if row_key(row) in first:
                n_repeated += 1
                n_different += not same_values(first[row_key(row)], row)
        for row in new_rows:
            first.setdefault(row_key(row), row)
        if new_rows:
            distinct.append(replace(evaluation, rows=new_rows))
    if not n_repeated:
        return distinct, []
    numbers = "with the same numbers"
    if n_different:
        numbers = f"{n_different} of them with other numbers"
    note = f"{n_repeated} rows are in more than one folder, {numbers}: the first found counts."
    return distinct, [note]
