"""Verdict: the candidate that an engine runs, by the differences of single tokens.

d = engine - candidate is, for the right one, the rounding of the engine alone: small, and unrelated
to how candidates differ from each other. For a wrong one it holds that difference too. So, over all
tokens and lengths together:

best: the candidate of the smallest rms of d.
Beaten is another one if the interval (99 %) of the mean of its d^2 minus that of the best lies
above 0, and if its losses are further from the best's than LEAST_APART of the best's rms: rounding
that leans a little towards another candidate can decide about smaller differences. One further than
FAR_APART times that rms, and than LEAST_RMS, is beaten without an interval, which few tokens do not
give. "Cannot tell" where one is not beaten.
None of them, if any of these holds:
  - rms of d is above LEAST_RMS, and the differences of the candidates to the best explain more than
    MOST_EXPLAINED of its variance (adjusted R^2 of a regression) by CHANCE_ERRORS times its error
    by chance, sqrt(2 K) / T;
  - within the training length, where a model is not broken, rms of d is above MOST_ROUNDING;
  - rms of d is above MOST_ROUNDING and above MOST_OF_MEDIAN of the median distance of the best to
  the others.

Why: SmolLM2-135M (4-bit weights) in llama.cpp, at 512 and 2,048 tokens as if trained to 512 (768
targets), with no scaling, linear interpolation by 4, NTK by the base and YaRN with factors 2 and 4,
differs from posbench in bf16 by 0.09 to 0.11 nats rms with the right candidate and by 0.17 (YaRN's
ramp not rounded) to 3.2 with the 23 wrong ones, which explain 0.008 to 0.065 of d; self-extend,
which is no candidate, is 2.6 from the nearest. Keys and values cached in 4 bits add 0.46, so that
nothing is identified. A model of 1 M parameters trained at 64 tokens, read at 64 and 256 (2,048
targets): its 23 candidates lie 0.15 to 3 nats rms apart. In both models each candidate was made the
truth in turn with noise of 0.1 nats rms (Student's t, 3 degrees of freedom), and found; the others
explained at most 0.007 of the noise (0.035 with 256 targets), and 0.13 to 0.83 of d with the truth
taken off the list, but for cut and window (0.04 and 0.09) and linear interpolation by twice the
factor (0.09), which the rule within the training length finds. Rounding to bf16 was 0.013 nats rms,
and explained by 0.02. LEAST_RMS is above that, and above what one token more does to a factor that
follows the length (0.014 of 192 tokens): a server that echoes a prompt has read its last target
too.

Units of intervals are windows, or, with fewer than LEAST_UNITS of them, runs of their targets: not
the texts but the rounding is a sample here.

Letters: N windows, S targets of each, T all targets of all lengths, K candidates.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from posbench.statistics.crossed import estimate, sums

INTERVAL_LEVEL = 0.99  # of the interval that beats a candidate
LEAST_APART = 0.5  # as a multiple of the best candidate's rms
FAR_APART = 20.0  # the same
MOST_EXPLAINED = 0.1  # share of the variance
CHANCE_ERRORS = 3
LEAST_RMS = 0.03  # nats rms
MOST_ROUNDING = 0.3  # nats rms
MOST_OF_MEDIAN = 0.5  # of the median distance of the candidates
LEAST_UNITS = 16
IDENTIFIED = "is"
CANNOT_TELL = "cannot tell"
NONE_OF_THEM = "none"
Losses = Mapping[int, np.ndarray]  # {length: [N, S]}
Units = Mapping[int, np.ndarray]  # {length: number of each target's unit [N, S]}


def unit_of_targets(window: np.ndarray) -> np.ndarray:
    """Number of each target's unit, by `window`, the number of its window; same shape.

    A unit is the window, or an equal run of its targets where there are few windows. The targets of
    a window stand together, and its number is above that of the window before.
    """
    numbers, member, counts = np.unique(window.ravel(), return_inverse=True, return_counts=True)
    parts = -(-LEAST_UNITS // len(numbers))  # units of each window
    begins = np.concatenate(([0], np.cumsum(counts)))  # index of each window's first target
    within = np.arange(member.size) - begins[member]  # index of a target in its window
    return (member * parts + within * parts // counts[member]).reshape(window.shape)


def compare_losses(engine: Losses, candidate: Losses, unit: Units) -> list[dict]:
    """Points of identify.json: a comparison of the losses at each length.

    Each has the mean of the differences with its interval over units, their rms, and the
    correlation.
    """
    points = []
    for length, engine_NS in engine.items():
        candidate_NS = candidate[length]
        difference_NS = engine_NS - candidate_NS
        weight = 1.0  # of the one term of the estimate
        mean = estimate([(weight, sums([difference_NS.ravel()], unit[length].ravel()))])
        correlation = math.nan
        if min(engine_NS.std(), candidate_NS.std()) > 0:
            correlation = float(np.corrcoef(engine_NS.ravel(), candidate_NS.ravel())[0, 1])
        points.append(
            {
                "length": length,
                "n_targets": mean.n_targets,
                "mean": [mean.value, *mean.interval()],
                "rms": _root_mean_square(difference_NS),
                "correlation": correlation,
            }
        )
    return points


class Verdict(NamedTuple):
    """Verdict as identify.json has it, and {candidate: rms of d over all lengths}, best first.

    `in_json` has its kind, the best candidate, those not told from it, the reason why none is it,
    the rms of the best at lengths within the training length (nan without one), and the share of
    its d that others explain.
    """

    in_json: dict
    rms: dict[str, float]


def judge_setting(
    engine: Losses, candidates: Mapping[str, Losses], unit: Units, train_len: int
) -> Verdict:
    """Verdict on {candidate: its losses}, of two or more, by the rule of the module's docstring."""
    engine_T = _all_targets(engine, engine)
    unit_T = _all_targets(unit, engine)
    losses_T = {name: _all_targets(losses, engine) for name, losses in candidates.items()}
    rms = {name: _root_mean_square(engine_T - loss_T) for name, loss_T in losses_T.items()}
    best, *others = sorted(rms, key=rms.__getitem__)
    best_T = engine_T - losses_T[best]
    apart = {name: _root_mean_square(losses_T[name] - losses_T[best]) for name in others}
    untold = []
    for name in others:
        if not _is_beaten(engine_T - losses_T[name], best_T, unit_T, apart[name], rms[best]):
            untold.append(name)
    explained = _explained_share(best_T, [losses_T[name] - losses_T[best] for name in others])
    # An adjusted R^2 is 0 in the mean without any relation; this is CHANCE_ERRORS times its error.
    by_chance = CHANCE_ERRORS * math.sqrt(2 * len(others)) / len(best_T)
    short = [length for length in engine if length <= train_len]
    rms_within = math.nan
    if short:
        rms_within = _root_mean_square(
            _all_targets(engine, short) - _all_targets(candidates[best], short)
        )
    reason = ""  # why it is none of them
    if rms_within > MOST_ROUNDING:
        # A cache of 4 bits was measured: see the module's docstring.
        reason = (
            f"within {train_len:,} tokens even the best differs by {rms_within:.2f} nats rms, and"
            f" rounding by less than {MOST_ROUNDING:g} (a cache of 4 bits by 0.5)"
        )
    elif rms[best] > max(MOST_ROUNDING, MOST_OF_MEDIAN * float(np.median(list(apart.values())))):
        reason = (
            f"even the best differs by {rms[best]:.2f} nats rms, not much less than the candidates"
            " from each other"
        )
    elif rms[best] > LEAST_RMS and explained > MOST_EXPLAINED + by_chance:
        reason = (
            "what is left beside the best is not rounding: the other candidates explain"
            f" {explained:.0%} of it"
        )
    kind = IDENTIFIED
    if reason:
        kind = NONE_OF_THEM
    elif untold:
        kind = CANNOT_TELL
    in_json = {
        "kind": kind,
        "best": best,
        "untold": untold,
        "why": reason,
        "rms_within": rms_within,
        "explained": explained,
    }
    return Verdict(in_json, {name: rms[name] for name in (best, *others)})


