"""Sentences on comparisons. The command, the API and the explore page fill the same TEXTS."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from posbench.report.comparison import (
    ACCURACY,
    BEST,
    BETTER,
    CHANGE,
    LOSS,
    NO_BASE,
    NO_INTERVAL,
    NO_SHARED_SEED,
    NOT_TOLD_APART,
    ONE_DOCUMENT,
    ONE_SEED,
    ONLY_MEANS,
    OTHER_TARGETS,
    REFERENCE,
    RISE,
    WORSE,
    Compared,
    Comparison,
    seeds_of,
)
from posbench.report.table_formats import FAILS_MARK, GAINS_MARK, LEVEL_MARK
from posbench.statistics.over_seeds import FROM_SEEDS, FROM_SUMS
from posbench.statistics.verdict_rules import ALPHA

NATS = "nats"
PPL = "ppl"
BPB = "bpb"
UNITS = (NATS, PPL, BPB)
UNIT_WORDS = {NATS: "nats/token", PPL: "perplexity", BPB: "bits/byte"}
SHARE_WORDS = "of the answers"
MEASURE_WORDS = {
    LOSS: "loss",
    RISE: "loss minus the floor",
    CHANGE: "loss minus that without extension",
    ACCURACY: "accuracy",
}
RATIO_WORDS = {  # of exp() of a measure
    LOSS: "perplexity",
    RISE: "perplexity over that of the floor",
    CHANGE: "perplexity over that without extension",
}
RATIO_UNITS = {
    LOSS: "times the perplexity",
    RISE: "times that ratio",
    CHANGE: "times that ratio",
}
MARK_OF_VERDICT = {
    BETTER: GAINS_MARK,
    WORSE: FAILS_MARK,
    NOT_TOLD_APART: LEVEL_MARK,
    NO_INTERVAL: "",
    BEST: "",
    REFERENCE: "",
}
MOST_NAMED = 6  # lines that one sentence names
MOST_NATS = 709.0  # exp() overflows above

TEXTS = {
    "beyond": "At {multiple} times the training length ({length} tokens)",
    "inside": "At the training length ({length} tokens)",
    "position": "At position {length} of the window",
    "context": "With {length} tokens of context",
    "best": "{place}, {line} has the {lowest}{among} ({value}).",
    "level": "{place}, all lines have the same {measure} ({value}).",
    "of_known_seeds": " of the lines whose seeds are known",
    "over_common_seeds": " over the seeds that all lines have",
    "better_on_more_seeds": "Better than it over the seeds that both have: {lines}.",
    "reference": "{place}, {line} has the {measure} {value}.",
    "untold": "Not told apart from {reference}{after}: {lines}.",
    "after": " after Holm's correction",
    "better": "Better than {reference}: {lines}.",
    "worse": "Worse than {reference}: {lines}.",
    "only": "The only other line, {line}, is worse: {difference}.",
    "next": "The next that is worse is {line}: {difference}.",
    "by": "{line} ({difference})",
    "more": "{count} more",
    LOSS: "Compared are losses on the same targets.",
    "across": (
        "Compared are losses on the same targets, which also count how good each model is within"
        " its window; {rise} compares each loss minus its own floor."
    ),
    RISE: (
        "Compared is each loss minus its own floor, the loss of the same targets with exactly the"
        " training length of context, so that how good a model is within its window does not count."
    ),
    CHANGE: (
        "Compared is each loss minus that of the same trainings at the same length without an"
        " extension."
    ),
    ACCURACY: "Compared are shares of right answers to the same questions.",
    "crossed": (
        "Intervals (95 %) are of paired differences over seeds crossed with {count} {unit}s{alone}."
    ),
    "alone": "; of lines that share one seed over {unit}s alone",
    "one_seed": (
        "Intervals (95 %) are of paired differences over {count} {unit}s of one seed: they say"
        " nothing of other trainings."
    ),
    "from_seeds": (
        "Intervals (95 %) of {lines} are Student's over seeds alone, since sums over documents are"
        " not known."
    ),
    "every": "all lines",
    "without": "No interval of {lines}: {reason}.",
    "shared": (
        "Lines have different seeds: values are means over those that all have ({seeds}), and a"
        " difference is over those that both have."
    ),
    "unshared": (
        "No seed is shared by all lines: values are means over each line's own seeds, and a"
        " difference is over those that both have."
    ),
    "holm": (
        "p is Holm's for {count} differences, and the marks follow it; each interval is of its"
        " difference alone."
    ),
    "uncorrected": "p is not corrected for {count} differences.",
    "chosen": "The best was chosen by the same numbers; nothing corrects for that choice.",
    "marks": "Marks: < better, > worse, ~ not told apart (p of 0.05 or more).",
    "gate_failed": "Gate failed, so nothing shows that these use their window: {lines}.",
    "gates_failed": (
        "Every gate failed: nothing shows that any of these lines uses its window, so that the"
        " differences say nothing of extrapolation."
    ),
    "gate_unknown": "Gate unknown, without evaluations of a full and a half window: {lines}.",
    "inside_unknown": (
        "Whether the task was learned is unknown, without questions inside the window: {lines}."
    ),
    "unlearned": "No training learned the task: {lines}.",
    "none_learned": (
        "No training of any line learned the task, so that the differences say nothing of"
        " extrapolation."
    ),
    "foreign": "Nothing shows that {lines} had the same targets.",
    "absent": "Left out, without a finite value there: {lines}.",
}
BEST_WORDS = {
    LOSS: "lowest {measure}",
    RISE: "lowest {measure}",
    CHANGE: "lowest {measure}",
    ACCURACY: "highest {measure}",
}


def all_words() -> dict:
    """All words of comparisons, for the explore page, which fills and chooses them alike."""
    return {
        "texts": TEXTS,
        "marks": MARK_OF_VERDICT,
        "measures": MEASURE_WORDS,
        "ratios": RATIO_WORDS,
        "ratio_units": RATIO_UNITS,
        "units": UNIT_WORDS,
        "share": SHARE_WORDS,
        "lowest": BEST_WORDS,
        "reasons": {
            "only_means": ONLY_MEANS,
            "no_shared_seed": NO_SHARED_SEED,
            "other_targets": OTHER_TARGETS,
            "no_base": NO_BASE,
            "one_seed": ONE_SEED,
            "one_document": ONE_DOCUMENT,
        },
        "most_named": MOST_NAMED,
        "alpha": ALPHA,
    }


class ShownDifference(NamedTuple):
    """A difference in a unit, with both ends of its interval; None where there is none."""

    value: float
    low: float | None
    high: float | None


class Scale(NamedTuple):
    """Scale in which a comparison is shown."""

    unit: str  # of UNITS; accuracy has none
    measure: str

    @property
    def is_ratio(self) -> bool:
        """True where differences of losses are shown as ratios of perplexities."""
        return self.unit == PPL and self.measure != ACCURACY

    @property
    def measure_words(self) -> str:
        """Such as "loss" or "perplexity"."""
        return RATIO_WORDS[self.measure] if self.is_ratio else MEASURE_WORDS[self.measure]

    @property
    def words(self) -> str:
        """Such as "loss (nats/token)"."""
        if self.is_ratio or self.measure == ACCURACY:
            return self.measure_words
        return f"{self.measure_words} ({UNIT_WORDS[self.unit]})"

    @property
    def difference_words(self) -> str:
        """Unit of differences: "nats/token", "times the perplexity"."""
        if self.measure == ACCURACY:
            return SHARE_WORDS
        return RATIO_UNITS[self.measure] if self.is_ratio else UNIT_WORDS[self.unit]

    def value(self, row: Compared) -> float | None:
        """Value of a line; None if it is unknown in the unit."""
        if self.measure == ACCURACY:
            return row.value
        if self.is_ratio:
            return math.exp(row.value) if row.value < MOST_NATS else None
        return _finite_or_none(row.value * self._factor(row))

    def difference(self, row: Compared) -> ShownDifference | None:
        """Difference of a line to the reference; a perplexity is divided by that of the other. None
        for the reference itself, and if it is not finite or unknown in the unit.
        """
        if row.difference is None:
            return None
        ends = [row.difference.value, *row.difference.interval()]
        if self.is_ratio:  # exp() of a difference of losses; it overflows above MOST_NATS
            ends = [math.exp(min(end, MOST_NATS)) for end in ends]
        elif self.measure != ACCURACY:
            ends = [end * self._factor(row) for end in ends]
        value, low, high = map(_finite_or_none, ends)  # ends of an unknown interval are nan
        return None if value is None else ShownDifference(value, low, high)

    def _factor(self, row: Compared) -> float:
        """Bits per byte in one nat per token of the line's targets, nan if unknown; 1 in nats."""
        if self.unit != BPB:
            return 1.0
        for seed in seeds_of(row.line.record):
            if seed.row["n_bytes"]:
                return seed.row["n_targets"] / math.log(2) / seed.row["n_bytes"]
        bpb = getattr(row.line.record, "bpb", None)
        return bpb / row.line.record.nll if bpb and row.line.record.nll else math.nan

    def number(self, value: float) -> str:
        """A difference with its sign, or a ratio."""
        return f"{value:.3f}" if self.is_ratio else f"{value:+z.3f}"

    def interval(self, shown: ShownDifference) -> str:
        """Such as "+0.105 [+0.093, +0.117]"."""
        if shown.low is None:
            return f"{self.number(shown.value)} (no interval)"
        return f"{self.number(shown.value)} [{self.number(shown.low)}, {self.number(shown.high)}]"

    def with_unit(self, row: Compared) -> str:
        """Value of a line, such as "3.052 nats/token", "perplexity" left to the measure."""
        value = self.value(row)
        number = "unknown" if value is None else f"{value:z.3f}"
        return number if self.is_ratio else f"{number} {self.difference_words}"


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def result_sentences(comparison: Comparison, scale: Scale) -> str:
    """Result of a comparison in sentences for a paper."""
    reference = comparison.reference
    if reference.verdict == BEST:
        return " ".join(_sentences_on_best(comparison, scale))
    parts = [
        TEXTS["reference"].format(
            place=place_words(comparison),
            line=reference.line.name,
            measure=scale.measure_words,
            value=scale.with_unit(reference),
        )
    ]
    for verdict, form in ((BETTER, "better"), (WORSE, "worse")):
        rows = _rows_judged(comparison, verdict)
        if rows:
            lines = _lines_with_differences(rows, scale)
            parts.append(TEXTS[form].format(reference="it", lines=lines))
    return " ".join([*parts, *_sentence_on_not_told_apart(comparison, "it")])


