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

import numpy as np

from posbench.common.errors import RunError
from posbench.report.labels import Labels
from posbench.report.records import SECTION, ContextPoint, CurvePoint, grouped, section_of
from posbench.report.references import (
    Paired,
    References,
    Seed,
    compare,
    exact_context,
    plain,
    reference,
)
from posbench.results.evaluation import Evaluation
from posbench.statistics.clustered import student_interval
from posbench.statistics.crossed import Estimate, across, estimate

MEANS = ("nll", "bpb", "accuracy")  # columns of a point that are means over seeds


def points(references: References, label: Labels, stretches: bool = False) -> list[CurvePoint]:
    """Points of all methods and lengths, in the order of the evaluations, without the floor, the
    half window and the ladders.

    For a protocol by position they come from the longest window, one for each bin of positions;
    with `stretches` only these, one for each stretch of several bins and one for the whole text of each
    length. Raises RunError if two evaluations have the same method, training and length."""
    found: dict[tuple, dict[int, Seed]] = defaultdict(dict)
    for evaluation in references.evaluations:
        first, key = evaluation.first, evaluation.key
        if (
            reference(first)
            or key in references.ladders
            and (exact_context(first) or math.inf) <= first["train_len"]
        ):
            continue
        by_position = first["position"] is not None
        if stretches and not by_position:
            continue
        floor, others = (
            references.floors.get((key, "floor")),
            {} if plain(first) else references.plain.get(key, {}),
        )
        rows = (
            spans(evaluation, stretches)
            if by_position
            else (((row["length"], None), row) for row in evaluation.rows)
        )
        for place, row in rows:
            length, against_floor, against_plain = row["length"], None, None
            other = others.get(length)
            if by_position:
                against_plain = compare(
                    evaluation,
                    row,
                    other,
                    other and joined(other, length, row["start"], row["position"]),
                )
            elif not evaluation.further(row):
                against_floor = compare(evaluation, row, floor, floor and floor.exact_row(length))
                against_plain = compare(evaluation, row, other, other and other.row(length))
            seed = Seed(evaluation, row, against_floor, against_plain)
            add_seed(
                found[(*section_of(evaluation), *label(row), evaluation.source, *place)],
                seed,
                label,
            )
    return [
        _point(key, list(seeds.values()), label, references.gains) for key, seeds in found.items()
    ]


def add_seed(seeds: dict[int, Seed], one: Seed, label: Labels) -> None:
    """Add a seed to those of a point. Raises RunError if another evaluation gave it already."""
    row = one.row
    other = seeds.setdefault(row["seed"], one).row
    if other["eval_id"] != row["eval_id"]:
        raise RunError(
            f"{row['run_id']} (evaluation {row['eval_id']}) and {other['run_id']}"
            f" ({other['eval_id']}) both give {' '.join(label(row))}, seed {row['seed']}, length"
            f" {row['length']}: report them apart."
        )


def _point(
    key: tuple, seeds: list[Seed], label: Labels, gains: Mapping[tuple, Estimate]
) -> CurvePoint:
    rows, known = [one.row for one in seeds], [gains.get(one.evaluation.key) for one in seeds]
    first, floors = rows[0], [one.against_floor for one in seeds]
    difference, half_width, over = interval(floors, first["sem_unit"])
    change, change_half_width, changed_over = interval(
        [one.against_plain for one in seeds], first["sem_unit"]
    )
    return CurvePoint(
        **dict(
            zip(
                (
                    *SECTION,
                    "encoding",
                    "extension",
                    "scale_attention",
                    "source",
                    "length",
                    "window",
                ),
                key,
                strict=True,
            )
        ),
        untested=any(row["untested"] for row in rows),
        n_seeds=len(rows),
        **{name: first[name] for name in ("n_targets", "n_units", "sem_unit")},
        **means(rows, MEANS),
        floor=_finite(np.mean([one.base for one in floors])) if all(floors) else None,
        difference=difference,
        half_width=half_width,
        change=change,
        change_half_width=change_half_width,
        over=over or changed_over,
        gain=_finite(np.mean([one.value for one in known])) if all(known) else None,
        gain_lower=_finite(min(one.lower for one in known)) if all(known) else None,
        facts=label.facts(first, seeds[0].evaluation.setting),
        seeds=seeds,
    )


def means(rows: Sequence[dict], names: Iterable[str]) -> dict[str, float | None]:
    """Mean of each column over the rows of several seeds; None if one of them has no number."""
    return {
        name: (
            None
            if any(row[name] is None for row in rows)
            else sum(row[name] for row in rows) / len(rows)
        )
        for name in names
    }


