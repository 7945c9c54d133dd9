"""The rule of advice on made-up losses of known truth: a known winner, ties, costs within the
window, and what only seems to win.
"""

import numpy as np
import pytest

from posbench.statistics.crossed import Estimate
from posbench.tools.advice.decide import (
    CONFIRMED,
    REFUTED,
    UNDECIDED,
    Losses,
    best_fixed_factor_answer,
    finalists,
    judge_choice,
    names_by_mean,
    rankings_by_use,
    usable_lengths,
    verdict_of_intervals,
    within_noise_of_choice,
)
from posbench.tools.advice.plan import CUT, UNCHANGED, AdvicePlan, Option

DOCUMENTS, TARGETS = 12, 20
PLAN = AdvicePlan(64, 256, 128, (16, 64), (16, 64, 256), (), TARGETS, {}, 0.0, tolerance=0.01)
OPTIONS = {
    name: Option(name, name.split(" ")[0], factor, frequencies)
    for name, factor, frequencies in (
        (UNCHANGED, None, False), (CUT, None, False), ("yarn x4", 4.0, True),
        ("yarn by length", None, True), ("rerope", None, False),
    )
}  # fmt: skip
TRUTH = {  # loss at 16, 64 and 256 tokens
    UNCHANGED: (3.4, 3.0, 6.0),
    CUT: (3.4, 3.0, 3.0),
    "yarn x4": (3.5, 3.08, 2.9),
    "yarn by length": (3.4, 3.0, 2.9),
    "rerope": (3.4, 3.02, 2.8),
}


def made_up(
    seed: int,
    truth: dict = TRUTH,
    noise: float = 0.02,
    documents: int = DOCUMENTS,
    **changed: tuple,
) -> Losses:
    """Losses with one difficulty for each target, which all options share, and an effect of the
    option on each document.
    """
    rng = np.random.default_rng(seed)
    document_T = np.repeat(np.arange(documents), TARGETS)
    shared_T, nll = rng.exponential(3.0, len(document_T)), {}
    for name, values in {**truth, **changed}.items():
        nll[name] = {}
        for length, value in zip((16, 64, 256), values, strict=True):
            effect_T = rng.normal(0, noise, documents)[document_T] + rng.normal(
                0, noise, len(document_T)
            )
            nll[name][length] = (
                shared_T + value - (effect_T * 0 if name in (UNCHANGED, CUT) else effect_T)
            )
    for length in (16, 64):
        nll[CUT][length] = nll[UNCHANGED][length]
        if "yarn by length" in nll:
            nll["yarn by length"][length] = nll[UNCHANGED][length]  # by construction
    if {"yarn by length", "yarn x4"} <= set(nll):
        nll["yarn by length"][256] = nll["yarn x4"][256]
    return Losses(document_T, nll)


def advice(validation: Losses, test: Losses) -> dict:
    ranking = rankings_by_use(validation, PLAN)
    return {use: judge_choice(use, ranking[use], test, PLAN) for use in ranking}


def test_a_known_winner_is_chosen_and_confirmed():
    answers = advice(made_up(0), made_up(1))
    assert {use: answer["choice"] for use, answer in answers.items()} == {
        "short": UNCHANGED,
        "long": "rerope",
        "both": "yarn by length",
    }
    assert {answer["verdict"] for answer in answers.values()} == {CONFIRMED}
    assert answers["long"]["next_best"] == "yarn x4" and answers["long"]["over_next"] == CONFIRMED
    assert not answers["both"]["costs"] and answers["both"]["against"][CUT][0] == pytest.approx(
        -0.1, abs=0.03
    )


def test_what_costs_within_the_window_is_not_advised_for_both():
    without = {name: values for name, values in TRUTH.items() if name != "yarn by length"}
    answers = advice(made_up(0, without), made_up(1, without))
    assert (
        answers["both"]["choice"] == CUT
    )  # rerope costs 0.02, yarn x4 0.08 and more, and 0.01 is tolerated
    cheap = {**without, "rerope": (3.4, 3.0005, 2.8)}
    answer = advice(made_up(0, cheap, 0.002), made_up(1, cheap, 0.002))["both"]
    assert (answer["choice"], answer["verdict"]) == ("rerope", CONFIRMED)
    assert set(answer["costs"]) == {"16", "64"}


