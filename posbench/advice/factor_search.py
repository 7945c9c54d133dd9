"""LongRoPE's evolution of factors: a divisor for each pair of channels, and the number of first positions that keep their angles.

Ding et al. 2024, arXiv 2402.13753, algorithm 1, table 4 and appendix A; what these leave open is as in microsoft/LongRoPE,
evolution/algorithms. An individual is (exact_first, factor of the fastest pair, ..., of the slowest). Factors never fall from one pair to
the next; but for those of the start they lie on a grid of FACTOR_STEP, up to HIGHEST times the extension's factor. A mutation draws each
number again with probability MUTATED, a factor between its neighbours. A crossover takes numbers of the other parent into the better one,
each with half of that probability, until it is legal and new. Parents are the best of all that were measured so far.
Deviation: exact_first is mutated too, which the published code leaves at the values of its start.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

Individual = tuple[float, ...]  # exact_first, then a factor for each pair
FACTOR_STEP, HIGHEST, MUTATED = 0.01, 1.25, 0.3
WALKS = 20  # along all numbers, before a crossover is given up for a mutation
MUTATION_TRIES = 200  # mutations, before a space is taken to be exhausted


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
    """Sizes of a search: those published for up to 512k tokens times the root of `budget`, which makes `budget` times the work."""
    published, least, root = (64, 32, 16, 16, 40), (4, 2, 1, 1, 1), math.sqrt(budget)
    return Sizes(*(max(low, round(root * size)) for size, low in zip(published, least, strict=True)))


def evolve(
    loss: Callable[[Individual], float], starts: Iterable[Individual], exact: list[int], highest: float, size: Sizes, seed: int
) -> dict[Individual, float]:
    """Losses of all individuals of a search, in the order in which they were measured. Equal losses and seeds make equal searches.

    `starts` are measured first; the others of the first population are mutations of them. `exact`: values of exact_first. `highest`: of
    the factors.
    """
    rng, starts = np.random.default_rng(seed), list(dict.fromkeys(starts))
    found = {one: loss(one) for one in starts}

    def add(child: Individual | None, parents: list[Individual]) -> None:
        for _ in range(MUTATION_TRIES):
            child = child or mutated(parents[rng.integers(len(parents))], exact, highest, rng)
            if child not in found:
                found[child] = loss(child)
                return
            child = None

    for _ in range(size.population - len(starts)):
        add(None, starts)
    for _ in range(size.rounds):
        parents = sorted(found, key=found.__getitem__)[: size.parents]
        for _ in range(size.mutations):
            add(None, parents)
        for _ in range(size.crossovers if len(parents) > 1 else 0):
            better, other = sorted(rng.choice(len(parents), 2, replace=False))
            add(crossed(parents[better], parents[other], found, rng), [parents[better]])
    return found


def mutated(one: Individual, exact: list[int], highest: float, rng: np.random.Generator) -> Individual:
    """Mutation of an individual, legal as it is, and perhaps equal to it."""
    first, *factors = one
    if rng.random() < MUTATED:
        first = int(rng.choice(exact))
    for pair in range(len(factors)):
        if rng.random() < MUTATED:
            low, high = factors[pair - 1] if pair else 1.0, factors[pair + 1] if pair + 1 < len(factors) else highest
            least, most = math.ceil(low / FACTOR_STEP - 1e-9), math.floor(high / FACTOR_STEP + 1e-9)
            if least <= most:
                factors[pair] = round(int(rng.integers(least, most + 1)) * FACTOR_STEP, 2)
    return (first, *factors)


def crossed(better: Individual, other: Individual, found: Iterable[Individual], rng: np.random.Generator) -> Individual | None:
    """Legal crossover of two individuals that is not in `found`; None if there is none after WALKS."""
    child = list(better)
    for _ in range(WALKS):
        for place in range(len(child)):
            if rng.random() < MUTATED / 2:
                child[place] = other[place]
                if tuple(child) not in found and rising(child):
                    return tuple(child)
    return None


def rising(one: Iterable[float]) -> bool:
    """True if the factors of an individual never fall from one pair to the next."""
    _, *factors = one
    return all(low <= high for low, high in pairwise(factors))
