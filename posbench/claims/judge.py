"""Judgement of claims: an effect with its interval, a verdict against the margin, Holm over all primaries that pass the gate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from posbench.claims.find import Missing, Pool, exact, measured, same_targets
from posbench.claims.language import MEASURES, Claim, Endpoint
from posbench.common.errors import RunError
from posbench.runs.evaluation import Evaluation
from posbench.statistics.crossed import Estimate, Sums, estimate
from posbench.statistics.usable_length import Usable
from posbench.statistics.verdict_rules import ALPHA, decide, holm

Terms = list[tuple[float, Sums]]


@dataclass(frozen=True)
class Finding:
    """Row of claims.csv: the result of one endpoint of a claim. Numbers are None if it was not measured."""

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
    effect: float | None = None  # in `unit`; inf: beyond the longest length evaluated
    lower: float | None = None
    upper: float | None = None
    over: str | None = None
    by_seed: str | None = None  # effect of each seed, in the order of `seeds`
    seeds: str | None = None
    documents: int | None = None
    targets: int | None = None
    nats: float | None = None  # nats/token in one bit/byte of these targets
    gain_lower: float | None = None  # the lowest lower 95 % bound of G among the trainings, bits/byte
    p: float | None = None
    p_holm: float | None = None
    by_interval: str | None = None  # the verdict of this interval alone
    verdict: str = ""  # after the gate and Holm; empty for a descriptive endpoint
    note: str = ""
    evaluations: str = ""  # eval ids, as in rows.csv


def judge(claims: Sequence[Claim], pools) -> list[Finding]:
    """Findings for all endpoints of all claims. `pools(claim)` returns (Pool, command that makes missing evaluations)."""
    findings = [one for claim in claims for one in _claim(claim, pools)]
    tested = [index for index, one in enumerate(findings) if one.primary and one.p is not None and one.verdict != "gated"]
    for index, adjusted in zip(tested, holm([findings[index].p for index in tested]), strict=True):
        one = findings[index]
        stands = one.by_interval == "undecided" or adjusted < ALPHA
        taken_back = f"{one.by_interval} by its own interval, not after Holm over {len(tested)} primaries"
        note = one.note if stands else _also(one.note, taken_back)
        findings[index] = replace(one, p_holm=adjusted, verdict=one.by_interval if stands else "undecided", note=note)
    return findings


def _claim(claim: Claim, pools) -> list[Finding]:
    shared = {"claim": claim.id, **{name: getattr(claim, name) for name in ("statement", "source", "rule")}}
    if claim.test:
        empty = dict.fromkeys(("experiment", "unit", "confirm", "refute"), "")
        return [Finding(endpoint="", primary=False, **shared, **empty, compared=claim.test, verdict=claim.shows, note="by test")]
    pool, command = pools(claim)
    found = []
    for primary, endpoint in [(True, one) for one in claim.primary] + [(False, one) for one in claim.secondary]:
        rules = {"confirm": str(endpoint.confirm or ""), "refute": str(endpoint.refute or "")}
        blank = Finding(
            endpoint=endpoint.name, primary=primary, **shared, experiment=" ".join(claim.experiments), compared=str(endpoint),
            unit=MEASURES[endpoint.measure], **rules,
        )  # fmt: skip
        try:
            found.append(_measure(endpoint, pool, blank))
        except (Missing, RunError) as error:
            note = f"{error}: {command}" if isinstance(error, Missing) else str(error)
            found.append(replace(blank, verdict="not measured" if primary else "", note=note))
    return found


def _measure(endpoint: Endpoint, pool: Pool, blank: Finding) -> Finding:
    cells = [(weight, cell, pool.find(cell)) for weight, cell in endpoint.cells]
    seeds = sorted(set.intersection(*(set(found) for _, _, found in cells)))
    if not seeds:
        raise Missing(f"the cells have no seed in common ({'; '.join(str(sorted(found)) for _, _, found in cells)})")
    lone = sorted(set.union(*(set(found) for _, _, found in cells)) - set(seeds))
    note = f"seeds {', '.join(map(str, lone))} have not all cells and are left out" if lone else ""
    for said in dict.fromkeys(said for _, cell, _ in cells for said in pool.unread(cell)):
        note = _also(note, said)
    chosen = [(weight, cell, [found[seed] for seed in seeds]) for weight, cell, found in cells]
    same_targets([entry for _, _, entries in chosen for entry in entries])
    first = chosen[0][2][0].first
    gain_lower = min(pool.gain_lower(entry) for _, _, entries in chosen for entry in entries)
    if endpoint.measure == "usable_length":
        judged, compare = _usable(chosen, pool, endpoint.margin)
    else:
        terms = [term for weight, cell, entries in chosen for term in _terms(endpoint.measure, weight, cell, entries, pool)]
        judged = compare = estimate(terms)
    lower, upper = judged.interval()
    one = replace(
        blank, effect=judged.value, lower=lower, upper=upper, over=compare.over, seeds=" ".join(map(str, seeds)),
        by_seed=" ".join(f"{number:.6g}" for number in compare.by_seed) if compare is judged else "", documents=compare.n_documents,
        targets=compare.n_targets, nats=math.log(2) * first["n_bytes"] / first["n_targets"], gain_lower=gain_lower, note=note,
        evaluations=" ".join(dict.fromkeys(entry.first["eval_id"] for _, _, entries in chosen for entry in entries)),
    )  # fmt: skip
    if not blank.primary:
        return one
    if not gain_lower > 0:
        return replace(
            one, verdict="gated", note=_also(note, "the lower 95 % bound of G is not above 0: the model does not use its window")
        )
    if not math.isfinite(judged.value) and compare is judged:
        return replace(one, verdict="undecided", by_interval="undecided", p=1.0, note=_also(note, "a loss is not finite"))

    def against(bound: float):
        if not endpoint.confirm.of_gain:
            return judged, bound
        return estimate([*terms, *((-bound * weight, one) for weight, one in pool.gain_terms(chosen[0][2]))]), 0.0

    word, p = decide(endpoint.confirm, endpoint.refute, against)
    return replace(one, p=p, by_interval=word, verdict=word)


def _terms(measure: str, weight: float, cell, entries: list[Evaluation], pool: Pool) -> Terms:
    """Weighted means whose sum is the measure of one cell."""
    length = round(cell.at * entries[0].first["train_len"])
    if measure == "accuracy":
        one, _ = measured(entries, length, "correct", cell.task)
        return [(weight, one)]
    one, per = measured(entries, length, "nll", cell.task)
    if measure == "loss":
        return [(weight * per, one)]
    floors = [pool.reference(entry, "floor") for entry in entries]
    same_targets([*entries, *floors])
    floor, per_floor = exact(floors)
    return [(weight * per, one), (-weight * per_floor, floor)]


def _usable(chosen: list, pool: Pool, margin: float) -> tuple[Usable, Estimate]:
    """Usable length as a multiple of the training length, and the Estimate of the rise at the longest length.

    Raises Missing for fewer than three lengths.
    """
    ((_, cell, entries),) = chosen
    train_len = entries[0].first["train_len"]
    lengths = set.intersection(*({row["length"] for row in entry.rows} for entry in entries))
    multiples = sorted(length / train_len for length in lengths if length >= train_len)
    if len(multiples) < 3:
        raise Missing(f"{cell} has {len(multiples)} lengths from the training length on, a usable length needs a grid")
    rises = {multiple: estimate(_terms("rise", 1.0, replace(cell, at=multiple), entries, pool)) for multiple in multiples}
    return Usable(rises, margin), rises[multiples[-1]]


def _also(note: str, more: str) -> str:
    return f"{note}; {more}" if note else more