def _rows_judged(comparison: Comparison, verdict: str) -> list[Compared]:
    """Lines with a verdict, the best first."""
    return [row for row in comparison.lines if row.verdict == verdict]


def _sentences_on_best(comparison: Comparison, scale: Scale) -> list[str]:
    """Sentences where the reference is the best line, or where all lines are alike."""
    better = _rows_judged(comparison, BETTER)
    worse = _rows_judged(comparison, WORSE)
    values = {row.value for row in comparison.lines}
    if len(values) == 1 and not better and not worse:  # such as accuracies of 0
        return [
            TEXTS["level"].format(
                place=place_words(comparison),
                measure=scale.measure_words,
                value=scale.with_unit(comparison.reference),
            )
        ]
    parts = [_best_sentence(comparison, scale)]
    if better:
        lines = _lines_with_differences(better, scale)
        parts.append(TEXTS["better_on_more_seeds"].format(lines=lines))
    parts += _sentence_on_not_told_apart(comparison, "it")
    if worse:
        # Beside one other line there is no next best.
        form = "only" if len(comparison.lines) == 2 else "next"
        row = worse[0]
        parts.append(
            TEXTS[form].format(line=row.line.name, difference=_difference_words(row, scale))
        )
    return parts


def _lines_with_differences(rows: Sequence[Compared], scale: Scale) -> str:
    """Lines in a sentence, each with its difference to the reference."""
    return names_in_sentence(
        [
            TEXTS["by"].format(line=row.line.name, difference=_difference_words(row, scale))
            for row in rows
        ]
    )


