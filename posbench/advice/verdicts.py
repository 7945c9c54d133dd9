"""Recommendations: ranked on some documents, judged on others, by paired differences with their 95 % intervals. numpy alone.

Chosen on validation documents and judged on test documents, a recommendation is one question for each use, so nothing is corrected
for the number of options that were compared.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from posbench.statistics.crossed import Estimate
from posbench.statistics.usable_length import Usable

CONFIRMED, UNDECIDED, REFUTED = "confirmed", "undecided", "refuted"


def ranked(losses: Mapping[str, float], costs: Mapping[str, float] | None = None, tolerance: float = math.inf) -> list[str]:
    """Names by their loss, the best first, without those whose cost exceeds the tolerance or whose loss is not finite.

    Equal losses stay in the given order, so that what needs no setting is given first.
    """
    fit = [name for name, loss in losses.items() if math.isfinite(loss) and (costs or {}).get(name, 0.0) <= tolerance]
    return sorted(fit, key=losses.__getitem__)


def better(difference: Estimate) -> str:
    """Verdict on "the first of the two has the lower loss" by the interval of first minus second; undecided without an interval."""
    low, high = difference.interval()
    return CONFIRMED if high < 0 else REFUTED if low > 0 else UNDECIDED


def affordable(costs: Iterable[Estimate], tolerance: float) -> str:
    """Verdict on "no cost exceeds the tolerance" by the intervals; confirmed if there is no cost at all."""
    bounds = [cost.interval() for cost in costs]
    if any(low > tolerance for low, _ in bounds):
        return REFUTED
    return CONFIRMED if all(high <= tolerance for _, high in bounds) else UNDECIDED


def together(verdicts: Collection[str]) -> str:
    """Verdict on several statements at once: refuted if one is, confirmed if all are. No statement at all is undecided."""
    if REFUTED in verdicts:
        return REFUTED
    return CONFIRMED if verdicts and set(verdicts) == {CONFIRMED} else UNDECIDED


@dataclass(frozen=True)
class Reach:
    """Usable length on a grid of lengths: `surely` up to there within the margin, `perhaps` up to there; None: not even at the first."""

    surely: int | None
    perhaps: int | None


def reach(rises: Mapping[int, Estimate], margin: float) -> Reach:
    """Longest lengths up to which no upper bound, and no lower bound, of the difference to the floor exceeds the margin."""
    lengths = sorted(rises)
    before = dict(zip([*lengths, math.inf], [None, *lengths], strict=True))
    low, high = Usable(rises, margin).interval()
    return Reach(before[low], before[high])
