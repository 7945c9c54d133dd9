"""Points of tables and figures from rows and per-target losses: one per method and length, averaged
over seeds.

By length, the reference of every point is its own run's floor: the loss with exactly train_len
tokens of context for every target. Both are measured on the same targets, so the difference is
paired. By position in the longest window, every method reads the same windows, so each token is
paired with itself read without an extension: bins of positions for figures, stretches of several
bins for tables. By context inside the training window, every target is predicted from exactly c
tokens (recompute_window), c up to the training length."""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from posbench.common.errors import RunError
from posbench.report.labels import Labels
from posbench.report.records import SEEDS_KEY, ContextPoint, CurvePoint, grouped, section_values
from posbench.report.references import (
    Paired,
    References,
    Seed,
    exact_context,
    is_plain,
    paired_difference,
    reference_kind,
)
from posbench.results.evaluation import Evaluation
from posbench.results.evidence import is_mean
from posbench.statistics.crossed import Estimate, Sums
from posbench.statistics.over_seeds import FROM_SUMS, SeedValue, over_seeds

MEAN_COLUMNS = ("nll", "bpb", "accuracy")  # columns of a point that are means over seeds


class PointKey(NamedTuple):
    """Columns that the seeds of a point have in common."""

    protocol: str
    data: str
    tokenizer: str
    train_len: int
    setting: str
    encoding: str
    extension: str
    scale_attention: str
    source: str | None
    length: int
    window: int | None


class Interval(NamedTuple):
    """Mean over seeds, half of its 95 % interval, and the interval's units; None if unknown."""

    mean: float | None
    half_width: float | None
    over: str | None


def curve_points(
    references: References, label: Labels, stretches: bool = False
) -> list[CurvePoint]:
    """Points of all methods and lengths, in the order of the evaluations, without the floor, the
    half window and the ladders.

    For a protocol by position they come from the longest window, one for each bin of positions;
    with `stretches` only these, one for each stretch of several bins and one for the whole text of
    each length. Raises RunError if two evaluations have the same method, training and length."""
    seeds: dict[PointKey, dict[int, Seed]] = defaultdict(dict)  # {point: {seed: its row}}
    for evaluation in references.evaluations:
        if _shown_elsewhere(evaluation, references):
            continue
        common = section_values(evaluation)
        if evaluation.first["position"] is not None:
            for length, window, row in position_bins(evaluation, stretches):
                seed = _seed_by_position(evaluation, row, references)
                key = PointKey(*common, *label(row), evaluation.source, length, window)
                add_seed(seeds[key], seed, label)
        elif not stretches:
            for row in evaluation.rows:
                seed = _seed_by_length(evaluation, row, references)
                key = PointKey(*common, *label(row), evaluation.source, row["length"], None)
                add_seed(seeds[key], seed, label)
    return [
        _mean_point(key, list(by_seed.values()), label, references.gains)
        for key, by_seed in seeds.items()
    ]


def _shown_elsewhere(evaluation: Evaluation, references: References) -> bool:
    """True for a floor, a half window, and a step of a ladder."""
    row = evaluation.first
    if reference_kind(row):
        return True
    context = exact_context(row)
    # Windows longer than the training length are a method like others, and no steps.
    on_ladder = context is not None and context <= row["train_len"]
    return on_ladder and evaluation.key in references.ladders


def _without_extension(
    evaluation: Evaluation, length: int, references: References
) -> Evaluation | None:
    """Evaluation of the same model without an extension; None for that itself."""
    if is_plain(evaluation.first):
        return None
    return references.plain.get(evaluation.key, {}).get(length)


def _seed_by_position(evaluation: Evaluation, row: dict, references: References) -> Seed:
    """Row of a bin, and its difference to the same tokens read without an extension."""
    length = row["length"]
    other = _without_extension(evaluation, length, references)
    same_tokens = other and joined_bins(other, length, row["start"], row["position"])
    difference = paired_difference(evaluation, row, other, same_tokens)
    # A loss by position is compared with no extension alone.
    return Seed(evaluation, row, against_floor=None, against_plain=difference)


