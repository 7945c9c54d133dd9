"""LongRoPE's evolution of factors: a divisor for each pair of channels, and exact first positions.

exact_first is the number of first positions that keep their angles.
Ding et al. 2024, arXiv 2402.13753, algorithm 1, table 4 and appendix A; what these leave open is as
in microsoft/LongRoPE, evolution/algorithms. An individual is (exact_first, factor of the fastest
pair, ..., of the slowest). Factors never fall from one pair to the next; but for those of the start
they lie on a grid of FACTOR_STEP, up to MOST_OVER_FACTOR times the extension's factor. A mutation
draws each number again with probability MUTATION_PROBABILITY, a factor between its neighbours. A
crossover takes numbers of the other parent into the better one, each with half of that probability,
until it is legal and new. Parents are the best of all that were measured so far. Deviation:
exact_first is mutated too, which the published code leaves at the values of its start. critical.py
has the space of LongRoPE2.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

Individual = tuple[float, ...]  # exact_first, then a factor for each pair
FACTOR_STEP = 0.01
MOST_OVER_FACTOR = 1.25
MUTATION_PROBABILITY = 0.3
STEP_ROUNDING = 1e-9  # of a factor in steps: 1.1 / 0.01 is a little above 110
MOST_WALKS = 20  # along all numbers, before a crossover is given up for a mutation
MUTATION_TRIES = 200  # mutations, before a space is taken to be exhausted


@dataclass(frozen=True)
class Space:
    """Legal individuals: values of the first number, none if no mutation draws it, and bounds of
    the factors that are searched.
    """

    first_values: Sequence[int]
    highest: float
    lowest: float = 1.0
    name: ClassVar[str] = ""  # "" for LongRoPE's
    first_number_key: ClassVar[str] = "exact_first"  # in the log

    def starts(
        self, published: Mapping[str, Sequence[float]], turns_F: "Tensor", seed: int
    ) -> dict[str, Individual]:
        """{name: individual} of the first ones that are measured.

        `published` are the factors of other methods by name, `turns_F` the turns of each pair in
        training [F], and `seed` for spaces that draw their starts."""
        # The published methods keep no position exact: 0, if it is among the values to search.
        exact_first = 0 if 0 in self.first_values else self.first_values[0]
        return {name: (exact_first, *factors) for name, factors in published.items()}

    def exact_first(self, individual: Individual) -> int:
        """Number of first positions that keep their angles."""
        return int(individual[0])

    def may_be_measured_here(self, individual: Individual) -> bool:
        """True if this search may have measured an individual of the same model and text."""
        return individual[0] in self.first_values

    def first_searched(self, first: int) -> int:
        """First pair whose factor is searched, of an individual with this first number."""
        return 0

    def with_implied_factors(self, individual: Individual) -> Individual:
        """The individual with the factors that follow from the searched ones."""
        return individual

    def is_legal(self, individual: Individual) -> bool:
        """True if an individual that is completed is legal."""
        return never_falls(individual)


@dataclass(frozen=True)
class Sizes:
    """Sizes of a search."""

    population: int
    parents: int
    mutations: int
    crossovers: int
    rounds: int

    @property
    def total(self) -> int:
        """Number of individuals that are measured, at most."""
        return self.population + self.rounds * (self.mutations + self.crossovers)


def search_sizes(budget: float) -> Sizes:
    """Sizes of a search: those published for up to 512k tokens times the root of `budget`.

    So `budget` multiplies the work.

    >>> search_sizes(0.25)
    Sizes(population=32, parents=16, mutations=8, crossovers=8, rounds=20)
    """
    root = math.sqrt(budget)
    return Sizes(
        population=max(4, round(64 * root)),
        parents=max(2, round(32 * root)),
        mutations=max(1, round(16 * root)),
        crossovers=max(1, round(16 * root)),
        rounds=max(1, round(40 * root)),
    )


def evolve(
    loss: Callable[[Individual], float],
    starts: Iterable[Individual],
    space: Space,
    sizes: Sizes,
    seed: int,
) -> dict[Individual, float]:
    """Losses of all individuals of a search, in the order in which they were measured.

    Equal losses and seeds make equal searches. `starts` are measured first; the others of the first
    population are mutations of them."""
    rng = np.random.default_rng(seed)
    starts = list(dict.fromkeys(starts))
    losses = {start: loss(start) for start in starts}

    def add_mutation(parents: list[Individual]) -> None:
        for _ in range(MUTATION_TRIES):
            child = mutation(parents[rng.integers(len(parents))], space, rng)
            if child not in losses:
                losses[child] = loss(child)
                return

    for _ in range(sizes.population - len(starts)):
        add_mutation(starts)
    for _ in range(sizes.rounds):
        parents = sorted(losses, key=losses.__getitem__)[: sizes.parents]
        for _ in range(sizes.mutations):
            add_mutation(parents)
        for _ in range(sizes.crossovers if len(parents) > 1 else 0):
            # Parents are ordered by loss, so the lower index is the better one.
            better, other = sorted(rng.choice(len(parents), 2, replace=False))
            child = crossover(parents[better], parents[other], losses, space, rng)
            if child is None:  # all that were tried are illegal, or measured already
                add_mutation([parents[better]])
            else:
                losses[child] = loss(child)
    return losses


def mutation(individual: Individual, space: Space, rng: np.random.Generator) -> Individual:
    """Mutation of an individual, legal as it is, and perhaps equal to it."""
    first_number, *factors = individual  # exact_first, or the critical pair, which is not drawn
    if space.first_values and rng.random() < MUTATION_PROBABILITY:
        first_number = int(rng.choice(space.first_values))
    begin = space.first_searched(first_number)  # earlier pairs have factors that follow from it
    for pair in range(begin, len(factors)):
        if rng.random() < MUTATION_PROBABILITY:
            # between its neighbours, since factors never fall
            low = factors[pair - 1] if pair > begin else space.lowest
            high = factors[pair + 1] if pair + 1 < len(factors) else space.highest
            lowest_step = math.ceil(low / FACTOR_STEP - STEP_ROUNDING)
            highest_step = math.floor(high / FACTOR_STEP + STEP_ROUNDING)
            if lowest_step <= highest_step:
                step = int(rng.integers(lowest_step, highest_step + 1))
                factors[pair] = round(step * FACTOR_STEP, 2)  # FACTOR_STEP has two decimals
    return space.with_implied_factors((first_number, *factors))


def crossover(
    better: Individual,
    other: Individual,
    measured: Collection[Individual],
    space: Space,
    rng: np.random.Generator,
) -> Individual | None:
    """Legal crossover of two individuals that is not `measured`; None if MOST_WALKS find none."""
    child = list(better)  # keeps what each walk takes from the other parent
    for _ in range(MOST_WALKS):
        for place in range(len(child)):
            # half as often as a mutation: see the docstring of the module
            if rng.random() < MUTATION_PROBABILITY / 2:
                child[place] = other[place]
                completed = space.with_implied_factors(tuple(child))
                if completed not in measured and space.is_legal(completed):
                    return completed
    return None


def never_falls(individual: Iterable[float]) -> bool:
    """True if the factors of an individual never fall from one pair to the next.

    >>> never_falls((4, 1.0, 1.5)), never_falls((4, 1.5, 1.0))
    (True, False)
    """
    _first_number, *factors = individual  # exact_first or the critical pair: no factor
    return factors == sorted(factors)
