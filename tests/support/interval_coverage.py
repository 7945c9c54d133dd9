"""Coverage of the interval that decides, by simulation:
python tests/support/interval_coverage.py FILE.csv [DRAWS]

Seeds, documents and their interaction are drawn from normal distributions around a mean of zero,
and the intervals that hold zero are counted. Documents are as many and as unequal as the
headline's, where one of 291 holds 25 of 512 windows; shares of the variance are those of
results/reported/claims/claims.csv."""

import itertools
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from posbench.statistics.crossed import ANOVA_FROM, Sums, estimate
from posbench.statistics.verdict_rules import ALPHA

# Windows in a document: number of such documents, of the headline's 512 windows
# (posbench.evaluation.windows.choose_windows).
DOCUMENTS = {1: 185, 2: 55, 3: 35, 4: 4, 5: 5, 6: 3, 7: 1, 10: 1, 11: 1, 25: 1}
TARGETS = 8  # in each window
# Share of the squared standard error over five seeds that the variance between seeds shows. Of the
# primaries of stage one the least is 0.004 (S03), the quartiles are 0.40, 0.77 and 0.92, and the
# largest is 1.00 (S07).
SEED_SHARES = (0.004, 0.4, 0.77, 0.92, 1.0)
MEASURED = 200  # draws whose width is measured, since a quantile takes longer than a p-value
SEEDS = (3, 5, 8)
RULES = {"two-way clustered": math.inf, "analysis of variance": 2}
USED = {s: "analysis of variance" if s >= ANOVA_FROM else "two-way clustered" for s in SEEDS}


def simulate(
    rng: np.random.Generator,
    draws: int,
    seeds: int,
    seed_share: float,
    interaction: float,
    by_targets: bool,
) -> Iterator[Sums]:
    """Sums over documents of targets whose true mean is zero, `draws` times."""
    n_C = TARGETS * np.repeat(list(DOCUMENTS), list(DOCUMENTS.values()))
    w_C = n_C / n_C.sum()
    spread_C = 1 / w_C if by_targets else np.full(len(w_C), 1 / np.square(w_C).sum())
    variance_C = (1 - seed_share) * spread_C
    seed_sd = math.sqrt(5 * (1 - interaction) * seed_share)
    interaction_sd_C = np.sqrt(5 * interaction * seed_share / w_C)
    for _ in range(draws):
        d_SC = rng.normal(0, seed_sd, (seeds, 1)) + rng.normal(0, np.sqrt(variance_C))
        d_SC = d_SC + rng.normal(0, interaction_sd_C, (seeds, len(w_C)))
        yield Sums(np.arange(len(w_C)), n_C, d_SC * n_C)


def coverage(
    seeds: int, seed_share: float, interaction: float, by_targets: bool, draws: int
) -> list[dict]:
    """Rows of coverage.csv: both rules on the same draws. The generator is seeded by the world, so
    that equal calls agree.

    `seed_share`: of the squared standard error over five seeds, of which `interaction` is the share
    that is an effect of one seed on one document; documents vary alike, or less the more targets
    they have. `used`: the rule is used with so many seeds; `coverage`: share of the draws whose 95
    % interval holds the truth; `width`: mean half width in standard errors of the estimate."""
    rng = np.random.default_rng(
        [seeds, round(1000 * seed_share), round(1000 * interaction), by_targets]
    )
    standard_error = math.sqrt(seed_share * 5 / seeds + 1 - seed_share)
    n_held = dict.fromkeys(RULES, 0)
    width = dict.fromkeys(RULES, 0.0)
    sums_of_draws = simulate(rng, draws, seeds, seed_share, interaction, by_targets)
    for draw, sums in enumerate(sums_of_draws):
        for rule, anova_from in RULES.items():
            result = estimate([(1.0, sums)], anova_from)
            n_held[rule] += min(result.p_above(0), result.p_below(0)) >= ALPHA
            if draw < MEASURED:
                low, high = result.interval()
                width[rule] += (high - low) / 2 / standard_error / min(draws, MEASURED)
    world = {
        "seeds": seeds,
        "seed_share": seed_share,
        "interaction": interaction,
        "documents": "by targets" if by_targets else "alike",
    }
    return [
        {
            **world,
            "rule": rule,
            "used": rule == USED[seeds],
            "draws": draws,
            "coverage": n_held[rule] / draws,
            "width": round(width[rule], 2),
        }
        for rule in RULES
    ]


def main(path: str, draws: str = "2000") -> None:
    """Write the table of coverages."""
    import pandas

    from posbench.common.files import write_atomic

    worlds = itertools.product(SEEDS, SEED_SHARES, (0.0, 0.5), (False, True))
    rows = [row for world in worlds for row in coverage(*world, int(draws))]
    write_atomic(Path(path), pandas.DataFrame(rows).to_csv(index=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