def _seed_by_length(evaluation: Evaluation, row: dict, references: References) -> Seed:
    """Row of a length, and its differences to the floor and to no extension."""
    if evaluation.lacks_stored_losses(row):  # so it cannot be paired
        return Seed(evaluation, row)
    length = row["length"]
    # All rows of a floor read the same context; exact_row gives one in which every target has it.
    floor = references.floors.get((evaluation.key, "floor"))
    other = _without_extension(evaluation, length, references)
    return Seed(
        evaluation,
        row,
        against_floor=paired_difference(evaluation, row, floor, floor and floor.exact_row(length)),
        against_plain=paired_difference(evaluation, row, other, other and other.row(length)),
    )


def add_seed(seeds: dict[int, Seed], seed: Seed, label: Labels) -> None:
    """Add a seed to those of a point. Raises RunError if another evaluation gave it already."""
    row = seed.row
    other = seeds.setdefault(row["seed"], seed).row
    if other["eval_id"] != row["eval_id"]:
        raise RunError(
            f"{row['run_id']} (evaluation {row['eval_id']}) and {other['run_id']}"
            f" ({other['eval_id']}) both give {' '.join(label(row))}, seed {row['seed']}, length"
            f" {row['length']}: report them apart."
        )


def _mean_point(
    key: PointKey, seeds: list[Seed], label: Labels, gains: Mapping[tuple, Estimate]
) -> CurvePoint:
    """Means over the seeds of a method at a length."""
    rows = [seed.row for seed in seeds]
    first = rows[0]
    floors = [seed.against_floor for seed in seeds]
    difference = mean_with_interval(floors, first["sem_unit"])
    plains = [seed.against_plain for seed in seeds]
    change = mean_with_interval(plains, first["sem_unit"])
    loss = loss_interval(seeds)
    accuracy = Interval(None, None, None)  # an accuracy by position has none
    if first["position"] is None:
        accuracy = accuracy_interval(seeds)
    floor, gain, gain_lower = None, None, None
    if all(floors):
        floor = _finite_or_none(np.mean([paired.base for paired in floors]))
    of_seeds = [gains.get(seed.evaluation.key) for seed in seeds]
    if all(of_seeds):
        gain = _finite_or_none(np.mean([estimate.value for estimate in of_seeds]))
        # The lowest: the gate is passed only if every training passes it.
        gain_lower = _finite_or_none(np.min([estimate.lower for estimate in of_seeds]))
    return CurvePoint(
        **key._asdict(),
        untested=any(row["untested"] for row in rows),
        n_seeds=len(rows),
        n_targets=first["n_targets"],
        n_units=first["n_units"],
        sem_unit=first["sem_unit"],
        **means_over_seeds(rows, MEAN_COLUMNS),
        floor=floor,
        difference=difference.mean,
        half_width=difference.half_width,
        change=change.mean,
        change_half_width=change.half_width,
        over=difference.over or change.over,
        gain=gain,
        gain_lower=gain_lower,
        nll_half_width=loss.half_width,
        accuracy_half_width=accuracy.half_width,
        # Units only where there is an interval, as readers of this column expect.
        nll_over=None if loss.half_width is None else loss.over,
        facts=label.facts(first, seeds[0].evaluation.setting),
        seeds=seeds,
        by_seed={
            SEEDS_KEY: tuple(row["seed"] for row in rows),
            "nll": tuple(row["nll"] for row in rows),
            "difference": _differences_by_seed(floors),
            "change": _differences_by_seed(plains),
            "accuracy": tuple(row["accuracy"] for row in rows),
        },
    )


def _differences_by_seed(seeds: Iterable[Paired | None]) -> tuple[float | None, ...]:
    return tuple(_finite_or_none(paired.difference) if paired else None for paired in seeds)


def loss_interval(seeds: Sequence[Seed]) -> Interval:
    """Mean loss over the seeds of a point, with its interval, which is not paired.

    It is as wide as documents differ from one another. Two lines share their documents, so their
    paired difference is known better than either loss."""
    return _unpaired_interval(seeds, "nll", "nll")


def accuracy_interval(seeds: Sequence[Seed]) -> Interval:
    """Mean share of right answers over seeds, with its interval, as `loss_interval`."""
    return _unpaired_interval(seeds, "accuracy", "correct")


