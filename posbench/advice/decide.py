"""Advice for one model: what to do for short texts, for long ones and for both, chosen on validation and judged on test documents.

Two options need no setting, and everything else has to beat them: the model as it is, and the text cut to its last train_len tokens
(recompute_window, the floor). Up to train_len tokens an option's cost is its loss minus that of the model as it is; beyond, its rise is its
loss minus that of the cut text. For each use one option is chosen by its mean loss on validation documents:

short: the mean over the lengths up to train_len;
long: the loss at the target length;
both: the loss at the target length, among options whose cost on validation is at most the tolerance at every short length.

On test documents the choice is confirmed if the intervals of its differences to both options without a setting (and its costs, for
both) lie below 0 (the tolerance), refuted if one lies above, else the intervals do not tell. Only what is confirmed is advised; else it is
the better of the two options without a setting. The next best of validation is measured on test documents too, and compared apart;
whatever validation does not tell apart from the choice is named.

Letters: T targets.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from posbench.advice.verdicts import CONFIRMED, Reach, affordable, better, ranked, reach, together
from posbench.statistics.crossed import Estimate, estimate, sums

PLAIN, CUT = "as it is", "cut"
USES = ("short", "long", "both")


@dataclass(frozen=True)
class Option:
    """Something a user may do: its name, its methods without a factor, its factor if that is fixed, and if frequencies alone express it."""

    name: str
    family: str
    factor: float | None = None
    frequencies: bool = False

    @property
    def by_length(self) -> bool:
        """True if the factor follows the length of each text."""
        return self.frequencies and self.factor is None


@dataclass(frozen=True)
class Losses:
    """Loss of the same targets [T] by name of the option and length, and the document of each target."""

    document_T: np.ndarray
    nll: Mapping[str, Mapping[int, np.ndarray]]

    def over(self, name: str, lengths: Sequence[int]) -> np.ndarray | None:
        """Mean loss of each target over some lengths [T]; None if one of them was not measured."""
        found = self.nll.get(name, {})
        return np.mean([found[length] for length in lengths], axis=0) if all(length in found for length in lengths) else None

    def means(self, lengths: Sequence[int]) -> dict[str, float]:
        """{option: mean loss over the lengths}, for the options that were measured at all of them."""
        found = {name: self.over(name, lengths) for name in self.nll}
        return {name: float(loss_T.mean()) for name, loss_T in found.items() if loss_T is not None}

    def difference(self, name: str, other: str, lengths: Sequence[int]) -> Estimate | None:
        """Mean loss of one option minus that of another; None if one was not measured there, or both have the very same losses."""
        ours_T, theirs_T = self.over(name, lengths), self.over(other, lengths)
        if ours_T is None or theirs_T is None or np.array_equal(ours_T, theirs_T):
            return None
        with np.errstate(invalid="ignore"):
            return estimate([(1.0, sums([np.subtract(ours_T, theirs_T, dtype=np.float64)], self.document_T))])


@dataclass(frozen=True)
class Question:
    """Lengths of the question, those within the training length and the target beyond it, and the cost that is tolerated in nats/token."""

    train_len: int
    target: int
    short: Sequence[int]
    tolerance: float

    def lengths(self, use: str) -> Sequence[int]:
        """Lengths over which a use is judged."""
        return self.short if use == "short" else (self.target,)


def rankings(losses: Losses, question: Question) -> dict[str, list[str]]:
    """{use: options by their mean loss, the best first}. What needs no setting comes first among equals."""
    order = sorted(losses.nll, key=lambda name: name not in (PLAIN, CUT))
    short = [losses.means([length]) for length in question.short]
    # What was not measured counts as infinitely dear.
    costs = {name: max(means.get(name, math.inf) - means[PLAIN] for means in short) for name in order}
    found = {}
    for use in USES:
        means = losses.means(question.lengths(use))
        limits = (costs, question.tolerance) if use == "both" else ()
        found[use] = ranked({name: means[name] for name in order if name in means}, *limits)
    return found


def runner_up(losses: Losses, names: Sequence[str], lengths: Sequence[int]) -> list[str]:
    """The first of a ranking that has not the very losses of its best, which would be the same thing to do; empty without one."""
    return [name for name in names if losses.difference(names[0], name, lengths) is not None][:1]


def finalists(ranking: Mapping[str, Sequence[str]], options: Mapping[str, Option], losses: Losses, question: Question) -> list[str]:
    """Options to measure on test documents: the two best for each use, and of those that frequencies express the best of each form.

    `losses` are those of validation, which made the ranking.
    """
    long = [options[name] for name in ranking["long"]]
    fixed = [one.name for one in long if one.frequencies and not one.by_length][:1]
    by_length = [one.name for one in long if one.by_length][:1]
    best = [name for use in USES for name in [*ranking[use][:1], *runner_up(losses, ranking[use], question.lengths(use))]]
    return list(dict.fromkeys([PLAIN, CUT, *best, *fixed, *by_length]))


@dataclass(frozen=True)
class Answer:
    """Answer for one use: the choice, its verdict, differences to other options, costs by length, and the next best option if any."""

    choice: str
    verdict: str
    against: Mapping[str, Estimate]
    costs: Mapping[int, Estimate] = field(default_factory=dict)
    next_best: str | None = None

    @property
    def over_next(self) -> str | None:
        """Verdict on "better than the next best"; None without one."""
        return better(self.against[self.next_best]) if self.next_best else None


def answer(use: str, ranking: Sequence[str], losses: Losses, question: Question) -> Answer:
    """Judge the first of a validation ranking on the losses of test documents; others in it count if they were measured there."""
    lengths = question.lengths(use)
    choice, *others = [name for name in ranking if losses.over(name, lengths) is not None]
    differences = {name: losses.difference(choice, name, lengths) for name in dict.fromkeys([PLAIN, CUT, *others])}
    told = {name: found for name, found in differences.items() if found is not None}
    next_best = next((name for name in others if name in told), None)
    against = {name: found for name, found in told.items() if name in (PLAIN, CUT, next_best)}
    rivals = [name for name in (PLAIN, CUT) if name in told]
    if choice in (PLAIN, CUT) and next_best:
        rivals.append(next_best)
    costs = {length: losses.difference(choice, PLAIN, [length]) for length in question.short} if use == "both" else {}
    costs = {length: found for length, found in costs.items() if found is not None}
    verdicts = [better(told[name]) for name in dict.fromkeys(rivals)]
    verdicts += [affordable(costs.values(), question.tolerance)] if use == "both" else []
    return Answer(choice, together(verdicts) if verdicts else CONFIRMED, against, costs, next_best)


def near(choice: str, names: Iterable[str], losses: Losses, lengths: Sequence[int], tolerance: float) -> dict[str, Estimate]:
    """{option: by how much its validation loss is higher than the choice's}, of those within noise of it.

    That is an interval that reaches 0; one document gives no interval, and then a difference up to the tolerance counts.
    """
    over = {name: losses.difference(name, choice, lengths) for name in names}
    known = {name: one for name, one in over.items() if one is not None and math.isfinite(one.value)}
    reached = {name: one.interval()[0] for name, one in known.items()}
    return {name: one for name, one in known.items() if (reached[name] <= 0 if math.isfinite(reached[name]) else one.value <= tolerance)}


def served(ranking: Sequence[str], options: Mapping[str, Option], losses: Losses, question: Question) -> Answer | None:
    """Answer for long texts of the best fixed factor, which engines serve; None where test documents do not confirm it."""
    fixed = [name for name in ranking if options[name].factor and losses.over(name, [question.target]) is not None]
    found = answer("long", fixed[:1], losses, question) if fixed else None
    return found if found and found.verdict == CONFIRMED else None


def rises(name: str, losses: Losses, question: Question) -> dict[int, Estimate]:
    """{length: cost up to the training length, difference to the cut text beyond}, without lengths at which there is none."""
    found = {n: losses.difference(name, PLAIN if n <= question.train_len else CUT, [n]) for n in sorted(losses.nll.get(name, {}))}
    return {length: one for length, one in found.items() if one is not None}


def usable(name: str, losses: Losses, question: Question) -> Reach:
    """Usable length of an option, among the lengths that were measured."""
    equal = Estimate(0.0, 0.0, 1, (0.0,), 2, len(losses.document_T))
    known = rises(name, losses, question)
    return reach({length: known.get(length, equal) for length in losses.nll[name]}, question.tolerance)


def advised(found: Answer) -> str:
    """Option to take: the choice if test documents confirm it, else of the two without a setting the one with the lower loss."""
    if found.verdict == CONFIRMED:
        return found.choice
    over = {found.choice: 0.0, **{name: one.value for name, one in found.against.items()}}  # by how much the choice's loss is higher
    return max((name for name in (PLAIN, CUT) if name in over), key=over.__getitem__, default=PLAIN)
