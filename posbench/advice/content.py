"""Content of advice.json: every number of the advice, from which the terminal's text, the figure and the page are made."""

from collections.abc import Iterable, Mapping

import numpy as np

from posbench.advice.decide import CUT, PLAIN, USES, Answer, Losses, Option, Question, advised, answer, near, rises, served, usable
from posbench.common.files import finite
from posbench.statistics.crossed import Estimate


def content(
    about: dict, question: Question, options: Iterable[Option], search: Losses, test: Losses, ranking: Mapping[str, list[str]]
) -> dict:
    """All numbers of the advice, None for one that is not finite. `about` has the model, the text and the plan.

    Options that were measured on test documents are judged.
    """
    known = {option.name: option for option in options}
    answers = {use: answer(use, ranking[use], test, question) for use in USES}
    told = {use: _answer(found) | {"near": _near(found.choice, ranking[use], search, question, use)} for use, found in answers.items()}
    engines = served(ranking["long"], known, test, question)
    told["long"]["served"] = _answer(engines) if engines and engines.choice != advised(answers["long"]) else None
    final = [name for name in test.nll if name == PLAIN or max(test.nll[name]) > question.train_len]
    made = {
        **about,
        "train_len": question.train_len,
        "target": question.target,
        "short": list(question.short),
        "tolerance": question.tolerance,
        "texts": {"validation": _counts(search), "test": _counts(test)},
        "answers": told,
        "options": [_option(known[name], test, question) for name in final],
        "factors": [_option(known[name], test, question, short=True) for name in test.nll if known[name].factor],
        "search": [_searched(known[name], search) for name in search.nll],
        "ranking": {use: list(names) for use, names in ranking.items()},
    }
    return finite(made)


def _counts(losses: Losses) -> dict[str, int]:
    return {"documents": len(np.unique(losses.document_T)), "targets": len(losses.document_T)}


def _answer(found: Answer) -> dict:
    return {
        "choice": found.choice,
        "verdict": found.verdict,
        "advised": advised(found),
        "against": {name: bounds(one) for name, one in found.against.items()},
        "costs": {str(length): bounds(one) for length, one in found.costs.items()},
        "next_best": found.next_best,
        "over_next": found.over_next,
    }


def _near(choice: str, ranking: list[str], losses: Losses, question: Question, use: str) -> dict[str, list[float]]:
    found = near(choice, ranking, losses, question.lengths(use), question.tolerance)
    return {name: bounds(one) for name, one in found.items()}


def _option(option: Option, losses: Losses, question: Question, short: bool = False) -> dict:
    told = rises(option.name, losses, question)
    lengths = [length for length in sorted(losses.nll[option.name]) if not short or length in question.short]
    points = [
        {
            "length": length,
            "nll": float(losses.nll[option.name][length].mean()),
            "against": PLAIN if length <= question.train_len else CUT,
            "difference": bounds(told[length]) if length in told else [0.0, 0.0, 0.0],
        }
        for length in lengths
    ]
    found = {"name": option.name, "family": option.family, "factor": option.factor, "by_length": option.by_length, "points": points}
    if short:
        return found
    reached = usable(option.name, losses, question)
    return {**found, "usable": {"surely": reached.surely, "perhaps": reached.perhaps}}


def _searched(option: Option, losses: Losses) -> dict:
    nll = losses.nll[option.name]
    return {"name": option.name, "family": option.family, "factor": option.factor} | {
        "nll": {str(length): float(nll[length].mean()) for length in sorted(nll)}
    }


def bounds(found: Estimate) -> list[float]:
    """[value, low, high] of the 95 % interval."""
    return [found.value, *found.interval()]
