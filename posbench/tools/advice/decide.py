"""Advice for one model: settings for short texts, for long ones and for both.

They are chosen on validation and judged on test documents.

Two options need no setting, and everything else has to beat them: the model as it is, and the text
cut to its last train_len tokens (recompute_window, the floor). Up to train_len tokens an option's
cost is its loss minus that of the model as it is; beyond, its rise is its loss minus that of the
cut text. For each use one option is chosen by its mean loss on validation documents:

short: the mean over the lengths up to train_len;
long: the loss at the target length;
both: the loss at the target length, among options whose cost on validation is at most the
    tolerance at every short length.

On test documents the choice is confirmed if the intervals of its differences to both options
without a setting (and its costs, for both) lie below 0 (the tolerance), refuted if one lies above,
else the intervals do not tell. Only what is confirmed is advised; else it is the better of the two
options without a setting. The next best of validation is measured on test documents too, and
compared apart; whatever validation does not tell apart from the choice is named. So the choice for
a use is one question, and nothing is corrected for the number of options that were compared.

Letters: T targets.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from posbench.common.files import nan_as_none
from posbench.statistics.crossed import Estimate, estimate, sums
from posbench.statistics.usable_length import Usable
from posbench.tools.advice.plan import CUT, UNCHANGED, AdvicePlan, Option

USES = ("short", "long", "both")
CONFIRMED = "confirmed"
UNDECIDED = "undecided"
REFUTED = "refuted"
WITHOUT_SETTING = (UNCHANGED, CUT)


@dataclass(frozen=True)
class Losses:
    """Loss of the same targets [T] by option and length, and the document of each target."""

    document_T: np.ndarray
    nll: Mapping[str, Mapping[int, np.ndarray]]

    def mean_over_lengths(self, name: str, lengths: Sequence[int]) -> np.ndarray | None:
        """Mean loss of each target over some lengths [T]; None if one of them was not measured."""
        by_length = self.nll.get(name, {})
        if not all(length in by_length for length in lengths):
            return None
        return np.mean([by_length[length] for length in lengths], axis=0)

    def mean_by_option(self, lengths: Sequence[int]) -> dict[str, float]:
        """{option: mean loss over the lengths}, of options that were measured at all of them."""
        means = {}
        for name in self.nll:
            loss_T = self.mean_over_lengths(name, lengths)
            if loss_T is not None:
                means[name] = float(loss_T.mean())
        return means

    def difference(self, name: str, other: str, lengths: Sequence[int]) -> Estimate | None:
        """Mean loss of one option minus that of another.

        None if one was not measured there, or both have the very same losses.
        """
        loss_T = self.mean_over_lengths(name, lengths)
        other_T = self.mean_over_lengths(other, lengths)
        # Two options with the very same losses do the same here: there is nothing to compare.
        if loss_T is None or other_T is None or np.array_equal(loss_T, other_T):
            return None
        with np.errstate(invalid="ignore"):  # inf - inf
            difference_T = np.subtract(loss_T, other_T, dtype=np.float64)
            return estimate([(1.0, sums([difference_T], self.document_T))])


def names_by_mean(means: Mapping[str, float]) -> list[str]:
    """Names by their mean loss, the best first, without those that are not finite.

    Equal ones stay in their order.

    >>> names_by_mean({"pi": 3.2, "yarn": 3.0, "ntk": float("inf")})
    ['yarn', 'pi']
    """
    finite_names = [name for name, mean in means.items() if math.isfinite(mean)]
    return sorted(finite_names, key=means.__getitem__)


def rankings_by_use(losses: Losses, plan: AdvicePlan) -> dict[str, list[str]]:
    """{use: options by their mean loss, the best first}.

    Options without a setting come first among equals.
    """
    order = sorted(losses.nll, key=lambda name: name not in WITHOUT_SETTING)
    within_tolerance = _within_tolerance(order, losses, plan)
    ranking = {}
    for use in USES:
        means = losses.mean_by_option(plan.lengths_of_use(use))
        # A choice for one kind of text alone may cost anything in the other.
        names = within_tolerance if use == "both" else order
        ranking[use] = names_by_mean({name: means[name] for name in names if name in means})
    return ranking


def _within_tolerance(names: Iterable[str], losses: Losses, plan: AdvicePlan) -> list[str]:
    """Options whose cost is at most the tolerance at every short length.

    An option that was not measured counts as infinitely dear.
    """
    means = [losses.mean_by_option([length]) for length in plan.short_lengths]
    within_tolerance = []
    for name in names:
        costs = [at_length.get(name, math.inf) - at_length[UNCHANGED] for at_length in means]
        if all(cost <= plan.tolerance for cost in costs):
            within_tolerance.append(name)
    return within_tolerance


def finalists(
    ranking: Mapping[str, Sequence[str]],
    options: Mapping[str, Option],
    losses: Losses,
    plan: AdvicePlan,
) -> list[str]:
    """Options to measure on test documents.

    They are the two best for each use, and of those that frequencies express the best of each form.
    `losses` are those of validation, which made the ranking. The second best has not the very
    losses of the best.
    """
    best = [UNCHANGED, CUT]
    for use, names in ranking.items():
        best += names[:1]
        for name in names[1:]:
            same_losses = losses.difference(names[0], name, plan.lengths_of_use(use)) is None
            if not same_losses:
                best.append(name)
                break
    long = ranking["long"]
    # The two forms of frequencies: a fixed factor, and one that follows the length.
    fixed = [name for name in long if options[name].factor]
    by_length = [name for name in long if options[name].by_length]
    return list(dict.fromkeys([*best, *fixed[:1], *by_length[:1]]))


def verdict_of_intervals(differences: Iterable[Estimate], largest_allowed: Sequence[float]) -> str:
    """Verdict on "no difference exceeds its largest allowed value", by the intervals.

    It is confirmed if there is no difference, undecided if one has no interval.
    """
    outcome = CONFIRMED
    for difference, bound in zip(differences, largest_allowed, strict=True):
        low, high = difference.interval()
        if low > bound:
            return REFUTED
        if not high <= bound:  # nan too, the end of an interval that does not exist
            outcome = UNDECIDED
    return outcome


def judge_choice(use: str, ranking: Sequence[str], losses: Losses, plan: AdvicePlan) -> dict:
    """Judge the first of a validation ranking on the losses of test documents.

    The answer for a use, as advice.json has it: the choice, its verdict, the option to take,
    differences to others and costs by length as `value_and_bounds`, the next best if any and the
    verdict on "better than the next best". Others in the ranking count if they were measured on
    test documents. If these do not confirm the choice, the better of the two options without a
    setting is advised.
    """
    lengths = plan.lengths_of_use(use)
    choice, *others = [
        name for name in ranking if losses.mean_over_lengths(name, lengths) is not None
    ]
    differences = {}  # {other option: the choice's loss minus its loss}
    for name in dict.fromkeys([*WITHOUT_SETTING, *others]):
        # None for the choice itself, too, which may be one without a setting.
        difference = losses.difference(choice, name, lengths)
        if difference is not None:
            differences[name] = difference
    next_best = next((name for name in others if name in differences), None)
    differences_shown = {}
    for name in (*WITHOUT_SETTING, next_best):
        if name in differences:
            differences_shown[name] = differences[name]
    # A choice with a setting only has to beat the options without one. A choice of none says that
    # no setting is better, so it has to beat the next best too.
    judged = [
        difference
        for name, difference in differences_shown.items()
        if name in WITHOUT_SETTING or choice in WITHOUT_SETTING
    ]
    costs = {}
    if use == "both":
        for length in plan.short_lengths:
            cost = losses.difference(choice, UNCHANGED, [length])
            if cost is not None:
                costs[length] = cost
    allowed = [0.0] * len(judged) + [plan.tolerance] * len(costs)
    verdict = verdict_of_intervals([*judged, *costs.values()], allowed)
    verdict_over_next = (
        None if next_best is None else verdict_of_intervals([differences[next_best]], [0.0])
    )
    return {
        "choice": choice,
        "verdict": verdict,
        "advised": choice if verdict == CONFIRMED else _better_reference(choice, differences_shown),
        "against": {
            name: value_and_bounds(difference) for name, difference in differences_shown.items()
        },
        "costs": {str(length): value_and_bounds(cost) for length, cost in costs.items()},
        "next_best": next_best,
        "over_next": verdict_over_next,
    }


def _better_reference(choice: str, differences: Mapping[str, Estimate]) -> str:
    """The better of the options without a setting.

    `differences` are the choice's loss minus theirs, so that the largest is of the best.
    """
    gain_over_choice = {choice: 0.0}  # {option: the choice's loss minus its loss}
    for name, difference in differences.items():
        gain_over_choice[name] = difference.value
    references = [name for name in WITHOUT_SETTING if name in gain_over_choice]
    return max(references, key=gain_over_choice.__getitem__, default=UNCHANGED)


def value_and_bounds(difference: Estimate) -> list[float]:
    """A difference as advice.json has it: [value, low, high] of its 95 % interval."""
    return [difference.value, *difference.interval()]


def within_noise_of_choice(
    choice: str, names: Iterable[str], losses: Losses, lengths: Sequence[int], tolerance: float
) -> dict[str, Estimate]:
    """{option: its validation loss minus the choice's}, of those within noise of it.

    That is an interval that reaches 0; one document gives no interval, and then a difference up to
    the tolerance counts.
    """
    within_noise = {}
    for name in names:
        difference = losses.difference(name, choice, lengths)
        # None: the choice itself, or an option that does the same here
        if difference is None or not math.isfinite(difference.value):
            continue
        # The choice has the smallest mean, so no other interval lies below 0: its lower end
        # decides.
        low = difference.interval()[0]
        reaches_choice = low <= 0 if math.isfinite(low) else difference.value <= tolerance
        if reaches_choice:
            within_noise[name] = difference
    return within_noise


def best_fixed_factor_answer(
    ranking: Sequence[str], options: Mapping[str, Option], losses: Losses, plan: AdvicePlan
) -> dict | None:
    """Answer for long texts of the best fixed factor, which engines can be set to.

    None where test documents do not confirm it.
    """
    for name in ranking:
        if options[name].factor and losses.mean_over_lengths(name, [plan.target]) is not None:
            answer = judge_choice("long", [name], losses, plan)
            return answer if answer["verdict"] == CONFIRMED else None
    return None


def costs_and_rises(name: str, losses: Losses, plan: AdvicePlan) -> dict[int, Estimate]:
    """{length: cost up to the training length, difference to the cut text beyond}."""
    # For an option with the very losses of its reference, of which there is no difference. With a
    # sem of 0 the interval is [0, 0], whatever df and n_documents are.
    equal = Estimate(
        value=0.0,
        sem=0.0,
        df=1,
        by_seed=(0.0,),
        n_documents=2,
        n_targets=len(losses.document_T),
    )
    by_length = {}
    for length in sorted(losses.nll[name]):
        reference = UNCHANGED if length <= plan.train_len else CUT
        by_length[length] = losses.difference(name, reference, [length]) or equal
    return by_length


def usable_lengths(name: str, losses: Losses, plan: AdvicePlan) -> dict[str, int | None]:
    """Usable length of an option among the lengths that were measured: up to there.

    {"surely": length, "perhaps": length}; None: not even at the first.
    """
    by_length = costs_and_rises(name, losses, plan)
    perhaps_broken_from, surely_broken_from = Usable(by_length, plan.tolerance).interval()
    sure = [length for length in by_length if length < perhaps_broken_from]
    possible = [length for length in by_length if length < surely_broken_from]
    return {"surely": max(sure, default=None), "perhaps": max(possible, default=None)}


def advice_content(
    about: dict,
    plan: AdvicePlan,
    options: Mapping[str, Option],
    search: Losses,
    test: Losses,
    ranking: Mapping[str, list[str]],
) -> dict:
    """Content of advice.json: every number of the advice, None for one that is not finite.

    `about` has the model, the text and the plan. The terminal's text, the figure and the page are
    made from the content. Options that were measured on test documents are judged.
    """
    # The finalists: all others were read on test documents at short lengths alone, for their costs.
    final = [name for name in test.nll if max(test.nll[name]) > plan.train_len]
    fixed = [name for name in test.nll if options[name].factor]
    fixed.sort(key=lambda name: (options[name].family, options[name].factor))
    content = {
        **about,
        "train_len": plan.train_len,
        "target": plan.target,
        "short": plan.short_lengths,
        "tolerance": plan.tolerance,
        "texts": {"validation": _text_size(search), "test": _text_size(test)},
        "answers": _answers(plan, options, search, test, ranking),
        "options": [
            {**_test_entry(options[name], test, plan), "usable": usable_lengths(name, test, plan)}
            for name in final
        ],
        "factors": [_test_entry(options[name], test, plan, plan.short_lengths) for name in fixed],
        "search": [_validation_entry(options[name], search) for name in search.nll],
        "ranking": ranking,
    }
    return nan_as_none(content)


def _answers(
    plan: AdvicePlan,
    options: Mapping[str, Option],
    search: Losses,
    test: Losses,
    ranking: Mapping[str, list[str]],
) -> dict[str, dict]:
    """{use: answer}, with the options that validation does not tell from the choice."""
    answers = {}
    for use in USES:
        answer = judge_choice(use, ranking[use], test, plan)
        close = within_noise_of_choice(
            answer["choice"], ranking[use], search, plan.lengths_of_use(use), plan.tolerance
        )
        answer["near"] = {name: value_and_bounds(difference) for name, difference in close.items()}
        answers[use] = answer
    # Engines can be set to a fixed factor, which is for long texts: the best one is told too.
    best_served = best_fixed_factor_answer(ranking["long"], options, test, plan)
    if best_served and best_served["choice"] == answers["long"]["advised"]:
        best_served = None  # the answer names it already
    answers["long"]["served"] = best_served
    return answers


def _text_size(losses: Losses) -> dict[str, int]:
    """Numbers of documents and of targets that the losses are of."""
    return {"documents": len(np.unique(losses.document_T)), "targets": len(losses.document_T)}


def _validation_entry(option: Option, losses: Losses) -> dict:
    """An option with its mean validation losses by length."""
    by_length = losses.nll[option.name]
    nll = {str(length): float(by_length[length].mean()) for length in sorted(by_length)}
    return {"name": option.name, "family": option.family, "factor": option.factor, "nll": nll}


def _test_entry(
    option: Option, losses: Losses, plan: AdvicePlan, lengths: Sequence[int] | None = None
) -> dict:
    """An option with a point for each length, or for each of some lengths."""
    points = []
    for length, difference in costs_and_rises(option.name, losses, plan).items():
        if lengths is None or length in lengths:
            points.append(
                {
                    "length": length,
                    "nll": float(losses.nll[option.name][length].mean()),
                    "against": UNCHANGED if length <= plan.train_len else CUT,
                    "difference": value_and_bounds(difference),
                }
            )
    return {
        "name": option.name,
        "family": option.family,
        "factor": option.factor,
        "by_length": option.by_length,
        "points": points,
    }
