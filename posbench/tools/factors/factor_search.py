"""LongRoPE's evolution of factors: a divisor for each pair of channels, and the number of first
positions that keep their angles.

Ding et al. 2024, arXiv 2402.13753, algorithm 1, table 4 and appendix A; what these leave open is as
in microsoft/LongRoPE, evolution/algorithms. An individual is (exact_first, factor of the fastest
pair, ..., of the slowest). Factors never fall from one pair to the next; but for those of the start
they lie on a grid of FACTOR_STEP, up to HIGHEST times the extension's factor. A mutation draws each
number again with probability MUTATED, a factor between its neighbours. A crossover takes numbers of
the other parent into the better one, each with half of that probability, until it is legal and new.
Parents are the best of all that were measured so far. Deviation: exact_first is mutated too, which
the published code leaves at the values of its start.

The loss of an individual is that of protocol fixed_targets at the target, in this process, on
validation text. Each is a line of a log as soon as it is measured, and equal settings draw equal
searches, so that a search goes on where it was stopped."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from posbench.common.errors import ConfigError
from posbench.common.files import append_lines, read_lines
from posbench.common.progress import Progress
from posbench.config.defaults import LONG
from posbench.evaluation.registry import protocol
from posbench.sweep.finetune import LONGER
from posbench.sweep.jobs import Job, plan_jobs
from posbench.sweep.verdict import judge_job

if TYPE_CHECKING:
    from posbench.data.corpus import Corpus

Individual = tuple[float, ...]  # exact_first, then a factor for each pair
FACTOR_STEP, HIGHEST, MUTATED = 0.01, 1.25, 0.3
WALKS = 20  # along all numbers, before a crossover is given up for a mutation
MUTATION_TRIES = 200  # mutations, before a space is taken to be exhausted
MANY_WINDOWS, FEW_WINDOWS = 64, 8  # by default, and of training lengths above LONG
EXACT_FIRST = (
    0,
    1,
    2,
    4,
    8,
    12,
    16,
    20,
    24,
    28,
    32,
    64,
    128,
    256,
)  # values of exact_first by default, up to the training length


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
    """Sizes of a search: those published for up to 512k tokens times the root of `budget`, which
    makes `budget` times the work.
    """
    published, least, root = (64, 32, 16, 16, 40), (4, 2, 1, 1, 1), math.sqrt(budget)
    return Sizes(
        *(max(low, round(root * size)) for size, low in zip(published, least, strict=True))
    )


def evolve(
    loss: Callable[[Individual], float],
    starts: Iterable[Individual],
    exact: list[int],
    highest: float,
    size: Sizes,
    seed: int,
) -> dict[Individual, float]:
    """Losses of all individuals of a search, in the order in which they were measured. Equal losses
    and seeds make equal searches.

    `starts` are measured first; the others of the first population are mutations of them. `exact`:
    values of exact_first. `highest`: of the factors."""
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


def mutated(
    one: Individual, exact: list[int], highest: float, rng: np.random.Generator
) -> Individual:
    """Mutation of an individual, legal as it is, and perhaps equal to it."""
    first, *factors = one
    if rng.random() < MUTATED:
        first = int(rng.choice(exact))
    for pair in range(len(factors)):
        if rng.random() < MUTATED:
            low, high = (
                factors[pair - 1] if pair else 1.0,
                factors[pair + 1] if pair + 1 < len(factors) else highest,
            )
            least, most = math.ceil(low / FACTOR_STEP - 1e-9), math.floor(high / FACTOR_STEP + 1e-9)
            if least <= most:
                factors[pair] = round(int(rng.integers(least, most + 1)) * FACTOR_STEP, 2)
    return (first, *factors)


def crossed(
    better: Individual, other: Individual, found: Iterable[Individual], rng: np.random.Generator
) -> Individual | None:
    """Legal crossover of two individuals that is not in `found`; None if there is none after
    WALKS.
    """
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
    return factors == sorted(factors)


def plan_search(cfg: dict) -> tuple[Job, list[int]]:
    """The job with one evaluation, that of the start at the target, and the values of exact_first.
    Raises ConfigError as the job does.
    """
    asked = cfg["evaluate"]
    (job,) = plan_jobs([{**cfg, "evaluate": {**asked, "floor": False}}])
    train_len = job.config.train.train_len
    target = cfg["target"] or LONGER * train_len
    if target <= train_len:
        raise ConfigError(
            f"target={target} is within the model's training length of {train_len:,} tokens: give a"
            " longer one."
        )
    exact = list(
        dict.fromkeys(cfg["exact_first"] or [first for first in EXACT_FIRST if first <= train_len])
    )
    if max(exact) > train_len:
        raise ConfigError(
            f"exact_first={max(exact)} exceeds the model's training length of {train_len:,} tokens:"
            " give no more."
        )
    evaluate = {
        **asked,
        "protocol": ["fixed_targets"],
        "lengths": [target],
        "max_length": target,
        "floor": False,
        "windows": asked["windows"] or (FEW_WINDOWS if train_len > LONG else MANY_WINDOWS),
        "targets": asked["targets"] or max(1, train_len // 2),
    }
    (job,) = plan_jobs(
        [
            {
                **cfg,
                "extension": {**cfg["extension"], "mode": "fixed", "target_len": target},
                "evaluate": evaluate,
            }
        ]
    )
    judged = judge_job(job)
    refused = judged.refused or next(
        (one.reason for one in judged.cells.values() if one.status in ("refused", "noop")), ""
    )
    if refused:
        raise ConfigError(refused)
    return job, exact


def search(
    job: Job, corpus: "Corpus", windows: int, exact: list[int], size: Sizes, log: Path
) -> tuple[dict[Individual, float], dict[str, float]]:
    """(losses of all individuals, losses by name of the model as it is and of the starts). What the
    log knows is not measured again.
    """
    from posbench.extensions.none import NoExtension
    from posbench.extensions.ntk import Ntk
    from posbench.extensions.ntk_by_parts import NtkByParts
    from posbench.model.build import load_model, pick_device
    from posbench.position.geometry import Span
    from posbench.position.instantiate import make
    from posbench.sweep.evaluate_cell import cell_evaluation

    (cell,), device = job.cells, pick_device(job.config.device)
    (target,) = cell.evaluate.lengths
    model = load_model(job.run, job.config, corpus.vocab_size, device).eval()
    given = cell_evaluation(model, corpus, cell, device)
    turning = (layer.encoding for layer in model.encoding.layers() if layer.extended)
    spectrum = next(found for one in turning if (found := one.spectrum_at(target)) is not None)
    span, first = Span(given.train_len, target, target), 0 if 0 in exact else exact[0]
    starts = {"pi": (first, *[span.factor] * len(spectrum.freq_F))}
    for name, extension in (("ntk", Ntk()), ("yarn", NtkByParts(ramp="index"))):
        divisor_F = spectrum.freq_F / extension.spectrum(spectrum, span).freq_F
        starts[name] = (
            first,
            *divisor_F.nan_to_num(span.factor).cummax(0).values.tolist(),
        )  # a pair that does not turn has any factor
    # A line that was cut short is left out.
    known = {
        (one["exact_first"], *one["factors"]): math.inf if one["nll"] is None else one["nll"]
        for one in read_lines(log)
    }

    def measure(**changed: object) -> float:
        nll_NS, _ = protocol(cell.protocol)(replace(given, **changed)).score(target)
        return float(nll_NS.mean(dtype="float64"))

    with Progress(size.total * windows * target, "search", "tokens") as progress:
        plain, best = measure(extension=NoExtension()), math.inf

        def loss(one: Individual) -> float:
            nonlocal best
            found = known.get(one)
            if found is None:
                extension = make(
                    {**cell.extension, "factors": list(one[1:]), "exact_first": one[0]}
                )
                found = measure(extension=extension, progress=progress.update)
                append_lines(log, [{"nll": found, "exact_first": one[0], "factors": one[1:]}])
            else:
                progress.update(windows * target, spared=True)
            best = min(best, found)
            progress.update(0, part=True, best=best)
            return found

        found = evolve(
            loss,
            starts.values(),
            exact,
            HIGHEST * target / given.train_len,
            size,
            cell.evaluate.seed,
        )
    found |= {
        one: nll for one, nll in known.items() if one[0] in exact
    }  # of searches with other sizes
    return found, {
        "as it is": plain,
        **{f"{name}'s factors": found[one] for name, one in starts.items()},
    }
