"""Verdicts: an interval against a given margin, and corrections over all questions of one family:
Holm's, Benjamini and Hochberg's.

One 95 % interval decides everything. "Flat" and "no loss" are equivalences: the whole interval
inside +-margin, which is stricter than two one-sided tests at 5 % (their interval is the 90 % one)
and leaves one interval to be read."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from posbench.common.errors import ConfigError
from posbench.statistics.crossed import Estimate
from posbench.statistics.usable_length import Usable

ALPHA = 0.05
N_BOUNDS_OF_KIND = {"above": 1, "below": 1, "within": 1, "between": 2, "outside": 2}
Judged = Estimate | Usable


@dataclass(frozen=True)
class Rule:
    """Place where the interval must lie: `above 0.1`, `below -0.1`, `within 0.02` (of zero),
    `between 1.1 1.3`, `outside 1.1 1.5`.

    With `G` at the end (`above 0.5 G`) bounds are shares of what the model gains from the second
    half of its window."""

    kind: str
    bounds: tuple[float, ...]
    of_gain: bool = False

    @classmethod
    def parse(cls, text: str) -> "Rule":
        """Read a rule as written above. Raises ConfigError for any other text.

        >>> Rule.parse("within 0.02")
        Rule(kind='within', bounds=(-0.02, 0.02), of_gain=False)
        """
        kind, *numbers = str(text).split() or [""]
        of_gain = numbers[-1:] == ["G"]  # bounds in shares of G, the gain from the half window
        if of_gain:
            numbers.pop()
        try:
            bounds = tuple(map(float, numbers))
        except ValueError:
            bounds = ()
        n_bounds = N_BOUNDS_OF_KIND.get(kind)  # None for an unknown kind
        are_finite = all(map(math.isfinite, bounds))
        are_legal = n_bounds == len(bounds) and list(bounds) == sorted(bounds) and are_finite
        if not are_legal or (kind == "within" and bounds[0] <= 0):
            raise ConfigError(
                f"the rule '{text}' must be one of: above X, below X, within X, between X Y,"
                " outside X Y, each with G or without."
            )
        if kind == "within":
            bounds = (-bounds[0], bounds[0])
        return cls(kind, bounds, of_gain)

    def __str__(self) -> str:
        bounds = self.bounds[1:] if self.kind == "within" else self.bounds
        words = [self.kind, *(f"{bound:g}" for bound in bounds)]
        if self.of_gain:
            words.append("G")
        return " ".join(words)

    def holds(self, x: float) -> bool:
        """True if the number `x` lies where the interval must."""
        low, high = self.bounds[0], self.bounds[-1]
        if self.kind == "above":
            return x > low
        if self.kind == "below":
            return x < high
        if self.kind == "outside":
            return x < low or x > high
        return low < x < high

    def p(self, judged: Callable[[float], tuple[Judged, float]]) -> float:
        """Smallest alpha at which the (1 - alpha) interval obeys the rule. `judged(bound)` returns
        (what to compare, with which number).
        """

        def beyond(side: str, bound: float) -> float:
            estimate, number = judged(bound)
            return estimate.p_above(number) if side == "above" else estimate.p_below(number)

        low, high = self.bounds[0], self.bounds[-1]
        if self.kind in ("above", "below"):
            return beyond(self.kind, low)
        if self.kind == "outside":  # one of the two sides is enough, else both are needed
            return min(beyond("below", low), beyond("above", high))
        return max(beyond("above", low), beyond("below", high))


def are_exclusive(confirm: Rule, refute: Rule) -> bool:
    """True if no number satisfies both rules."""
    edges = sorted({*confirm.bounds, *refute.bounds})
    inside = [(a + b) / 2 for a, b in itertools.pairwise(edges)]
    candidates = (edges[0] - 1, *edges, *inside, edges[-1] + 1)  # one in each region
    return not any(confirm.holds(x) and refute.holds(x) for x in candidates)


def n_sides(confirm: Rule, refute: Rule) -> int:
    """1 if the rules are the two sides of one bound, else 2.

    Whatever is true, then only one of the two verdicts can be wrong, so that each may use all of
    alpha. With a gap between the rules both are wrong in it."""
    opposite = {confirm.kind, refute.kind} == {"above", "below"}
    return 1 if opposite and confirm.bounds == refute.bounds else 2


def decide(
    confirm: Rule, refute: Rule, judged: Callable[[float], tuple[Judged, float]], of_sides: int = 2
) -> tuple[str, float]:
    """(confirmed, refuted or undecided; p, the smallest alpha at which it is decided), by the 95 %
    interval or, of one side, the 90 % one.

    p is the smaller of both rules' p: each rule costs half of alpha on its side, so p is two-sided.
    With `of_sides` 1 it is half of that."""
    p, word = min((confirm.p(judged), "confirmed"), (refute.p(judged), "refuted"))
    # With p = 1 the rules are decided at no alpha, and half of it would say that they were.
    if of_sides == 1 and p < 1:
        p /= 2
    return word if p < ALPHA else "undecided", p


def holm(ps: Sequence[float], groups: Sequence | None = None) -> list[float]:
    """Holm's (1979) adjusted p-values, in the given order. Those below alpha are decided with the
    family's error held at alpha.

    >>> holm([0.01, 0.2, 0.03])
    [0.03, 0.2, 0.06]

    `groups`: equal values mark questions that are read off one interval, which cost alpha once. The
    factor of a p is the number of groups of which it or a larger p is left. A one-sided p, of rules
    that are the two sides of one bound, needs a group of its own."""
    # Why the error is held:
    # 1. If an interval holds the truth, all that is read off it is right: a group costs alpha once.
    # 2. A group that may give a wrong verdict keeps a p until it gives one. So the factor of the
    #    first wrong verdict is at least the number of such groups, as in Holm's own proof.
    # 3. Of one side there is no such interval. But at most one of the two verdicts is wrong, and p
    #    is below alpha in a share alpha of the draws: alpha once as well.
    order = sorted(range(len(ps)), key=ps.__getitem__)
    if groups is None:
        groups = range(len(ps))
    adjusted = [0.0] * len(ps)
    worst = 0.0
    for rank, index in enumerate(order):
        n_groups = len({groups[other] for other in order[rank:]})
        worst = max(worst, min(1.0, n_groups * ps[index]))
        adjusted[index] = worst
    return adjusted


def benjamini_hochberg(ps: Sequence[float]) -> list[float]:
    """q-values of Benjamini and Hochberg (1995), in the given order: deciding all below q errs in a
    share of q of them on average.
    """
    order = sorted(range(len(ps)), key=ps.__getitem__, reverse=True)
    adjusted = [0.0] * len(ps)
    least = 1.0
    for place, index in enumerate(order):
        least = min(least, ps[index] * len(ps) / (len(ps) - place))
        adjusted[index] = least
    return adjusted
