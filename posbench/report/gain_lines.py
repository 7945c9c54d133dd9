"""Lines below the tables of a report on G and its gate: whether a model uses its window at all.

A training has a line on it; where they would be many, an encoding has one for its seeds."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from posbench.report.labels import Labels
from posbench.report.records import grouped
from posbench.report.references import References
from posbench.report.tables import number_text
from posbench.results.evaluation import Evaluation
from posbench.results.run_metadata import RunMetadata
from posbench.statistics.crossed import Estimate

MOST_LINES = 24  # lines of a section, above which the seeds of an encoding share one
FAILED = (
    "gate failed: nothing shows that the model uses the second half of its window, so comparisons"
    " between methods are unreliable: "
)
UNTIL = ", until the lower bound of G lies above 0"
WAY_ON = (
    f"{FAILED}train longer (train.steps) or a larger model (model.d_model, model.n_layer){UNTIL}"
)
WAY_ON_OF_CHILD = (
    f"{FAILED}fine-tune longer (finetune.steps), or with an extension that holds at that length"
    f" (extension){UNTIL}"
)
WAY_ON_OF_CHECKPOINT = (
    f"{FAILED}read other texts (data=), or more of them (evaluate.windows){UNTIL}"
)


class Gain(NamedTuple):
    """G of one training: its loss with half of the window minus that with the whole window."""

    encoding: str
    protocol: str  # that G is taken from; "" for that of the section
    train_len: int
    seed: int
    estimate: Estimate

    @property
    def passed(self) -> bool:
        """True if the interval lies above zero."""
        return self.estimate.lower > 0


class UnknownGain(NamedTuple):
    """A training whose G is not known, and why."""

    reason: str
    encoding: str
    seed: int


def gain_lines(
    evaluations: Iterable[Evaluation],
    references: References,
    label: Labels,
    origins: Mapping[Path, RunMetadata],
) -> list[str]:
    """A line for each encoding and seed of a section, or for each encoding; lines on an unknown G,
    and on what mends a failed gate.
    """
    keys_by_windows = _keys_by_windows(references)
    gains: list[Gain] = []
    unknown: list[UnknownGain] = []
    ways_on: dict[str, None] = {}
    for evaluation in _last_evaluations(evaluations):
        row = evaluation.first
        encoding = label(row)[0]
        key = evaluation.key
        if key not in references.gains:  # that of another protocol on the same windows, if any
            key = keys_by_windows.get(evaluation.windows)
        if key is None:
            unknown.append(UnknownGain(_why_unknown(evaluation), encoding, row["seed"]))
            continue
        _, key_protocol, _ = key
        protocol = "" if key == evaluation.key else key_protocol
        gain = Gain(encoding, protocol, row["train_len"], row["seed"], references.gains[key])
        gains.append(gain)
        if not gain.passed:
            ways_on[_way_on_sentence(evaluation, origins)] = None
    lines = _lines_of_encodings(gains) if len(gains) > MOST_LINES else _lines_of_trainings(gains)
    return [*lines, *_lines_of_unknown(unknown), *ways_on]


def _keys_by_windows(references: References) -> dict[tuple, tuple]:
    """{windows: key of a known G}: it holds for other protocols on the same windows too."""
    keys: dict[tuple, tuple] = {}
    for key in references.gains:
        keys.setdefault(references.floors[key, "floor"].windows, key)
    return keys


def _last_evaluations(evaluations: Iterable[Evaluation]) -> list[Evaluation]:
    """Of each training the last of its evaluations that have rows by length; sorted by encoding and
    seed.
    """
    by_run = {
        evaluation.first["run_id"]: evaluation
        for evaluation in evaluations
        if not evaluation.rows_alone and any(row["position"] is None for row in evaluation.rows)
    }
    return sorted(by_run.values(), key=lambda last: (last.first["encoding"], last.first["seed"]))


def _why_unknown(evaluation: Evaluation) -> str:
    """End of the line on a training whose G is not known: what it takes to know it."""
    texts = ""
    if evaluation.full_from:
        texts = f" in texts of {evaluation.full_from} tokens or more (evaluate.max_length)"
    return (
        f"unknown, since it takes recompute_window at both windows{texts} and the loss of every"
        " target; gate: unknown"
    )


def _way_on_sentence(evaluation: Evaluation, origins: Mapping[Path, RunMetadata]) -> str:
    """Sentence on what mends a failed gate."""
    if evaluation.first["finetune"]:
        return WAY_ON_OF_CHILD
    if origins[evaluation.origin].config.get("model.path"):
        return WAY_ON_OF_CHECKPOINT
    return WAY_ON


def _lines_of_trainings(gains: Iterable[Gain]) -> list[str]:
    """Lines such as "G rope seed 0: 32 -> 64 tokens of context bring 0.105 +- ... gate: ok"."""
    lines = []
    for gain in gains:
        name = f"{gain.encoding} seed {gain.seed}{_protocol_words(gain.protocol)}"
        lines.append(f"G {name}: {_context_words(gain.train_len)} {_estimate_words(gain)}")
    return lines


def _lines_of_encodings(gains: Iterable[Gain]) -> list[str]:
    """Lines such as "G rope seeds 0, 1: 32 -> 64 tokens of context bring 0.105 nats/token ..."."""
    lines = []
    alike = grouped(gains, lambda gain: (gain.encoding, gain.protocol, gain.train_len))
    for (encoding, protocol, train_len), of_encoding in alike.items():
        by_seed = {gain.seed: gain for gain in of_encoding}
        name = f"{encoding} {_seed_words(by_seed)}{_protocol_words(protocol)}"
        lines.append(f"G {name}: {_context_words(train_len)} {_mean_words(by_seed)}")
    return lines


def _lines_of_unknown(unknown: Iterable[UnknownGain]) -> list[str]:
    """Lines such as "G rope seeds 0, 1; alibi seed 0: unknown, since ..."."""
    lines = []
    for reason, trainings in grouped(unknown, lambda training: training.reason).items():
        by_encoding = grouped(trainings, lambda training: training.encoding)
        names = [
            f"{encoding} {_seed_words(training.seed for training in of_encoding)}"
            for encoding, of_encoding in by_encoding.items()
        ]
        lines.append(f"G {'; '.join(names)}: {reason}")
    return lines


def _protocol_words(protocol: str) -> str:
    return f" (by {protocol})" if protocol else ""


def _context_words(train_len: int) -> str:
    return f"{train_len // 2} -> {train_len} tokens of context bring"


def _seed_words(numbers: Iterable[int]) -> str:
    """Seeds in words.

    >>> _seed_words([1, 0, 1]), _seed_words([2])
    ('seeds 0, 1', 'seed 2')
    """
    seeds = sorted(set(numbers))
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"


def _mean_words(gains: Mapping[int, Gain]) -> str:
    """Mean over {seed: G}, its range and the gate, such as "0.105 nats/token (0.1 to 0.11); gate:
    ok".
    """
    values = [gain.estimate.value for gain in gains.values()]
    mean = f"{number_text(sum(values) / len(values))} nats/token"
    if len(values) > 1:
        mean += f" ({number_text(min(values))} to {number_text(max(values))})"
    failed = [seed for seed, gain in gains.items() if not gain.passed]
    gate = f"failed, {_seed_words(failed)}" if failed else "ok"
    return f"{mean}; gate: {gate}"


def _estimate_words(gain: Gain) -> str:
    """G with its interval and the gate, such as "0.105 +- 0.004 nats/token, 95 % above 0.101; gate:
    ok".
    """
    value = number_text(gain.estimate.value)
    low, high = gain.estimate.interval()
    if math.isnan(low):
        return (
            f"{value} nats/token, no interval (one document); gate: failed, one document shows"
            " nothing: evaluate.windows for more"
        )
    gate = "ok" if low > 0 else f"failed, {-low:.2g} nats/token short"
    half_width = number_text((high - low) / 2)
    return f"{value} +- {half_width} nats/token, 95 % above {number_text(low)}; gate: {gate}"