def _unpaired_interval(seeds: Sequence[Seed], column: str, name: str) -> Interval:
    """Interval of a column of rows, whose targets' values are stored under a name."""
    values = []
    for seed in seeds:
        value = seed.row[column]
        values.append(None if value is None else (value, _sums_of_mean(seed, column, name)))
    return mean_with_interval(values, seeds[0].row["sem_unit"])


def _sums_of_mean(seed: Seed, column: str, name: str) -> Sums | None:
    """Sums whose mean a row states; None where they are not known, or the row weighs them."""
    sums = seed.evaluation.sums(seed.row, name)
    return sums if sums is not None and is_mean(sums, seed.row, column) else None


def means_over_seeds(rows: Sequence[dict], columns: Iterable[str]) -> dict[str, float | None]:
    """Mean of each column over the rows of several seeds; None if one of them has no number.

    >>> means_over_seeds([{"nll": 2.0, "bpb": None}, {"nll": 3.0, "bpb": 1.5}], ("nll", "bpb"))
    {'nll': 2.5, 'bpb': None}
    """
    result = {}
    for column in columns:
        values = [row[column] for row in rows]
        result[column] = None if None in values else sum(values) / len(values)
    return result


def mean_with_interval(seeds: Sequence[tuple | None], unit: str) -> Interval:
    """Mean over seeds, with its interval.

    Each seed begins with its value and the sums over documents, which are None if only the mean is
    known (`Paired`). The units are seeds crossed with documents, documents for one seed, or seeds
    if only means are known. All are None if one of the seeds is."""
    if any(seed is None for seed in seeds):
        return Interval(None, None, None)
    values = []
    for value, seed_sums, *_ in seeds:
        terms = [(1.0, seed_sums)] if seed_sums else None  # one term, of weight 1
        values.append(SeedValue(value, terms))
    result = over_seeds(values)
    over = f"seeds x {unit}s" if result.source == FROM_SUMS else "seeds"
    if len(seeds) == 1:
        over = unit
    return Interval(
        _finite_or_none(result.estimate.value), _finite_or_none(result.half_width), over
    )


