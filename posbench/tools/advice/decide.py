"""Advice for one model: settings for short texts, for long ones and for both, chosen on validation
and judged on test documents.

Two options need no setting, and everything else has to beat them: the model as it is, and the text
cut to its last train_len tokens (recompute_window, the floor). Up to train_len tokens an option's
cost is its loss minus that of the model as it is; beyond, its rise is its loss minus that of the
cut text. For each use one option is chosen by its mean loss on validation documents:

short: the mean over the lengths up to train_len; long: the loss at the target length; both: the
loss at the target length, among options whose cost on validation is at most the tolerance at every
short length.

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

from posbench.common.files import finite
from posbench.statistics.crossed import Estimate, estimate, sums
from posbench.statistics.usable_length import Usable
from posbench.tools.advice.plan import CUT, UNCHANGED, AdvicePlan, Option

USES = ("short", "long", "both")
CONFIRMED, UNDECIDED, REFUTED = "confirmed", "undecided", "refuted"


@dataclass(frozen=True)
class Losses:
    """Loss of the same targets [T] by name of the option and length, and the document of each
    target.
    """

    document_T: np.ndarray
    nll: Mapping[str, Mapping[int, np.ndarray]]

    def over(self, name: str, lengths: Sequence[int]) -> np.ndarray | None:
        """Mean loss of each target over some lengths [T]; None if one of them was not measured."""
        found = self.nll.get(name, {})
        return (
            np.mean([found[length] for length in lengths], axis=0)
            if all(length in found for length in lengths)
            else None
        )

    def means(self, lengths: Sequence[int]) -> dict[str, float]:
        """{option: mean loss over the lengths}, for the options that were measured at all of
        them.
        """
        found = {name: self.over(name, lengths) for name in self.nll}
        return {name: float(loss_T.mean()) for name, loss_T in found.items() if loss_T is not None}

    def difference(self, name: str, other: str, lengths: Sequence[int]) -> Estimate | None:
        """Mean loss of one option minus that of another; None if one was not measured there, or
        both have the very same losses.
        """
        ours_T, theirs_T = self.over(name, lengths), self.over(other, lengths)
        if ours_T is None or theirs_T is None or np.array_equal(ours_T, theirs_T):
            return None
        with np.errstate(invalid="ignore"):
            return estimate(
                [(1.0, sums([np.subtract(ours_T, theirs_T, dtype=np.float64)], self.document_T))]
            )


def ranked(means: Mapping[str, float]) -> list[str]:
    """Names by their mean loss, the best first, without those that are not finite. Equal ones stay
    in the given order.
    """
    return sorted(
        (name for name, mean in means.items() if math.isfinite(mean)), key=means.__getitem__
    )


def rankings(losses: Losses, plan: AdvicePlan) -> dict[str, list[str]]:
    """{use: options by their mean loss, the best first}. What needs no setting comes first among
    equals.
    """
    order = sorted(losses.nll, key=lambda name: name not in (UNCHANGED, CUT))
    short = [losses.means([length]) for length in plan.short]
    # What was not measured counts as infinitely dear.
    cheap = [
        name
        for name in order
        if all(one.get(name, math.inf) - one[UNCHANGED] <= plan.tolerance for one in short)
    ]
    found = {}
    for use in USES:
        means = losses.means(plan.lengths(use))
        found[use] = ranked(
            {name: means[name] for name in (cheap if use == "both" else order) if name in means}
        )
    return found


def finalists(
    ranking: Mapping[str, Sequence[str]],
    options: Mapping[str, Option],
    losses: Losses,
    plan: AdvicePlan,
) -> list[str]:
    """Options to measure on test documents: the two best for each use, and of those that
    frequencies express the best of each form.

    `losses` are those of validation, which made the ranking. The second best has not the very
    losses of the best."""
    best = []
    for use, names in ranking.items():
        others = [
            name
            for name in names
            if losses.difference(names[0], name, plan.lengths(use)) is not None
        ]
        best += [*names[:1], *others[:1]]
    fixed = [name for name in ranking["long"] if options[name].factor][:1]
    by_length = [name for name in ranking["long"] if options[name].by_length][:1]
    return list(dict.fromkeys([UNCHANGED, CUT, *best, *fixed, *by_length]))


def verdict(differences: Iterable[Estimate], most: Sequence[float]) -> str:
    """Verdict on "no difference exceeds its largest allowed value" by the intervals; confirmed if
    there is none, undecided without one.
    """
    bounds = [(*one.interval(), bound) for one, bound in zip(differences, most, strict=True)]
    if any(low > bound for low, _, bound in bounds):
        return REFUTED
    return CONFIRMED if all(high <= bound for _, high, bound in bounds) else UNDECIDED


def judge_choice(use: str, ranking: Sequence[str], losses: Losses, plan: AdvicePlan) -> dict:
    """Judge the first of a validation ranking on the losses of test documents; others in it count
    if they were measured there.

    The answer for a use, as advice.json has it: the choice, its verdict, the option to take,
    differences to others and costs by length as `bounds`, the next best if any and the verdict on
    "better than the next best". If test documents do not confirm the choice, the better of the two
    options without a setting is advised."""
    lengths = plan.lengths(use)
    choice, *others = [name for name in ranking if losses.over(name, lengths) is not None]
    differences = {
        name: losses.difference(choice, name, lengths)
        for name in dict.fromkeys([UNCHANGED, CUT, *others])
    }
    told = {name: found for name, found in differences.items() if found is not None}
    next_best = next((name for name in others if name in told), None)
    against = {name: found for name, found in told.items() if name in (UNCHANGED, CUT, next_best)}
    costs = {
        length: losses.difference(choice, UNCHANGED, [length])
        for length in plan.short
        if use == "both"
    }
    costs = {length: found for length, found in costs.items() if found is not None}
    judged = [
        found
        for name, found in against.items()
        if name in (UNCHANGED, CUT) or choice in (UNCHANGED, CUT)
    ]
    found = verdict([*judged, *costs.values()], [0.0] * len(judged) + [plan.tolerance] * len(costs))
    free = {
        choice: 0.0,
        **{name: one.value for name, one in against.items()},
    }  # by how much the choice's loss is higher
    instead = max(
        (name for name in (UNCHANGED, CUT) if name in free), key=free.__getitem__, default=UNCHANGED
    )
    return {
        "choice": choice,
        "verdict": found,
        "advised": choice if found == CONFIRMED else instead,
        "against": {name: bounds(one) for name, one in against.items()},
        "costs": {str(length): bounds(one) for length, one in costs.items()},
        "next_best": next_best,
        "over_next": verdict([told[next_best]], [0.0]) if next_best else None,
    }


def bounds(one: Estimate) -> list[float]:
    """A difference as advice.json has it: [value, low, high] of its 95 % interval."""
    return [one.value, *one.interval()]


def near(
    choice: str, names: Iterable[str], losses: Losses, lengths: Sequence[int], tolerance: float
) -> dict[str, Estimate]:
    """{option: by how much its validation loss is higher than the choice's}, of those within noise
    of it.

    That is an interval that reaches 0; one document gives no interval, and then a difference up to
    the tolerance counts."""
    over = {name: losses.difference(name, choice, lengths) for name in names}
    known = {
        name: one for name, one in over.items() if one is not None and math.isfinite(one.value)
    }
    reached = {name: one.interval()[0] for name, one in known.items()}
    return {
        name: one
        for name, one in known.items()
        if (reached[name] <= 0 if math.isfinite(reached[name]) else one.value <= tolerance)
    }


def served(
    ranking: Sequence[str], options: Mapping[str, Option], losses: Losses, plan: AdvicePlan
) -> dict | None:
    """Answer for long texts of the best fixed factor, which engines serve; None where test
    documents do not confirm it.
    """
    fixed = [
        name
        for name in ranking
        if options[name].factor and losses.over(name, [plan.target]) is not None
    ]
    found = judge_choice("long", fixed[:1], losses, plan) if fixed else None
    return found if found and found["verdict"] == CONFIRMED else None


def rises(name: str, losses: Losses, plan: AdvicePlan) -> dict[int, Estimate]:
    """{length: cost up to the training length, difference to the cut text beyond}, of the lengths
    that were measured.
    """
    equal = Estimate(0.0, 0.0, 1, (0.0,), 2, len(losses.document_T))
    return {
        n: losses.difference(name, UNCHANGED if n <= plan.train_len else CUT, [n]) or equal
        for n in sorted(losses.nll[name])
    }


def usable(name: str, losses: Losses, plan: AdvicePlan) -> dict[str, int | None]:
    """Usable length of an option among the lengths that were measured: surely, and perhaps, up to
    there; None: not even at the first.
    """
    known = rises(name, losses, plan)
    ends = Usable(known, plan.tolerance).interval()
    reached = [max((length for length in known if length < end), default=None) for end in ends]
    return dict(zip(("surely", "perhaps"), reached, strict=True))


def advice_content(
    about: dict,
    plan: AdvicePlan,
    options: Mapping[str, Option],
    search: Losses,
    test: Losses,
    ranking: Mapping[str, list[str]],
) -> dict:
    """Content of advice.json: every number of the advice, None for one that is not finite. `about`
    has the model, the text and the plan.

    The terminal's text, the figure and the page are made from it. Options that were measured on
    test documents are judged."""
    answers = {use: judge_choice(use, ranking[use], test, plan) for use in USES}
    for use, one in answers.items():
        close = near(one["choice"], ranking[use], search, plan.lengths(use), plan.tolerance)
        one["near"] = {name: bounds(over) for name, over in close.items()}
    engines = served(ranking["long"], options, test, plan)
    answers["long"]["served"] = (
        engines if engines and engines["choice"] != answers["long"]["advised"] else None
    )
    final = [name for name in test.nll if max(test.nll[name]) > plan.train_len]
    fixed = sorted(
        (name for name in test.nll if options[name].factor),
        key=lambda name: (options[name].family, options[name].factor),
    )
    texts = {"validation": search.document_T, "test": test.document_T}
    nll = {
        name: {str(length): float(own[length].mean()) for length in sorted(own)}
        for name, own in search.nll.items()
    }
    made = {
        **about,
        **{key: getattr(plan, key) for key in ("train_len", "target", "short", "tolerance")},
        "texts": {
            split: {"documents": len(np.unique(document_T)), "targets": len(document_T)}
            for split, document_T in texts.items()
        },
        "answers": answers,
        "options": [
            {**_option(options[name], test, plan), "usable": usable(name, test, plan)}
            for name in final
        ],
        "factors": [_option(options[name], test, plan, plan.short) for name in fixed],
        "search": [
            {
                "name": name,
                "family": options[name].family,
                "factor": options[name].factor,
                "nll": nll[name],
            }
            for name in nll
        ],
        "ranking": ranking,
    }
    return finite(made)


def _option(
    option: Option, losses: Losses, plan: AdvicePlan, lengths: Sequence[int] | None = None
) -> dict:
    points = []
    for length, found in rises(option.name, losses, plan).items():
        if lengths is None or length in lengths:
            nll, against = (
                float(losses.nll[option.name][length].mean()),
                UNCHANGED if length <= plan.train_len else CUT,
            )
            points.append(
                {"length": length, "nll": nll, "against": against, "difference": bounds(found)}
            )
    return {
        "name": option.name,
        "family": option.family,
        "factor": option.factor,
        "by_length": option.by_length,
        "points": points,
    }
