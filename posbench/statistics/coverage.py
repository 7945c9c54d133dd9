"""Coverage of the interval that decides, by simulation: python -m posbench.statistics.coverage FILE.csv [DRAWS]

Seeds, documents and their interaction are drawn from normal distributions around a mean of zero, and the intervals that hold zero are
counted. Documents are as many and as unequal as the headline's, where one of 291 holds 25 of 512 windows; shares of the variance are those
of results/reported/claims/claims.csv.
"""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from posbench.statistics.crossed import ANOVA_FROM, Sums, estimate
from posbench.statistics.verdict_rules import ALPHA

# Windows in a document: number of such documents, of the headline's 512 windows (posbench.evaluation.windows.choose).
DOCUMENTS = {1: 185, 2: 55, 3: 35, 4: 4, 5: 5, 6: 3, 7: 1, 10: 1, 11: 1, 25: 1}
TARGETS = 8  # in each window
# Share of the squared standard error over five seeds that the variance between seeds shows. Of the primaries of stage one the least is
# 0.004 (S03), the quartiles are 0.40, 0.77 and 0.92, and the largest is 1.00 (S07).
SEED_SHARES = (0.004, 0.4, 0.77, 0.92, 1.0)
MEASURED = 200  # draws whose width is measured, since a quantile takes longer than a p-value
SEEDS = (3, 5, 8)
RULES = {"two-way clustered": math.inf, "analysis of variance": 2}
USED = {s: "analysis of variance" if s >= ANOVA_FROM else "two-way clustered" for s in SEEDS}


@dataclass(frozen=True)
class Coverage:
    """Row of coverage.csv: share of the draws whose 95 % interval holds the truth."""

    seeds: int
    seed_share: float  # of the squared standard error over five seeds
    interaction: float  # share of the above that is an effect of one seed on one document
    documents: str  # "alike": all documents vary alike; "by targets": their variance falls with their number of targets
    rule: str
    used: bool  # True for the rule that is used with so many seeds
    draws: int
    coverage: float
    width: float  # mean half width, in standard errors of the estimate


def simulate(rng: np.random.Generator, draws: int, seeds: int, seed_share: float, interaction: float, by_targets: bool) -> Iterator[Sums]:
    """Sums over documents of targets whose true mean is zero, `draws` times."""
    n_C = TARGETS * np.repeat(list(DOCUMENTS), list(DOCUMENTS.values()))
    w_C = n_C / n_C.sum()
    of_document_C = (1 - seed_share) * (1 / w_C if by_targets else np.full(len(w_C), 1 / np.square(w_C).sum()))
    for _ in range(draws):
        d_SC = rng.normal(0, math.sqrt(5 * (1 - interaction) * seed_share), (seeds, 1)) + rng.normal(0, np.sqrt(of_document_C))
        d_SC = d_SC + rng.normal(0, np.sqrt(5 * interaction * seed_share / w_C), (seeds, len(w_C)))
        yield Sums(np.arange(len(w_C)), n_C, d_SC * n_C)


def coverage(seeds: int, seed_share: float, interaction: float, by_targets: bool, draws: int) -> list[Coverage]:
    """Coverage of both rules on the same draws. The generator is seeded by the world, so that equal calls agree."""
    rng = np.random.default_rng([seeds, round(1000 * seed_share), round(1000 * interaction), by_targets])
    true = math.sqrt(seed_share * 5 / seeds + 1 - seed_share)
    held, width = dict.fromkeys(RULES, 0), dict.fromkeys(RULES, 0.0)
    for draw, one in enumerate(simulate(rng, draws, seeds, seed_share, interaction, by_targets)):
        for rule, anova_from in RULES.items():
            found = estimate([(1.0, one)], anova_from)
            held[rule] += min(found.p_above(0), found.p_below(0)) >= ALPHA
            if draw < MEASURED:
                low, high = found.interval()
                width[rule] += (high - low) / 2 / true / min(draws, MEASURED)
    kind = "by targets" if by_targets else "alike"
    return [
        Coverage(seeds, seed_share, interaction, kind, rule, rule == USED[seeds], draws, held[rule] / draws, round(width[rule], 2))
        for rule in RULES
    ]


def main(path: str, draws: str = "2000") -> None:
    """Write the table of coverages."""
    from posbench.common.csv_records import to_csv
    from posbench.common.files import write_atomic

    worlds = [(s, share, both, kind) for s in SEEDS for share in SEED_SHARES for both in (0.0, 0.5) for kind in (False, True)]
    write_atomic(Path(path), to_csv([row for world in worlds for row in coverage(*world, int(draws))], Coverage))


if __name__ == "__main__":
    main(*sys.argv[1:])