def interval(
    seeds: Sequence[tuple | None], unit: str
) -> tuple[float | None, float | None, str | None]:
    """Mean over seeds, half width of its 95 % interval, and the interval's units; None for what is
    unknown.

    Each seed begins with its value and the sums over documents, which are None if only the mean is
    known (`Paired`). The units are seeds crossed with documents, documents for one seed, or seeds
    if only means are known."""
    if not all(seeds):
        return None, None, None
    known = [one[1] for one in seeds]
    whole = across(known) if all(known) else None
    if whole is None:
        mean, half_width, n = student_interval([one[0] for one in seeds])
        return _finite(mean), _finite(half_width), "seeds" if n > 1 else unit
    found = estimate([(1.0, whole)])
    low, high = found.interval()
    return (
        _finite(found.value),
        _finite((high - low) / 2),
        f"seeds x {unit}s" if len(seeds) > 1 else unit,
    )


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def spans(evaluation: Evaluation, stretches: bool) -> Iterator[tuple[tuple[int, int | None], dict]]:
    """((position, window), row) of each bin of the longest window; with `stretches` of each stretch,
    whose row is the mean over its bins.

    With `stretches` also ((length, None), row) of the texts of each length, if there are several.
    """
    lengths = sorted({row["length"] for row in evaluation.rows})
    window = lengths[-1]
    ends = sorted(row["position"] for row in evaluation.rows if row["length"] == window)
    if stretches:
        ends = stretch_ends(ends, evaluation.first["train_len"])
    for start, end in itertools.pairwise([0, *ends]):
        yield (end, window), joined(evaluation, window, start, end)
    for length in lengths if stretches and len(lengths) > 1 else ():
        yield (length, None), joined(evaluation, length, 0, length)


def stretch_ends(positions: list[int], train_len: int) -> list[int]:
    """Last positions of the stretches, each one of the bins' last `positions`: quarters and halves
    of the training length inside of it, half octaves beyond it to four times its length, then whole
    ones."""
    beyond = [train_len * 2 ** (k / 2) for k in (1, 2, 3, 4)] + [
        train_len * 2.0**k for k in range(3, 40)
    ]
    wanted = [train_len / 4, train_len / 2, train_len, *beyond, positions[-1]]
    found = {
        max((one for one in positions if one <= round(edge)), default=positions[0])
        for edge in wanted
        if edge <= positions[-1]
    }
    return sorted(found)


def joined(evaluation: Evaluation, length: int, start: int, end: int) -> dict | None:
    """Row of the tokens at positions above `start` up to `end` in the windows of a length: the mean
    over its bins, None without any.
    """
    rows = [
        row for row in evaluation.rows if row["length"] == length and start < row["position"] <= end
    ]
    if len(rows) <= 1:
        return {**rows[0], "start": start} if rows else None
    found = {name: sum(row[name] for row in rows) for name in ("n_targets", "n_bytes")}
    for name in ("nll", "accuracy"):
        values = [row[name] for row in rows]
        sums = (
            None
            if None in values
            else sum(value * row["n_targets"] for value, row in zip(values, rows, strict=True))
        )
        found[name] = None if sums is None else sums / found["n_targets"]
    nats = None if found["nll"] is None else found["nll"] * found["n_targets"]
    found["bpb"] = (
        None if nats is None or not found["n_bytes"] else nats / math.log(2) / found["n_bytes"]
    )
    return {**max(rows, key=lambda row: row["position"]), **found, "start": start}


def context_points(references: References, label: Labels) -> list[ContextPoint]:
    """Steps of all encodings and contexts (`References.ladders`). Raises RunError if a training
    scored different targets.
    """

    def key(ladder: dict[int, Evaluation]) -> tuple:
        one = next(iter(ladder.values()))
        return *section_of(one), label(one.first)[0], one.source

    seeds = grouped(references.ladders.values(), key)
    return [
        _step(names, context, own, label)
        for names, own in seeds.items()
        for context in sorted(set().union(*own))
    ]


def _step(
    key: tuple, context: int, seeds: list[dict[int, Evaluation]], label: Labels
) -> ContextPoint:
    own = [ladder for ladder in seeds if context in ladder]
    rows = [ladder[context].exact_row() for ladder in own]
    first = rows[0]
    train_len, unit = first["train_len"], first["sem_unit"]
    halved = context // 2 if context % 2 == 0 or context == train_len else 0
    difference, half_width, over = interval(
        [_change(ladder, context, train_len) for ladder in own], unit
    )
    doubling, doubling_half_width, doubled_over = interval(
        [_change(ladder, halved, context) for ladder in own], unit
    )
    return ContextPoint(
        **dict(zip((*SECTION, "encoding", "source"), key, strict=True)),
        context=context,
        n_seeds=len(rows),
        **{name: first[name] for name in ("n_targets", "n_units", "sem_unit")},
        **means(rows, ("nll", "bpb")),
        difference=difference,
        half_width=half_width,
        doubling=doubling,
        doubling_half_width=doubling_half_width,
        over=over or doubled_over,
        facts=label.facts(first, own[0][context].setting),
        seeds=[Seed(ladder[context], row) for ladder, row in zip(own, rows, strict=True)],
    )


def _change(ladder: dict[int, Evaluation], context: int, other: int) -> Paired | None:
    one, two = ladder.get(context), ladder.get(other)
    return compare(one, one.exact_row(), two, two.exact_row()) if one and two else None
