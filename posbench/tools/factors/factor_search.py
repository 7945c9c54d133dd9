"""The search for LongRoPE's factors: its job, and the losses of sets of factors.

The loss of an individual (evolution.py) is that of protocol fixed_targets at the target, in this
process, on validation text, or with `objective: needle` that of answers (needles.py). Each is a
line of a log as soon as it is measured, and equal settings draw equal searches, so that a search
goes on where it was stopped."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from posbench.common.errors import ConfigError
from posbench.common.files import append_lines, read_lines
from posbench.common.progress import Progress
from posbench.config.defaults import LONG_TRAINING
from posbench.config.typed_args import shown
from posbench.evaluation.registry import protocol
from posbench.sweep.finetune import DEFAULT_LENGTH_FACTOR
from posbench.sweep.jobs import Job, plan_jobs
from posbench.sweep.verdict import judge_job
from posbench.tools.factors.critical import critical_space
from posbench.tools.factors.evolution import MOST_OVER_FACTOR, Individual, Sizes, Space, evolve
from posbench.tools.factors.needles import draw_needles, needle_loss, needle_settings
from posbench.tools.request import TextToRead

if TYPE_CHECKING:
    from posbench.model.gpt import GPT
    from posbench.model.inplace.reader import Reader
    from posbench.position.geometry import Spectrum
    from posbench.position.interfaces import Extension

USUAL_WINDOWS = 64  # by default
USUAL_LONG_WINDOWS = 8  # of training lengths above LONG_TRAINING
# values of exact_first by default, up to the training length
USUAL_EXACT_FIRST = (0, 1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 64, 128, 256)


class SearchPlan(NamedTuple):
    """A job whose one evaluation is that of the usual factors at the target, and what is searched.

    `needles`: the objective is the loss of answers."""

    job: Job
    target: int
    space: Space
    needles: bool

    @property
    def name(self) -> str:
        """Name of the yaml, such as "longrope_256_needle_critical"."""
        words = ["longrope", str(self.target)]
        if self.needles:
            words.append("needle")
        if self.space.name:
            words.append(self.space.name)
        return "_".join(words)


def plan_search(raw: dict) -> SearchPlan:
    """The search of a configuration. Raises ConfigError as the job does."""
    evaluate = {**raw["evaluate"], "floor": False}  # the factors do not change the floor
    tasks = evaluate.pop("tasks", None)
    (job,) = plan_jobs([{**raw, "evaluate": evaluate}])  # which says the training length
    train_len = job.config.train.train_len
    target = raw["target"] or DEFAULT_LENGTH_FACTOR * train_len
    if target <= train_len:
        raise ConfigError(
            f"target={target} is within the model's training length of {train_len:,} tokens: give a"
            " longer one."
        )
    needles = raw["objective"] == "needle"
    usual_windows = USUAL_LONG_WINDOWS if train_len > LONG_TRAINING else USUAL_WINDOWS
    evaluate |= {
        "protocol": ["fixed_targets"],
        "lengths": [target],
        "max_length": target,
        "windows": evaluate["windows"] or usual_windows,
        "targets": evaluate["targets"] or max(1, train_len // 2),
    }
    if needles:
        evaluate |= needle_settings(job, tasks)
    extension = {**raw["extension"], "mode": "fixed", "target_len": target}
    (job,) = plan_jobs([{**raw, "extension": extension, "evaluate": evaluate}])
    _check_legal(job)
    space = _space_to_search(raw["pairs"], raw["exact_first"], train_len, target)
    return SearchPlan(job, target, space, needles)


def _space_to_search(
    pairs: str, exact_first: list[int] | None, train_len: int, target: int
) -> Space:
    """The space of a search. Raises ConfigError for values of exact_first that cannot be."""
    factor = target / train_len
    if pairs == "critical":
        if exact_first not in (None, [0]):
            raise ConfigError(
                f"exact_first={shown(exact_first)} is for pairs=all, and pairs=critical leaves no"
                " position exact: leave one of them out."
            )
        return critical_space(factor)
    usual = [first for first in USUAL_EXACT_FIRST if first <= train_len]
    exact = list(dict.fromkeys(exact_first or usual))
    if max(exact) > train_len:
        raise ConfigError(
            f"exact_first={max(exact)} exceeds the model's training length of {train_len:,} tokens:"
            " give no more."
        )
    return Space(first_values=exact, highest=MOST_OVER_FACTOR * factor)


def _check_legal(job: Job) -> None:
    """Raise ConfigError for a job that is refused, or whose evaluation is refused or a no-op."""
    judged = judge_job(job)
    if judged.refused:
        raise ConfigError(judged.refused)
    for verdict in judged.cells.values():
        if verdict.status in ("refused", "noop"):
            raise ConfigError(verdict.reason)


class Objective:
    """Loss that a search lowers: that of a text at the target, read with an extension."""

    def __init__(self, plan: SearchPlan, text: TextToRead) -> None:
        from posbench.model.build import load_model, pick_device
        from posbench.sweep.evaluate_cell import cell_evaluation

        config = plan.job.config
        (cell,) = plan.job.cells
        device = pick_device(config.device)
        self.model = load_model(plan.job.run, config, text.corpus.vocab_size, device).eval()
        self.cell = cell
        self.target = plan.target
        self.evaluation = cell_evaluation(self.model, text.corpus, cell, device)
        self.needles = None
        if plan.needles:
            self.needles = draw_needles(text.corpus, cell.evaluate, text.n_windows)

    def loss(self, **changes: object) -> float:
        """Loss in nats per token with changes of the evaluation, such as another extension."""
        evaluation = replace(self.evaluation, **changes)
        if self.needles is not None:
            return needle_loss(evaluation, self.needles)
        nll_NS, _ = protocol(self.cell.protocol)(evaluation).score(self.target)
        return float(nll_NS.mean(dtype="float64"))

    def with_factors(self, factors: Sequence[float], exact_first: int) -> "Extension":
        """The extension with factors, one for each pair."""
        from posbench.position.instantiate import make_method

        arguments = {"factors": list(factors), "exact_first": exact_first}
        return make_method({**self.cell.extension, **arguments})


def search(
    plan: SearchPlan, text: TextToRead, sizes: Sizes, log: Path
) -> tuple[dict[Individual, float], dict[str, float]]:
    """(losses of all individuals, losses by name of the model as it is and of published factors).

    What the log knows is not measured again.
    """
    from posbench.extensions.none import NoExtension

    objective = Objective(plan, text)
    space = plan.space
    train_len = objective.evaluation.train_len
    seed = objective.cell.evaluate.seed
    spectrum = _spectrum_to_extend(objective.model, plan.target)
    turns_F = spectrum.freq_F * train_len / (2 * math.pi)
    published_factors = _published_factors(spectrum, train_len, plan.target)
    starts = space.starts(published_factors, turns_F, seed)
    # of earlier calls: this one asks for no individual twice
    logged_losses = _logged_losses(log, space.first_number_key)
    tokens_read = text.n_windows * plan.target  # for one individual

    with Progress(sizes.total * tokens_read, "search", "tokens") as progress:
        reference_losses = {"as it is": objective.loss(extension=NoExtension())}
        for name, factors in published_factors.items():
            if name not in starts:  # a start is measured with the others
                extension = objective.with_factors(factors, exact_first=0)
                reference_losses[name] = objective.loss(extension=extension)
        best = math.inf

        def loss(individual: Individual) -> float:
            nonlocal best
            nll = logged_losses.get(individual)
            if nll is None:
                first_number, *factors = individual  # exact_first, or the critical pair
                extension = objective.with_factors(factors, space.exact_first(individual))
                nll = objective.loss(extension=extension, progress=progress.update)
                line = {"nll": nll, space.first_number_key: first_number, "factors": factors}
                append_lines(log, [line])
            else:
                progress.update(tokens_read, spared=True)
            best = min(best, nll)
            progress.update(0, part=True, best=best)  # shows `best`; no piece of work ends by it
            return nll

        losses = evolve(loss, starts.values(), space, sizes, seed)
    for individual, nll in logged_losses.items():  # of searches with other sizes
        if space.may_be_measured_here(individual):
            losses[individual] = nll
    start_losses = {name: losses[start] for name, start in starts.items()}
    return losses, {**reference_losses, **start_losses}


def _logged_losses(log: Path, first_number_key: str) -> dict[Individual, float]:
    """{individual: loss} of a log, infinite where the loss is null, as json has what is not finite.

    `first_number_key` is the key of an individual's first number. `read_lines` leaves out a line
    that was cut short.
    """
    losses = {}
    for line in read_lines(log):
        individual = (line[first_number_key], *line["factors"])
        losses[individual] = math.inf if line["nll"] is None else line["nll"]
    return losses


def _spectrum_to_extend(model: "GPT | Reader", target: int) -> "Spectrum":
    """Frequencies of the first layer that has any and is extended."""
    spectra = [
        layer.encoding.spectrum_at(target) for layer in model.encoding.layers() if layer.extended
    ]
    return next(spectrum for spectrum in spectra if spectrum is not None)


def _published_factors(spectrum: "Spectrum", train_len: int, target: int) -> dict[str, list[float]]:
    """{name: factors} of PI, of NTK-aware scaling and of YaRN."""
    from posbench.extensions.ntk import Ntk
    from posbench.extensions.ntk_by_parts import NtkByParts
    from posbench.position.geometry import Span

    span = Span(train_len, length=target, target_len=target)
    published_factors = {"pi's factors": [span.factor] * len(spectrum.freq_F)}
    # YaRN's frequencies, with the ramp of its authors' code and of transformers.
    yarn = NtkByParts(ramp="index")
    for name, extension in (("ntk's", Ntk()), ("yarn's", yarn)):
        divisor_F = spectrum.freq_F / extension.spectrum(spectrum, span).freq_F
        # A pair that does not turn (0 / 0) may have any factor. A search allows none that fall from
        # one pair to the next.
        rising_F = divisor_F.nan_to_num(span.factor).cummax(0).values
        published_factors[f"{name} factors"] = rising_F.tolist()
    return published_factors
