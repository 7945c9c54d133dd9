"""Judgement of claims: an effect with its interval, a verdict against the margin, Holm over the
primaries of a stage that pass the gate.

Stage one keeps the rules by which it was judged: intervals by clustering whatever the number of
seeds, each endpoint a question of its own, two sides. Later stages take the analysis of variance
from five seeds on, count a comparison once, and ask one side where the rules are the two sides of
one bound. Seeds that they name take no part in stage one. Their comparisons that are not measured
yet count in the correction with p = 1, so that a verdict which stands already stands when the rest
is measured.

The gate of an accuracy at a task is that every training has learned the task inside its window; of
all else, that it uses its window (G)."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from posbench.common.errors import RunError
from posbench.report.learned import LEARNED, learned_by
from posbench.report.scores import PROTOCOL as ASKED
from posbench.results.evaluation import Evaluation
from posbench.statistics.crossed import ANOVA_FROM, Estimate, Sums, estimate
from posbench.statistics.usable_length import Usable
from posbench.statistics.verdict_rules import ALPHA, benjamini_hochberg, decide, holm, sides
from posbench.tools.claims.find import Missing, Pool, exact, measured, row_at, same_targets
from posbench.tools.claims.language import BOTH, MEASURES, Claim, ClaimCell, Endpoint

NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Finding:
    """Row of claims.csv: the result of one endpoint of a claim. Numbers are None if it was not
    measured.
    """

    claim: str
    endpoint: str
    primary: bool
    statement: str
    source: str
    rule: str
    experiment: str
    compared: str
    unit: str
    confirm: str
    refute: str
    stage: int = 1
    sides: int = 2  # of p: 1 where confirm and refute are the two sides of one bound
    effect: float | None = None  # in `unit`; inf: beyond the longest length evaluated
    lower: float | None = None
    upper: float | None = None
    over: str | None = None
    by_seed: str | None = None  # effect of each seed, in the order of `seeds`
    seeds: str | None = None
    documents: int | None = None
    targets: int | None = None
    nats: float | None = None  # nats/token in one bit/byte of these targets
    gain_lower: float | None = (
        None  # the lowest lower 95 % bound of G among the trainings, bits/byte
    )
    p: float | None = None
    p_holm: float | None = None
    q: float | None = None  # of Benjamini and Hochberg
    by_interval: str | None = None  # the verdict of this p alone
    verdict: str = ""  # after the gate and Holm; empty for a descriptive endpoint
    note: str = ""
    evaluations: str = ""  # eval ids, as in rows.csv


def judge(claims: Sequence[Claim], pools) -> list[Finding]:
    """Findings of all endpoints, each stage a family. `pools(claim)` returns (Pool, command that
    makes missing evaluations).
    """
    readings = Counter((claim.stage, str(one)) for claim in claims for one in claim.primary)
    findings = [
        one for claim in claims for one in _judge_claim(claim, pools, reserved(claims), readings)
    ]
    for stage in sorted({one.stage for one in findings}):
        tested = [
            i
            for i, one in enumerate(findings)
            if one.stage == stage and one.p is not None and one.verdict != "gated"
        ]
        unmeasured = {
            one.compared
            for one in findings
            if one.stage == stage > 1 and one.verdict == NOT_MEASURED
        }
        _correct(findings, tested, sorted(unmeasured - {findings[i].compared for i in tested}))
    return findings


def reserved(claims: Iterable[Claim]) -> set[int]:
    """Seeds that primaries of later stages name, which take no part in stage one."""
    return {seed for claim in claims for one in claim.primary for seed in one.seeds}


def _correct(findings: list[Finding], tested: Sequence[int], waiting: Sequence[str]) -> None:
    """Correct the verdicts of one family, in place; `waiting`: comparisons of the family that are
    not measured yet.
    """
    family = [findings[index] for index in tested]
    groups = [one.compared if one.stage > 1 else number for number, one in enumerate(family)]
    whole = {
        group: max(one.p for one, own in zip(family, groups, strict=True) if own == group)
        for group in groups
    }
    whole |= dict.fromkeys(waiting, 1.0)
    q = dict(zip(whole, benjamini_hochberg(list(whole.values())), strict=True))
    by_holm = holm([one.p for one in family] + [1.0] * len(waiting), [*groups, *waiting])
    for index, group, adjusted in zip(tested, groups, by_holm, strict=False):
        one = findings[index]
        stands = one.by_interval == "undecided" or adjusted < ALPHA
        questions = f"{len(whole)} {'comparisons' if one.stage > 1 else 'primaries'}"
        note = (
            one.note
            if stands
            else _also(
                one.note, f"{one.by_interval} by its own interval, not after Holm over {questions}"
            )
        )
        verdict = one.by_interval if stands else "undecided"
        findings[index] = replace(one, p_holm=adjusted, q=q[group], verdict=verdict, note=note)


def _judge_claim(claim: Claim, pools, reserved: set[int], readings: Counter) -> list[Finding]:
    shared = {
        "claim": claim.id,
        **{name: getattr(claim, name) for name in ("statement", "source", "rule", "stage")},
    }
    if claim.test:
        empty = dict.fromkeys(("experiment", "unit", "confirm", "refute"), "")
        return [
            Finding(
                endpoint="",
                primary=False,
                **shared,
                **empty,
                compared=claim.test,
                verdict=claim.shows,
                note="by test",
            )
        ]
    pool, command = pools(claim)
    found = []
    for primary, endpoint in [(True, one) for one in claim.primary] + [
        (False, one) for one in claim.secondary
    ]:
        blank = Finding(
            endpoint=endpoint.name, primary=primary, **shared, experiment=" ".join(claim.experiments), compared=str(endpoint),
            unit=MEASURES[endpoint.measure], confirm=str(endpoint.confirm or ""), refute=str(endpoint.refute or ""),
        )  # fmt: skip
        if claim.stage > 1 and primary and readings[claim.stage, str(endpoint)] == 1:
            blank = replace(blank, sides=sides(endpoint.confirm, endpoint.refute))
        try:
            found.append(_judge_endpoint(endpoint, pool, blank, reserved))
        except (Missing, RunError) as error:
            note = f"{error}: {command}" if isinstance(error, Missing) else str(error)
            found.append(replace(blank, verdict=NOT_MEASURED if primary else "", note=note))
    return found


def _judge_endpoint(endpoint: Endpoint, pool: Pool, blank: Finding, reserved: set[int]) -> Finding:
    cells = []
    for weight, cell in endpoint.cells:
        by_seed = pool.find(cell, endpoint.windows, endpoint.seeds)
        if not endpoint.seeds:
            by_seed = {seed: entry for seed, entry in by_seed.items() if seed not in reserved}
        cells.append((weight, cell, by_seed))
    seeds = sorted(set.intersection(*(set(found) for _, _, found in cells)))
    if absent := sorted(set(endpoint.seeds) - set(seeds)):
        raise Missing(
            f"seeds {', '.join(map(str, absent))} have not all cells, and {endpoint} is judged by"
            " all of its seeds or not at all"
        )
    if not seeds:
        raise Missing(
            "the cells have no seed in common"
            f" ({'; '.join(str(sorted(found)) for _, _, found in cells)})"
        )
    lone = sorted(set.union(*(set(found) for _, _, found in cells)) - set(seeds))
    note = f"seeds {', '.join(map(str, lone))} have not all cells and are left out" if lone else ""
    chosen = [(weight, cell, [found[seed] for seed in seeds]) for weight, cell, found in cells]
    same_targets([entry for _, _, entries in chosen for entry in entries])
    first = chosen[0][2][0].first
    read = [(cell, entry) for _, cell, entries in chosen for entry in entries]
    gain_lower = min(
        (pool.gain_lower(entry) for cell, entry in read if cell.protocol != ASKED), default=None
    )
    asked = [(entry, learned_by(cell.task)) for cell, entry in read if cell.protocol == ASKED]
    inside = min(
        (row_at(entry, entry.first["train_len"], task)["accuracy"] for entry, task in asked),
        default=None,
    )
    anova_from = ANOVA_FROM if blank.stage > 1 else math.inf
    if endpoint.measure == "usable_length":
        judged, compare = _usable(chosen, pool, endpoint.margin, anova_from)
    else:
        terms = [
            term
            for weight, cell, entries in chosen
            for term in _terms(endpoint.measure, weight, cell, entries, pool)
        ]
        judged = compare = estimate(terms, anova_from)
    lower, upper = judged.interval()
    one = replace(
        blank, effect=judged.value, lower=lower, upper=upper, over=compare.over, seeds=" ".join(map(str, seeds)),
        by_seed=" ".join(f"{number:.6g}" for number in compare.by_seed) if compare is judged else "", documents=compare.n_documents,
        targets=compare.n_targets, nats=math.log(2) * first["n_bytes"] / first["n_targets"] or None, gain_lower=gain_lower, note=note,
        evaluations=" ".join(dict.fromkeys(entry.first["eval_id"] for _, _, entries in chosen for entry in entries)),
    )  # fmt: skip
    if not blank.primary:
        return one
    unused = ""
    if gain_lower is not None and gain_lower <= 0:
        unused = "the lower 95 % bound of G is not above 0: the model does not use its window"
    elif inside is not None and inside < LEARNED:
        unused = (
            f"a training is right in {inside:.3f} of the answers inside its window, below"
            f" {LEARNED}: it has not learned the task"
        )
    if unused and endpoint.gate == BOTH:
        return replace(one, verdict="gated", note=_also(note, unused))
    if not math.isfinite(judged.value) and compare is judged:
        return replace(
            one,
            verdict="undecided",
            by_interval="undecided",
            p=1.0,
            note=_also(note, "a loss is not finite"),
        )

    def against(bound: float):
        if not endpoint.confirm.of_gain:
            return judged, bound
        return (
            estimate(
                [
                    *terms,
                    *((-bound * weight, one) for weight, one in pool.gain_terms(chosen[0][2])),
                ],
                anova_from,
            ),
            0.0,
        )

    word, p = decide(endpoint.confirm, endpoint.refute, against, blank.sides)
    if unused and word == endpoint.gate:
        return replace(
            one,
            p=1.0,
            by_interval="undecided",
            verdict="undecided",
            note=_also(note, f"not {word}: {unused}"),
        )
    return replace(one, p=p, by_interval=word, verdict=word)


def _terms(
    measure: str, weight: float, cell: ClaimCell, entries: list[Evaluation], pool: Pool
) -> list[tuple[float, Sums]]:
    """Weighted means whose sum is the measure of one cell."""
    length = round(cell.at * entries[0].first["train_len"])
    one, per = measured(
        entries, [length] * len(entries), "correct" if measure == "accuracy" else "nll", cell.task
    )
    if measure != "rise":
        return [(weight * per, one)]
    floors = [pool.reference(entry, "floor") for entry in entries]
    same_targets([*entries, *floors])
    floor, per_floor = exact(floors)
    return [(weight * per, one), (-weight * per_floor, floor)]


def _usable(chosen: list, pool: Pool, margin: float, anova_from: float) -> tuple[Usable, Estimate]:
    """Usable length over the training length, and the rise at the longest. Raises Missing for fewer
    than three lengths.
    """
    ((_, cell, entries),) = chosen
    train_len = entries[0].first["train_len"]
    lengths = set.intersection(*({row["length"] for row in entry.rows} for entry in entries))
    multiples = sorted(length / train_len for length in lengths if length >= train_len)
    if len(multiples) < 3:
        raise Missing(
            f"{cell} has {len(multiples)} lengths from the training length on, a usable length"
            " needs a grid"
        )
    rises = {
        multiple: estimate(
            _terms("rise", 1.0, replace(cell, at=multiple), entries, pool), anova_from
        )
        for multiple in multiples
    }
    return Usable(rises, margin), rises[multiples[-1]]


def _also(note: str, more: str) -> str:
    return f"{note}; {more}" if note else more