def _finite_or_none(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


class PositionBin(NamedTuple):
    """Tokens up to a position of the longest window, or, without `window`, texts of a length."""

    length: int
    window: int | None
    row: dict


def position_bins(evaluation: Evaluation, stretches: bool) -> Iterator[PositionBin]:
    """Each bin of the longest window; with `stretches` each stretch, whose row is the mean over its
    bins, and the texts of each length, if there are several.
    """
    lengths = sorted({row["length"] for row in evaluation.rows})
    window = lengths[-1]
    ends = sorted(row["position"] for row in evaluation.rows if row["length"] == window)
    if stretches:
        ends = stretch_ends(ends, evaluation.first["train_len"])
    for start, end in itertools.pairwise([0, *ends]):
        yield PositionBin(end, window, joined_bins(evaluation, window, start, end))
    if stretches and len(lengths) > 1:
        for length in lengths:
            whole_texts = joined_bins(evaluation, length, 0, length)
            yield PositionBin(length, window=None, row=whole_texts)


def stretch_ends(positions: list[int], train_len: int) -> list[int]:
    """Last positions of the stretches, each one of the bins' last `positions`: quarters and halves
    of the training length inside of it, half octaves beyond it to four times its length, then whole
    octaves.

    >>> stretch_ends(list(range(16, 513, 16)), 64)
    [16, 32, 64, 80, 128, 176, 256, 512]
    """
    half_octaves = [2 ** (k / 2) for k in (1, 2, 3, 4)]
    octaves = [2.0**k for k in range(3, 40)]  # 40: farther than any window
    multiples = [0.25, 0.5, 1, *half_octaves, *octaves]
    edges = [train_len * multiple for multiple in multiples] + [positions[-1]]
    ends = set()
    for edge in edges:
        if edge <= positions[-1]:
            below = [position for position in positions if position <= round(edge)]
            ends.add(max(below, default=positions[0]))  # the first bin may reach beyond the edge
    return sorted(ends)


def joined_bins(evaluation: Evaluation, length: int, start: int, end: int) -> dict | None:
    """Row of the tokens at positions above `start` up to `end` in the windows of a length: the mean
    over its bins, None without any.
    """
    rows = [
        row for row in evaluation.rows if row["length"] == length and start < row["position"] <= end
    ]
    if not rows:
        return None
    if len(rows) == 1:
        return {**rows[0], "start": start}
    n_targets = sum(row["n_targets"] for row in rows)
    n_bytes = sum(row["n_bytes"] for row in rows)
    nll = _mean_over_targets(rows, "nll")
    bpb = None
    if nll is not None and n_bytes:
        bpb = nll * n_targets / math.log(2) / n_bytes
    return {
        # For the position, at which the joined bins end, and for columns of the whole evaluation.
        **max(rows, key=lambda row: row["position"]),
        "n_targets": n_targets,
        "n_bytes": n_bytes,
        "nll": nll,
        "accuracy": _mean_over_targets(rows, "accuracy"),
        "bpb": bpb,
        "start": start,
    }


def _mean_over_targets(rows: Sequence[dict], column: str) -> float | None:
    """Mean of a column, each row weighed by its targets; None if one has no number."""
    if any(row[column] is None for row in rows):
        return None
    total = sum(row[column] * row["n_targets"] for row in rows)
    return total / sum(row["n_targets"] for row in rows)


class StepKey(NamedTuple):
    """Columns that the seeds of an encoding's ladder have in common."""

    protocol: str
    data: str
    tokenizer: str
    train_len: int
    setting: str
    encoding: str
    source: str | None


def context_points(references: References, label: Labels) -> list[ContextPoint]:
    """Steps of all encodings and contexts (`References.ladders`). Raises RunError if a training
    scored different targets.
    """

    def key_of(ladder: dict[int, Evaluation]) -> StepKey:
        evaluation = next(iter(ladder.values()))
        encoding, *_ = label(evaluation.first)
        return StepKey(*section_values(evaluation), encoding, evaluation.source)

    steps = []
    for key, ladders in grouped(references.ladders.values(), key_of).items():
        for context in sorted(set().union(*ladders)):
            measured = [ladder for ladder in ladders if context in ladder]
            steps.append(_context_point(key, context, measured, label))
    return steps


def _context_point(
    key: StepKey, context: int, ladders: list[dict[int, Evaluation]], label: Labels
) -> ContextPoint:
    """Means over the seeds, each with its ladder {context: evaluation}, at a context."""
    evaluations = [ladder[context] for ladder in ladders]
    rows = [evaluation.exact_row() for evaluation in evaluations]
    first = rows[0]
    train_len = first["train_len"]
    unit = first["sem_unit"]
    differences = [_context_difference(ladder, context, train_len) for ladder in ladders]
    difference = mean_with_interval(differences, unit)
    # Doubling is from half of the context to all of it. An odd context has no half, except the
    # training length, whose half (rounded down) is that of G.
    has_half = context % 2 == 0 or context == train_len
    half = context // 2 if has_half else 0  # which no ladder has
    doublings = [_context_difference(ladder, half, context) for ladder in ladders]
    doubling = mean_with_interval(doublings, unit)
    return ContextPoint(
        **key._asdict(),
        context=context,
        n_seeds=len(rows),
        n_targets=first["n_targets"],
        n_units=first["n_units"],
        sem_unit=unit,
        **means_over_seeds(rows, ("nll", "bpb")),
        difference=difference.mean,
        half_width=difference.half_width,
        doubling=doubling.mean,
        doubling_half_width=doubling.half_width,
        over=difference.over or doubling.over,
        facts=label.facts(first, evaluations[0].setting),
        seeds=[Seed(*measured) for measured in zip(evaluations, rows, strict=True)],
        by_seed={
            SEEDS_KEY: tuple(row["seed"] for row in rows),
            "nll": tuple(row["nll"] for row in rows),
            "difference": _differences_by_seed(differences),
            "doubling": _differences_by_seed(doublings),
        },
    )


def _context_difference(ladder: dict[int, Evaluation], context: int, other: int) -> Paired | None:
    """Loss with a context minus that with another one; None if one of them was not measured."""
    evaluation = ladder.get(context)
    base = ladder.get(other)
    if not evaluation or not base:
        return None
    return paired_difference(evaluation, evaluation.exact_row(), base, base.exact_row())
