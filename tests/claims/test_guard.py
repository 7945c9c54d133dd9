"""Verdicts that hang on less than the tolerance of a rerun: on fabricated findings, and on what is reported."""

from dataclasses import replace

import pytest
import yaml
from claim_worlds import NATS, ROPE, World, claim, make_ladder
from conftest import CONFIGS

from posbench.claims.guard import guarded
from posbench.cli.reproduce import verdicts_at_stake
from posbench.runs.rows import read_csv
from posbench.statistics.verdict_rules import Rule

REPORTED = CONFIGS.parent / "results" / "reported"
ALLOWED = {(f"{method}{seed}", at): size for method, size in (("a", 0.03), ("b", 0.05)) for seed in range(3) for at in (4, 8)}


def judged(ladder_world, tmp_path, **primary):
    """A finding with ids a0 a1 a2 b0 b1 b2 for its evaluations, and its claim."""
    one = claim(tmp_path, primary={"confirm": "below -0.1", "refute": "above -0.1", "at": 8, **primary})
    (found,) = ladder_world.judge(one)
    methods = 1 + ("minus" in primary)
    return replace(found, evaluations=" ".join(f"{'ab'[method]}{seed}" for method in range(methods) for seed in range(3))), one


@pytest.fixture
def ladder(tmp_path):
    return make_ladder(World(tmp_path))


def test_the_shift_is_the_sum_over_cells_and_a_shared_floor_cancels(ladder, tmp_path):
    pi = {**ROPE, "extension": "pi"}
    found, one = judged(ladder, tmp_path, of=pi, minus=ROPE)
    (pair,) = guarded([found], [one], ALLOWED, 0.03, {("a1", 8)})
    assert (pair.shift, pair.room) == (pytest.approx(0.03 + 0.05), pytest.approx((-0.1 - found.upper) * NATS))
    (alone,) = guarded(
        *([each] for each in judged(ladder, tmp_path, of=pi, confirm="above 0.1", refute="below 0.1")), ALLOWED, 0.02, {("a0", 8)}
    )
    assert alone.shift == pytest.approx(0.03 + 0.02)  # and its floor
    found, one = judged(ladder, tmp_path, of=pi, minus={"encoding": "alibi"}, confirm="above 0.1", refute="below 0.1")
    (other,) = guarded([found], [one], {}, 0.02, {("b2", 8)})
    assert other.shift == pytest.approx(4 * 0.02)  # two floors, and rows that are not reported at the floor's tolerance
    assert not guarded([found], [one], ALLOWED, 0.03, {("b2", 4), ("c0", 8)})  # no row of it is made again


def test_a_method_is_one_whatever_its_weight(ladder, tmp_path):
    """A share of the difference of two methods that are there already: each loss counts once, by the sum of its weights."""
    pi, share = {**ROPE, "extension": "pi"}, {"of": {**ROPE, "times": 0.2}, "minus": {**ROPE, "extension": "pi", "times": 0.2}}
    found, one = judged(ladder, tmp_path, measure="loss", of=pi, minus=ROPE, against=share)
    (pair,) = guarded([found], [one], ALLOWED, 0.03, {("b1", 8)})
    assert pair.shift == pytest.approx(1.2 * 0.03 + 1.2 * 0.05)


@pytest.mark.parametrize(
    "rule, room",
    [("above 0.1", 0.1), ("below 0.5", 0.2), ("within 0.4", 0.1), ("between 0 0.35", 0.05), ("outside -1 0.1", 0.1), ("above 0.25", -0.05)],
)
def test_room_is_how_far_the_interval_may_move(rule, room):
    assert Rule.parse(rule).room(0.2, 0.3) == pytest.approx(room)


def test_reported_verdicts_that_the_tolerance_of_headline_does_not_guard():
    """A rerun of the headline, or of the claims, says so; the demo has rows of no verdict."""

    def said(name):
        tolerance = yaml.safe_load((CONFIGS / "experiment" / f"{name}.yaml").read_text())["tolerance"]
        return verdicts_at_stake(read_csv(REPORTED / name / "rows.csv"), tolerance)

    (headline,), (claims,) = said("headline"), said("claims")
    for name in ("S05 NTK minus nothing", "S09 sinks"):
        assert f"{name} (room " in headline.partition("not guarded: ")[2]
    assert "S09 window (room 0.038, tolerance 0.061" in claims and "H14" not in headline + claims
    assert said("demo") == []
    (children,) = said("claims5")  # both endpoints of S10, which ask for a fifth of another difference, are among them
    assert "in 6 of the 9 verdicts" in children and "S10 recovered after 100 steps (room 0.080, tolerance 0.097" in children
