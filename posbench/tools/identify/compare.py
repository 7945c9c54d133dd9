"""Verdict: which candidate an engine's losses are, by the differences of single tokens. numpy
alone.

d = engine - candidate is, for the right one, the rounding of the engine alone: small, and unrelated
to how candidates differ from each other. For a wrong one it holds that difference too. So, over all
tokens and lengths together:

best: the candidate of the smallest rms of d. Beaten is another one if the interval (99 %) of the
mean of its d^2 minus that of the best lies above 0, and if its losses are further from the best's
than APART of the best's rms: rounding that leans a little towards another candidate can decide
about smaller differences. One further than FAR times that rms, and than LEAST, is beaten without an
interval, which few tokens do not give. "Cannot tell" where one is not beaten. None of them, if any
of these holds:
  - rms of d is above LEAST, and the differences of the candidates to the best explain more than EXPLAINED of its variance (adjusted R^2 of
    a regression) by ERRORS times its error by chance, sqrt(2 K) / T;
  - within the training length, where a model is not broken, rms of d is above ROUNDING;
  - rms of d is above ROUNDING and above SHARE of the median distance of the best to the others.

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
and explained by 0.02. LEAST is above that, and above what one token more does to a factor that
follows the length (0.014 of 192 tokens): a server that echoes a prompt has read its last target
too. Units of intervals are windows, or, with fewer than UNITS of them, runs of their targets: not
the texts but the rounding is a sample here.

Letters: N windows, S targets of each, T all targets of all lengths, K candidates.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from posbench.statistics.crossed import estimate, sums

LEVEL, APART, FAR, EXPLAINED, ERRORS, LEAST, ROUNDING, SHARE = (
    0.99,
    0.5,
    20.0,
    0.1,
    3,
    0.03,
    0.3,
    0.5,
)
UNITS = 16
IS, UNTOLD, NONE = "is", "cannot tell", "none"
Losses = Mapping[int, np.ndarray]  # {length: [N, S]}


def unit_runs(window: np.ndarray) -> np.ndarray:
    """Unit of each target, of the number of its window: that, or an equal run of its window's
    targets where there are few windows.
    """
    numbers, member, counts = np.unique(window.ravel(), return_inverse=True, return_counts=True)
    parts = -(-UNITS // len(numbers))
    within = np.arange(member.size) - np.concatenate(([0], np.cumsum(counts)))[member]
    return (member * parts + within * parts // counts[member]).reshape(window.shape)


def compare_losses(engine: Losses, candidate: Losses, unit: Losses) -> list[dict]:
    """Points of identify.json: at each length the mean of the differences with its interval over
    units, their rms, and the correlation.
    """
    points = []
    for length, theirs in engine.items():
        difference = theirs - candidate[length]
        mean = estimate([(1.0, sums([difference.ravel()], unit[length].ravel()))])
        spread = min(theirs.std(), candidate[length].std())
        correlation = (
            float(np.corrcoef(theirs.ravel(), candidate[length].ravel())[0, 1])
            if spread > 0
            else math.nan
        )
        told = {
            "length": length,
            "n_targets": mean.n_targets,
            "mean": [mean.value, *mean.interval()],
        }
        points.append({**told, "rms": _rms(difference), "correlation": correlation})
    return points


def judge_setting(
    engine: Losses, found: Mapping[str, Losses], unit: Losses, train_len: int
) -> tuple[dict, dict[str, float]]:
    """(verdict on the candidates by the rule above, {candidate: rms of d over all lengths}, the
    best first).

    The verdict is as identify.json has it: its kind, the best candidate, those not told from it,
    why none is it, the rms of the best at lengths within the training length (nan without one), and
    the share of its d that others explain."""
    theirs_T, unit_T = _joined(engine), np.concatenate([unit[length].ravel() for length in engine])
    ours = {
        name: _joined({length: losses[length] for length in engine})
        for name, losses in found.items()
    }
    rms = {name: _rms(theirs_T - loss_T) for name, loss_T in ours.items()}
    best, *others = sorted(rms, key=rms.__getitem__)
    d_T, apart = theirs_T - ours[best], {name: _rms(ours[name] - ours[best]) for name in others}
    untold = [
        name
        for name in others
        if not _beaten(theirs_T - ours[name], d_T, unit_T, apart[name], rms[best])
    ]
    explained = _explained(d_T, [ours[name] - ours[best] for name in others])
    by_chance = ERRORS * math.sqrt(2 * len(others)) / len(d_T)
    short = {length: losses for length, losses in engine.items() if length <= train_len}
    within = (
        _rms(_joined(short) - _joined({length: found[best][length] for length in short}))
        if short
        else math.nan
    )
    why = ""
    if within > ROUNDING:
        usual = f"rounding by less than {ROUNDING:g} (a cache of 4 bits by 0.5)"
        why = (
            f"within {train_len:,} tokens even the best differs by {within:.2f} nats rms, and"
            f" {usual}"
        )
    elif rms[best] > max(ROUNDING, SHARE * float(np.median(list(apart.values())))):
        why = (
            f"even the best differs by {rms[best]:.2f} nats rms, not much less than the candidates"
            " from each other"
        )
    elif rms[best] > LEAST and explained > EXPLAINED + by_chance:
        why = (
            "what is left beside the best is not rounding: the other candidates explain"
            f" {explained:.0%} of it"
        )
    told = {
        "kind": NONE if why else UNTOLD if untold else IS,
        "best": best,
        "untold": untold,
        "why": why,
    }
    return {**told, "rms_within": within, "explained": explained}, {
        name: rms[name] for name in (best, *others)
    }


def _beaten(
    other_T: np.ndarray, d_T: np.ndarray, unit_T: np.ndarray, apart: float, rms: float
) -> bool:
    """True if a candidate with the differences other_T is told from the best, which has d_T."""
    if apart > max(FAR * rms, LEAST):
        return True
    more = estimate([(1.0, sums([other_T**2 - d_T**2], unit_T))])
    return more.interval(LEVEL)[0] > 0 and apart > APART * rms


def _explained(d_T: np.ndarray, towards: Sequence[np.ndarray]) -> float:
    """Share of the variance of d that a linear combination of the differences explains: adjusted
    R^2, 0 with too few targets.
    """
    away_TK = np.stack(towards, axis=1)
    away_TK, d_T = away_TK - away_TK.mean(axis=0), d_T - d_T.mean()
    found, _, rank, _ = np.linalg.lstsq(away_TK, d_T, rcond=1e-6)
    left, total, free = (
        float(np.square(d_T - away_TK @ found).sum()),
        float(np.square(d_T).sum()),
        len(d_T) - 1 - rank,
    )
    return 1 - left / total * (len(d_T) - 1) / free if total > 0 and free > 4 * rank else 0.0


def _joined(losses: Losses) -> np.ndarray:
    return np.concatenate([one.ravel() for one in losses.values()])


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else math.nan