def _best_sentence(comparison: Comparison, scale: Scale) -> str:
    """Sentence on the best line, which is the reference, and among what it is the best."""
    reference = comparison.reference
    among = ""
    if reference.rank > 1:  # a line without known seeds has a better mean
        among += TEXTS["of_known_seeds"]
    if _rows_judged(comparison, BETTER):
        among += TEXTS["over_common_seeds"]
    return TEXTS["best"].format(
        place=place_words(comparison),
        line=reference.line.name,
        lowest=BEST_WORDS[comparison.measure].format(measure=scale.measure_words),
        among=among,
        value=scale.with_unit(reference),
    )


def place_words(comparison: Comparison) -> str:
    """Such as "At 8 times the training length (512 tokens)"."""
    form = "inside" if comparison.multiple == 1 else "beyond"
    return TEXTS[form].format(multiple=f"{comparison.multiple:g}", length=f"{comparison.length:,}")


def _difference_words(row: Compared, scale: Scale) -> str:
    shown = scale.difference(row)
    return f"{scale.interval(shown)} {scale.difference_words}" if shown else "unknown"


def _sentence_on_not_told_apart(comparison: Comparison, reference: str) -> list[str]:
    """Sentence on the lines that are not told apart from the reference, if there are any."""
    names = [row.line.name for row in _rows_judged(comparison, NOT_TOLD_APART)]
    if not names:
        return []
    is_corrected = comparison.correction == "holm" and comparison.n_corrected > 1
    correction_clause = TEXTS["after"] if is_corrected else ""
    return [
        TEXTS["untold"].format(
            reference=reference, after=correction_clause, lines=names_in_sentence(names)
        )
    ]


def names_in_sentence(names: Sequence[str]) -> str:
    """Names in a sentence: "a, b and c", of many the first."""
    shown = list(names[:MOST_NAMED])
    if len(names) > MOST_NAMED:
        shown.append(TEXTS["more"].format(count=len(names) - MOST_NAMED))
    if len(shown) == 1:
        return shown[0]
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def how_compared(comparison: Comparison) -> list[str]:
    """Lines on the targets, the seeds, the intervals, the correction and the gates."""
    return [
        _measure_line(comparison),
        *_foreign_lines(comparison),
        *_interval_lines(comparison),
        *_seed_lines(comparison),
        *_correction_lines(comparison),
        *_gate_lines(comparison),
        *_absent_lines(comparison),
    ]


