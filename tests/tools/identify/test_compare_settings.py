"""The verdict by differences of single tokens, on losses that are made up: every truth is found,
and what cannot be told is said.
"""

import numpy as np
import pytest

from posbench.tools.identify.compare import (
    CANNOT_TELL,
    IDENTIFIED,
    NONE_OF_THEM,
    compare_losses,
    judge_setting,
    unit_of_targets,
)

WINDOWS, TARGETS, LENGTHS = 40, 16, (64, 256)


def made_up(apart: float, seed: int = 0, names: str = "abcdefgh") -> dict:
    """Losses of candidates that agree at the training length, 64 tokens, and are about `apart` nats
    rms from each other at 256.
    """
    rng = np.random.default_rng(seed)
    base, shared = rng.gamma(2, 1.5, (WINDOWS, TARGETS)), rng.normal(0, 1, (3, WINDOWS, TARGETS))

    def far() -> (
        np.ndarray
    ):  # what candidates do is partly alike: a few directions, and something of their own
        mixed = np.tensordot(rng.normal(0, 1, 3), shared, 1) / np.sqrt(3)
        return base + apart / np.sqrt(2) * (0.7 * mixed + 0.7 * rng.normal(0, 1, base.shape))

    return {name: {64: base, 256: far()} for name in names}


def engine(losses: dict, rms: float = 0.1, seed: int = 1) -> dict:
    """Losses of an engine that rounds, with the heavy tails that rounding has."""
    rng = np.random.default_rng(seed)
    return {
        length: exact + rms / np.sqrt(3) * rng.standard_t(3, exact.shape)
        for length, exact in losses.items()
    }


UNIT = dict.fromkeys(
    LENGTHS, unit_of_targets(np.repeat(np.arange(WINDOWS), TARGETS).reshape(WINDOWS, TARGETS))
)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("truth", "abcdefgh")
def test_every_truth_is_found_and_one_off_the_list_is_none(truth, seed):
    candidates = made_up(0.6, seed)
    theirs = engine(candidates[truth], seed=seed + 10)
    verdict, rms = judge_setting(theirs, candidates, UNIT, 64)
    assert (verdict["kind"], verdict["best"], next(iter(rms))) == (
        IDENTIFIED,
        truth,
        truth,
    ) and list(rms.values()) == sorted(rms.values())
    assert verdict["explained"] < 0.05 and verdict["rms_within"] == pytest.approx(0.1, rel=0.3)
    others = {name: losses for name, losses in candidates.items() if name != truth}
    assert judge_setting(theirs, others, UNIT, 64)[0]["kind"] == NONE_OF_THEM


def test_candidates_closer_than_the_rounding_are_not_told_apart():
    candidates = made_up(0.02)
    verdict, _ = judge_setting(engine(candidates["a"]), candidates, UNIT, 64)
    assert (
        verdict["kind"] == CANNOT_TELL
        and "a" in (verdict["best"], *verdict["untold"])
        and len(verdict["untold"]) == 7
    )
    one_twin = made_up(0.6) | {
        "twin": {64: made_up(0.6)["a"][64], 256: made_up(0.6)["a"][256] + 0.01}
    }
    verdict, _ = judge_setting(engine(one_twin["a"]), one_twin, UNIT, 64)
    assert verdict["kind"] == CANNOT_TELL and {verdict["best"], *verdict["untold"]} == {"a", "twin"}


def test_a_lean_of_the_rounding_decides_about_nothing_small():
    """Rounding that leans a tenth towards another candidate, which lies nearer than half of the
    rounding: not told.
    """
    candidates = made_up(0.6)
    candidates["near"] = {
        64: candidates["a"][64],
        256: (
            candidates["a"][256]
            + 0.04 * np.sign(np.random.default_rng(5).normal(size=(WINDOWS, TARGETS)))
        ),
    }
    theirs = engine(candidates["a"])
    theirs[256] = theirs[256] + 0.7 * (candidates["near"][256] - candidates["a"][256])
    verdict, _ = judge_setting(theirs, candidates, UNIT, 64)
    assert verdict["kind"] == CANNOT_TELL and {verdict["best"], *verdict["untold"]} == {"a", "near"}


def test_other_weights_are_none_whatever_the_lengths():
    candidates = made_up(0.6)
    other = {
        length: np.random.default_rng(9).gamma(2, 1.5, (WINDOWS, TARGETS)) for length in LENGTHS
    }
    assert "within 64 tokens" in judge_setting(other, candidates, UNIT, 64)[0]["why"]
    long = {length: losses for length, losses in other.items() if length > 64}
    assert judge_setting(long, candidates, UNIT, 64)[0]["kind"] == NONE_OF_THEM


def test_the_numbers_of_a_comparison():
    candidates = made_up(0.6)
    theirs = engine(candidates["a"])
    for comparison in compare_losses(theirs, candidates["b"], UNIT):
        difference = theirs[comparison["length"]] - candidates["b"][comparison["length"]]
        assert comparison["rms"] == pytest.approx(
            np.linalg.norm(difference) / np.sqrt(difference.size)
        )
        assert (
            comparison["mean"][0] == pytest.approx(difference.mean())
            and comparison["n_targets"] == WINDOWS * TARGETS
        )
        half = comparison["mean"][2] - comparison["mean"][0]
        assert half == pytest.approx(
            2.0227 * difference.mean(axis=1).std(ddof=1) / np.sqrt(WINDOWS), rel=1e-4
        )  # t of 39 at 0.975
        assert comparison["correlation"] == pytest.approx(
            np.corrcoef(
                theirs[comparison["length"]].ravel(), candidates["b"][comparison["length"]].ravel()
            )[0, 1]
        )


def test_few_windows_are_divided():
    window = np.repeat([0, 1, 2], [10, 10, 4])[:, None]
    unit = unit_of_targets(window)
    assert unit.shape == window.shape and (np.diff(unit.ravel()) >= 0).all()
    counts = np.unique(unit, return_counts=True)[1]
    assert (
        len(counts) == 16 and max(counts) == 2
    )  # 3 windows in 6 runs each, of which the short one fills 4
    assert all(len(np.unique(window[unit == number])) == 1 for number in np.unique(unit))


def test_few_tokens_of_hardly_any_rounding_decide():
    candidates = {name: {256: losses[256][:1, :8]} for name, losses in made_up(0.6).items()}
    theirs = {256: candidates["a"][256] + 1e-4 * np.random.default_rng(1).normal(size=(1, 8))}
    verdict, _ = judge_setting(theirs, candidates, {256: UNIT[256][:1, :8]}, 64)
    assert (verdict["kind"], verdict["best"]) == (IDENTIFIED, "a")