def test_a_tie_is_undecided():
    equal = {**TRUTH, "rerope": (3.4, 3.0, 2.9), "yarn x4": (3.4, 3.0, 2.9)}
    verdicts = [
        advice(made_up(2 * seed, equal, 0.05), made_up(2 * seed + 1, equal, 0.05))["long"][
            "over_next"
        ]
        for seed in range(40)
    ]
    assert verdicts.count(UNDECIDED) >= 34


def test_a_choice_that_is_nothing_but_chance_is_rarely_confirmed():
    """The winner of validation noise is judged on other documents, so it is confirmed in about one
    of forty draws.
    """
    nothing = {
        UNCHANGED: TRUTH[UNCHANGED],
        CUT: TRUTH[CUT],
        **{f"ntk x{n}": (3.4, 3.0, 3.0) for n in range(2, 8)},
    }
    answers = [
        advice(made_up(2 * seed, nothing, 0.1), made_up(2 * seed + 1, nothing, 0.1))["long"]
        for seed in range(60)
    ]
    chosen = [answer for answer in answers if answer["choice"] not in (UNCHANGED, CUT)]
    assert len(chosen) > 30 and sum(answer["verdict"] == CONFIRMED for answer in chosen) <= 6


def test_a_choice_that_test_documents_refute_gives_way_to_what_needs_no_setting():
    answer = advice(made_up(0), made_up(1, rerope=(3.4, 3.0, 3.3)))["long"]
    assert (answer["choice"], answer["verdict"], answer["advised"]) == ("rerope", REFUTED, CUT)


@pytest.mark.parametrize("choice, other", [(UNCHANGED, CUT), (CUT, UNCHANGED)])
def test_a_refuted_choice_that_needs_no_setting_stands_if_the_other_is_worse(choice, other):
    for loss, advised in ((3.3, choice), (2.95, other)):
        test = made_up(
            1, {choice: (3.4, 3.0, 3.0), other: (3.4, 3.0, loss), "rerope": (3.4, 3.0, 2.8)}
        )
        answer = judge_choice("long", [choice, "rerope", other], test, PLAN)
        assert (answer["choice"], answer["verdict"], answer["advised"]) == (
            choice,
            REFUTED,
            advised,
        )


def test_cutting_wins_where_no_option_uses_the_longer_text():
    worse = {
        **TRUTH,
        "yarn x4": (3.5, 3.1, 3.2),
        "yarn by length": (3.4, 3.0, 3.2),
        "rerope": (3.4, 3.0, 3.1),
    }
    answers = advice(made_up(0, worse), made_up(1, worse))
    assert (
        answers["long"]["choice"],
        answers["long"]["verdict"],
        answers["long"]["next_best"],
    ) == (
        CUT,
        CONFIRMED,
        "rerope",
    )


def test_one_document_tells_nothing():
    answers = advice(made_up(0, documents=1), made_up(1, documents=1))
    assert answers["long"]["verdict"] == answers["both"]["verdict"] == UNDECIDED
    assert answers["long"]["choice"] == "rerope"


def test_a_loss_that_is_not_finite_is_never_chosen():
    rankings = rankings_by_use(made_up(0, rerope=(3.4, 3.0, np.inf)), PLAN)
    assert "rerope" not in rankings["long"] and "rerope" not in rankings["both"]
    assert (
        verdict_of_intervals(
            [made_up(0, rerope=(3.4, 3.0, np.inf)).difference(CUT, "rerope", [256])], [0.0]
        )
        == UNDECIDED
    )


def test_what_was_not_measured_within_the_window_counts_as_too_dear():
    losses = made_up(0)
    del losses.nll["yarn by length"][16]
    assert "yarn by length" not in rankings_by_use(losses, PLAN)["both"]


SINKS = {
    **TRUTH,
    "rerope": (3.4, 3.02, 3.4),
    "yarn x4": (3.5, 3.1, 3.3),
    "yarn by length": (3.4, 3.0, 3.3),
}


