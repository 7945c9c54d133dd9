"""Verdicts protected by a tolerance: the change of losses at which a decided interval meets its bound, against the actual change.

Holm's correction, after which a verdict must stand too, is not made again: p of a shifted effect is not known here.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from posbench.claims.judge import Finding
from posbench.claims.language import Claim, ClaimCell, Endpoint, endpoint_name
from posbench.statistics.verdict_rules import Rule

Where = tuple[str, float]  # eval_id, multiple of the training length
Allowed = Mapping[Where, float]  # nats/token


@dataclass(frozen=True)
class Guarded:
    """A decided endpoint, in nats/token: `room` up to where its interval meets the bound, and the `shift` of its effect that may pass."""

    name: str
    room: float
    shift: float

    @property
    def safe(self) -> bool:
        """True if no losses within the tolerance take the interval over the bound."""
        return self.shift < self.room


def guarded(findings: Sequence[Finding], claims: Sequence[Claim], allowed: Allowed, nll: float, here: Collection[Where]) -> list[Guarded]:
    """Decided endpoints in bits/byte that rest on a row of `here`.

    `allowed` holds the tolerances of reported rows, `nll` is that of a floor and of a row that is not in it. The shift is the worst case:
    every loss of every seed at its tolerance, each in the direction that hurts. What two cells share, such as a floor, counts once.
    """
    endpoints = {(claim.stage, endpoint_name(claim.id, one.name)): one for claim in claims for one in claim.primary}
    found = []
    for one in findings:
        name = endpoint_name(one.claim, one.endpoint)
        endpoint = endpoints.get((one.stage, name))
        if not endpoint or one.verdict not in ("confirmed", "refuted") or one.unit != "bits/byte":
            continue
        rule, rows = Rule.parse(one.confirm if one.verdict == "confirmed" else one.refute), _cell_rows(one, endpoint)
        if not rule.of_gain and any(row in here for _, _, of_cell in rows for row in of_cell):
            found.append(Guarded(name, rule.room(one.lower, one.upper) * one.nats, _shift(rows, allowed, nll, endpoint.measure == "rise")))
    return found


def _cell_rows(one: Finding, endpoint: Endpoint) -> list[tuple[float, ClaimCell, list[Where]]]:
    """(weight, cell, its rows, one for each seed) of a finding, whose evaluations are named method after method."""
    ids, seeds = one.evaluations.split(), len(one.seeds.split())
    methods = [str(replace(cell, times=1.0)) for _, cell in endpoint.cells]
    starts = {method: seeds * number for number, method in enumerate(dict.fromkeys(methods))}
    if len(ids) != seeds * len(starts):
        return []
    own = [ids[starts[method] :][:seeds] for method in methods]
    return [(weight, cell, [(name, cell.at) for name in names]) for (weight, cell), names in zip(endpoint.cells, own, strict=True)]


def _shift(rows: Sequence[tuple[float, ClaimCell, list[Where]]], allowed: Allowed, nll: float, floored: bool) -> float:
    """Largest change of an effect within the tolerances."""
    losses, floors = defaultdict(float), defaultdict(float)
    for weight, cell, of_cell in rows:
        losses[tuple(of_cell)] += weight
        floors[cell.encoding, str(cell.encoding_args), str(cell.config), cell.trained_scale, cell.protocol] += weight
    total = sum(abs(weight) * sum(allowed.get(row, nll) for row in of_cell) / len(of_cell) for of_cell, weight in losses.items())
    return total + (nll * sum(map(abs, floors.values())) if floored else 0.0)


def lines(found: Sequence[Guarded]) -> list[str]:
    """Sentence on the verdicts whose interval a tolerance does not protect; none where there are no verdicts."""
    if not found:
        return []
    loose = [f"{one.name} (room {one.room:.3f}, tolerance {one.shift:.3f} nats/token)" for one in found if not one.safe]
    said = f"in {len(found) - len(loose)} of the {len(found)} verdicts of results/claims on these rows the 95 % interval stays on its side "
    said += "of the bound whatever the tolerance lets pass (Holm's correction is not made again)"
    return [said + (f"; not guarded: {', '.join(loose)}" if loose else "")]