def _measure_line(comparison: Comparison) -> str:
    encodings = {row.line.record.encoding for row in comparison.lines}
    if comparison.measure == LOSS and len(encodings) > 1:
        return TEXTS["across"].format(rise="measure=rise")
    return TEXTS[comparison.measure]


def _foreign_lines(comparison: Comparison) -> list[str]:
    """Line on the methods of CSVs that state means alone: their targets are unknown."""
    names = [row.line.name for row in comparison.lines if not row.line.seeds]
    return [TEXTS["foreign"].format(lines=names_in_sentence(names))] if names else []


def _interval_lines(comparison: Comparison) -> list[str]:
    """Lines on the units of the intervals, and on differences without one."""
    lines = []
    with_interval = [row for row in comparison.lines if row.p is not None]
    from_sums = [row for row in with_interval if row.interval_source == FROM_SUMS]
    from_seeds = [row for row in with_interval if row.interval_source == FROM_SEEDS]
    if from_sums:
        lines.append(_sums_line(from_sums))
    if from_seeds:
        every = len(from_seeds) == len(comparison.lines) - 1  # all but the reference
        names = (
            TEXTS["every"] if every else names_in_sentence([row.line.name for row in from_seeds])
        )
        lines.append(TEXTS["from_seeds"].format(lines=names))
    for reason in dict.fromkeys(row.reason for row in comparison.lines if row.reason):
        names = [row.line.name for row in comparison.lines if row.reason == reason]
        lines.append(TEXTS["without"].format(lines=names_in_sentence(names), reason=reason))
    return lines


def _sums_line(rows: Sequence[Compared]) -> str:
    """Sentence on how intervals are computed from the stored sums of documents: over documents for
    one seed, over documents and seeds for several. Lines of one seed beside others are named.
    """
    count = max(row.difference.n_documents for row in rows)
    unit = seeds_of(rows[0].line.record)[0].row["sem_unit"] or "document"
    of_one_seed = [row for row in rows if len(row.seeds) == 1]
    if len(of_one_seed) == len(rows):
        return TEXTS["one_seed"].format(count=count, unit=unit)
    alone = TEXTS["alone"].format(unit=unit) if of_one_seed else ""
    return TEXTS["crossed"].format(count=count, unit=unit, alone=alone)


def _seed_lines(comparison: Comparison) -> list[str]:
    """Line on the seeds of the means; [] if all lines have the same, or a CSV states the means."""
    seeds = {tuple(sorted(row.line.seeds)) for row in comparison.lines if row.line.seeds}
    if len(seeds) < 2:
        return []
    if not comparison.common_seeds:
        return [TEXTS["unshared"]]
    return [TEXTS["shared"].format(seeds=", ".join(map(str, comparison.common_seeds)))]


def _correction_lines(comparison: Comparison) -> list[str]:
    """Lines on p-values: whether they are corrected, how the reference was chosen, and marks."""
    lines = []
    if comparison.n_corrected > 1:
        form = "holm" if comparison.correction == "holm" else "uncorrected"
        lines.append(TEXTS[form].format(count=comparison.n_corrected))
        # The best line was chosen by the same numbers, which favours it.
        if comparison.reference.verdict == BEST:
            lines.append(TEXTS["chosen"])
    if comparison.n_corrected:
        lines.append(TEXTS["marks"])
    return lines


def _gate_lines(comparison: Comparison) -> list[str]:
    """Lines on the lines whose gate failed or is unknown; of a task on those that never learned."""
    of_task = comparison.section.task is not None
    failed = [row.line.name for row in comparison.lines if row.line.gate == "failed"]
    unknown = [row.line.name for row in comparison.lines if not row.line.gate]
    lines = []
    if failed and len(failed) == len(comparison.lines):
        lines.append(TEXTS["none_learned" if of_task else "gates_failed"])
    elif failed:
        form = "unlearned" if of_task else "gate_failed"
        lines.append(TEXTS[form].format(lines=names_in_sentence(failed)))
    if unknown:
        every = len(unknown) == len(comparison.lines)
        names = TEXTS["every"] if every else names_in_sentence(unknown)
        form = "inside_unknown" if of_task else "gate_unknown"
        lines.append(TEXTS[form].format(lines=names))
    return lines


def _absent_lines(comparison: Comparison) -> list[str]:
    if not comparison.absent:
        return []
    return [TEXTS["absent"].format(lines=names_in_sentence(comparison.absent))]