def _is_beaten(
    other_T: np.ndarray, best_T: np.ndarray, unit_T: np.ndarray, apart: float, best_rms: float
) -> bool:
    """True if a candidate is told from the best one, by their differences to the engine.

    `apart` is the rms of the candidate's difference to the best, `best_rms` that of the best's to
    the engine. Rounding may lean a little towards one candidate, so one that is nearly the best is
    not told from it by an interval alone.
    """
    # A far one is beaten without an interval: few tokens give none.
    if apart > max(FAR_APART * best_rms, LEAST_RMS):
        return True
    excess = estimate([(1.0, sums([other_T**2 - best_T**2], unit_T))])
    return excess.interval(INTERVAL_LEVEL)[0] > 0 and apart > LEAST_APART * best_rms


def _explained_share(d_T: np.ndarray, differences: Sequence[np.ndarray]) -> float:
    """Share of the variance of d that a linear combination of the differences explains.

    That is the adjusted R^2, which may lie below 0; 0 with too few targets.
    """
    differences_TK = np.stack(differences, axis=1)
    differences_TK = differences_TK - differences_TK.mean(axis=0)
    d_T = d_T - d_T.mean()
    # The cutoff is above the rounding of float32: differences that are equal but for it count once.
    weights_K, _, rank, _ = np.linalg.lstsq(differences_TK, d_T, rcond=1e-6)
    residual = float(np.square(d_T - differences_TK @ weights_K).sum())
    total = float(np.square(d_T).sum())
    free = len(d_T) - 1 - rank  # degrees of freedom; with few, R^2 is mostly chance
    if total <= 0 or free <= 4 * rank:
        return 0.0
    return 1 - residual / total * (len(d_T) - 1) / free


def _all_targets(losses: Losses, lengths: Iterable[int]) -> np.ndarray:
    """Losses of all targets at some lengths, one length after the other: [T]."""
    return np.concatenate([losses[length].ravel() for length in lengths])


def _root_mean_square(values: np.ndarray) -> float:
    """Root of the mean of the squares; nan without any value."""
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else math.nan