def test_what_is_within_noise_of_the_best_is_judged_and_named():
    """Streaming is equal to the cut text; the next that was chosen for another reason is 0.3
    worse.
    """
    validation = made_up(0, SINKS, streaming=(3.4, 3.0, 3.0), lm_infinite=(3.4, 3.0, 3.0))
    options = OPTIONS | {name: Option(name, name) for name in ("streaming", "lm_infinite")}
    ranking = rankings_by_use(validation, PLAN)
    best, second, third = ranking["long"][:3]
    assert {best, second, third} == {CUT, "streaming", "lm_infinite"}
    assert set(finalists(ranking, options, validation, PLAN)) >= {best, second}
    near = within_noise_of_choice(best, ranking["long"], validation, [256], 0.01)
    assert set(near) == {second, third} and all(estimated.value >= 0 for estimated in near.values())


def test_one_document_leaves_the_tolerance_to_tell_what_is_near():
    losses = made_up(0, SINKS, 1e-6, documents=1, streaming=(3.4, 3.0, 3.004))
    assert list(within_noise_of_choice(CUT, losses.nll, losses, [256], 0.01)) == [
        "streaming"
    ] and not within_noise_of_choice(CUT, losses.nll, losses, [256], 0.001)


def test_doing_nothing_wins_a_tie():
    tie = {**TRUTH, "rerope": (3.399, 2.999, 2.8)}
    answer = advice(made_up(0, tie), made_up(1, tie))["short"]
    assert (answer["advised"], answer["choice"] == UNCHANGED or answer["verdict"] == UNDECIDED) == (
        UNCHANGED,
        True,
    )
    one_document = advice(made_up(0, documents=1), made_up(1, documents=1))
    assert (one_document["long"]["choice"], one_document["long"]["advised"]) == ("rerope", CUT)


def test_engines_are_told_of_a_fixed_factor_only_if_it_wins():
    ranking = rankings_by_use(made_up(0), PLAN)["long"]
    assert best_fixed_factor_answer(ranking, OPTIONS, made_up(1), PLAN)["choice"] == "yarn x4"
    for loss in (3.0, 3.2):
        assert (
            best_fixed_factor_answer(
                ranking,
                OPTIONS,
                made_up(1, **{"yarn x4": (3.5, 3.1, loss), "yarn by length": (3.4, 3, loss)}),
                PLAN,
            )
            is None
        )


def test_the_finalists_are_the_best_of_each_use_and_form():
    ranking = rankings_by_use(made_up(0), PLAN)
    assert finalists(ranking, OPTIONS, made_up(0), PLAN) == [
        UNCHANGED,
        CUT,
        "rerope",
        "yarn x4",
        "yarn by length",
    ]


def test_usable_length_counts_cost_within_the_window_and_the_cut_text_beyond():
    losses = made_up(1)
    assert usable_lengths(UNCHANGED, losses, PLAN) == {"surely": 64, "perhaps": 64}
    assert usable_lengths("yarn by length", losses, PLAN)["surely"] == 256
    # it costs 0.1 at 16 tokens already
    assert usable_lengths("yarn x4", losses, PLAN)["perhaps"] is None


def test_ranking_keeps_the_given_order_of_equals():
    assert names_by_mean({"a": 2.0, "b": 1.0, "c": 1.0, "d": float("nan")}) == ["b", "c", "a"]


def test_a_verdict_is_of_all_differences_and_their_bounds():
    point = {
        value: Estimate(value, 0.001, 10, (value,), 11, 100) for value in (-1.0, 0.0, 0.005, 1.0)
    }
    assert [verdict_of_intervals([point[value]], [0.0]) for value in (-1.0, 0.0, 1.0)] == [
        CONFIRMED,
        UNDECIDED,
        REFUTED,
    ]
    assert (
        verdict_of_intervals([], [])
        == verdict_of_intervals([point[0.005], point[-1.0]], [0.01, 0.0])
        == CONFIRMED
    )
    assert verdict_of_intervals([point[0.005], point[-1.0]], [0.006, 0.0]) == UNDECIDED
    assert verdict_of_intervals([point[0.0], point[1.0]], [0.0, 0.01]) == REFUTED
