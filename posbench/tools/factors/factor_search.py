"""LongRoPE's evolution of factors: a divisor for each pair of channels, and exact first positions.

exact_first is the number of first positions that keep their angles.
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
    from posbench.model.gpt import GPT
    from posbench.model.inplace.reader import Reader

Individual = tuple[float, ...]  # exact_first, then a factor for each pair
FACTOR_STEP = 0.01
HIGHEST = 1.25
MUTATED = 0.3
ROUNDING = 1e-9  # of a factor in steps
WALKS = 20  # along all numbers, before a crossover is given up for a mutation
MUTATION_TRIES = 200  # mutations, before a space is taken to be exhausted
MANY_WINDOWS = 64  # by default
FEW_WINDOWS = 8  # of training lengths above LONG
# values of exact_first by default, up to the training length
EXACT_FIRST = (0, 1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 64, 128, 256)


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
    exact: list[int],
    highest: float,
    sizes: Sizes,
    seed: int,
) -> dict[Individual, float]:
    """Losses of all individuals of a search, in the order in which they were measured.

    Equal losses and seeds make equal searches. `starts` are measured first; the others of the first
    population are mutations of them. `exact`: values of exact_first. `highest`: of the factors."""
    rng = np.random.default_rng(seed)
    starts = list(dict.fromkeys(starts))
    losses = {start: loss(start) for start in starts}

    def add_mutation(parents: list[Individual]) -> None:
        for _ in range(MUTATION_TRIES):
            child = mutated(parents[rng.integers(len(parents))], exact, highest, rng)
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
            child = crossed(parents[better], parents[other], losses, rng)
            if child is None:
                add_mutation([parents[better]])
            else:
                losses[child] = loss(child)
    return losses


def mutated(
    individual: Individual, exact: list[int], highest: float, rng: np.random.Generator
) -> Individual:
    """Mutation of an individual, legal as it is, and perhaps equal to it."""
    first, *factors = individual
    if rng.random() < MUTATED:
        first = int(rng.choice(exact))
    for pair in range(len(factors)):
        if rng.random() < MUTATED:
            low = factors[pair - 1] if pair > 0 else 1.0
            high = factors[pair + 1] if pair + 1 < len(factors) else highest
            lowest_step = math.ceil(low / FACTOR_STEP - ROUNDING)
            highest_step = math.floor(high / FACTOR_STEP + ROUNDING)
            if lowest_step <= highest_step:
                step = int(rng.integers(lowest_step, highest_step + 1))
                factors[pair] = round(step * FACTOR_STEP, 2)
    return (first, *factors)


def crossed(
    better: Individual, other: Individual, measured: Iterable[Individual], rng: np.random.Generator
) -> Individual | None:
    """Legal crossover of two individuals that is not `measured`; None if WALKS find none."""
    child = list(better)
    for _ in range(WALKS):
        for place in range(len(child)):
            if rng.random() < MUTATED / 2:
                child[place] = other[place]
                if tuple(child) not in measured and rising(child):
                    return tuple(child)
    return None


def rising(individual: Iterable[float]) -> bool:
    """True if the factors of an individual never fall from one pair to the next.

    >>> rising((4, 1.0, 1.5)), rising((4, 1.5, 1.0))
    (True, False)
    """
    _, *factors = individual
    return factors == sorted(factors)


def plan_search(raw: dict) -> tuple[Job, list[int]]:
    """The job with one evaluation, that of the start at the target, and the values of exact_first.

    Raises ConfigError as the job does.
    """
    evaluate = {**raw["evaluate"], "floor": False}
    (job,) = plan_jobs([{**raw, "evaluate": evaluate}])  # which says the training length
    train_len = job.config.train.train_len
    target = raw["target"] or LONGER * train_len
    if target <= train_len:
        raise ConfigError(
            f"target={target} is within the model's training length of {train_len:,} tokens: give a"
            " longer one."
        )
    exact = raw["exact_first"] or [first for first in EXACT_FIRST if first <= train_len]
    exact = list(dict.fromkeys(exact))
    if max(exact) > train_len:
        raise ConfigError(
            f"exact_first={max(exact)} exceeds the model's training length of {train_len:,} tokens:"
            " give no more."
        )
    usual_windows = FEW_WINDOWS if train_len > LONG else MANY_WINDOWS
    evaluate |= {
        "protocol": ["fixed_targets"],
        "lengths": [target],
        "max_length": target,
        "windows": evaluate["windows"] or usual_windows,
        "targets": evaluate["targets"] or max(1, train_len // 2),
    }
    extension = {**raw["extension"], "mode": "fixed", "target_len": target}
    (job,) = plan_jobs([{**raw, "extension": extension, "evaluate": evaluate}])
    _check_legal(job)
    return job, exact


def _check_legal(job: Job) -> None:
    """Raise ConfigError for a job that is refused, or whose evaluation is refused or a no-op."""
    judged = judge_job(job)
    if judged.refused:
        raise ConfigError(judged.refused)
    for verdict in judged.cells.values():
        if verdict.status in ("refused", "noop"):
            raise ConfigError(verdict.reason)


def search(
    job: Job, corpus: "Corpus", windows: int, exact: list[int], sizes: Sizes, log: Path
) -> tuple[dict[Individual, float], dict[str, float]]:
    """(losses of all individuals, losses by name of the model as it is and of the starts).

    What the log knows is not measured again.
    """
    from posbench.extensions.none import NoExtension
    from posbench.model.build import load_model, pick_device
    from posbench.position.instantiate import make
    from posbench.sweep.evaluate_cell import cell_evaluation

    (cell,) = job.cells
    (target,) = cell.evaluate.lengths
    device = pick_device(job.config.device)
    model = load_model(job.run, job.config, corpus.vocab_size, device).eval()
    evaluation = cell_evaluation(model, corpus, cell, device)
    starts = _starts(model, evaluation.train_len, target, first=0 if 0 in exact else exact[0])
    logged = _logged_losses(log)

    def measure(**changes: object) -> float:
        nll_NS, _ = protocol(cell.protocol)(replace(evaluation, **changes)).score(target)
        return float(nll_NS.mean(dtype="float64"))

    with Progress(sizes.total * windows * target, "search", "tokens") as progress:
        plain_loss = measure(extension=NoExtension())
        best = math.inf

        def loss(individual: Individual) -> float:
            nonlocal best
            nll = logged.get(individual)
            if nll is None:
                first, *factors = individual
                arguments = {"factors": factors, "exact_first": first}
                extension = make({**cell.extension, **arguments})
                nll = measure(extension=extension, progress=progress.update)
                append_lines(log, [{"nll": nll, "exact_first": first, "factors": factors}])
            else:
                progress.update(windows * target, spared=True)
            best = min(best, nll)
            progress.update(0, part=True, best=best)
            return nll

        highest = HIGHEST * target / evaluation.train_len
        losses = evolve(loss, starts.values(), exact, highest, sizes, cell.evaluate.seed)
    for individual, nll in logged.items():  # of searches with other sizes
        if individual[0] in exact:
            losses[individual] = nll
    start_losses = {f"{name}'s factors": losses[start] for name, start in starts.items()}
    return losses, {"as it is": plain_loss, **start_losses}


def _logged_losses(log: Path) -> dict[Individual, float]:
    """Losses of the individuals in a log, infinite where it has none.

    A line that was cut short is left out.
    """
    losses = {}
    for line in read_lines(log):
        individual = (line["exact_first"], *line["factors"])
        losses[individual] = math.inf if line["nll"] is None else line["nll"]
    return losses


def _starts(
    model: "GPT | Reader", train_len: int, target: int, first: int
) -> dict[str, Individual]:
    """{name: individual} of the starts: the factors of PI, of NTK-aware scaling and of YaRN."""
    from posbench.extensions.ntk import Ntk
    from posbench.extensions.ntk_by_parts import NtkByParts
    from posbench.position.geometry import Span

    spectra = [
        layer.encoding.spectrum_at(target) for layer in model.encoding.layers() if layer.extended
    ]
    spectrum = next(spectrum for spectrum in spectra if spectrum is not None)
    span = Span(train_len, target, target)
    starts = {"pi": (first, *[span.factor] * len(spectrum.freq_F))}
    for name, extension in (("ntk", Ntk()), ("yarn", NtkByParts(ramp="index"))):
        divisor_F = spectrum.freq_F / extension.spectrum(spectrum, span).freq_F
        # a pair that does not turn has any factor
        rising_F = divisor_F.nan_to_num(span.factor).cummax(0).values
        starts[name] = (first, *rising_F.tolist())
    return starts
