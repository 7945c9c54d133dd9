"""Lines below the tables of a report: what was measured, on which text, and the meaning of marks.

setting_lines.py has those on trainings and arguments, gain_lines.py those on G."""

from collections.abc import Iterable, Sequence

from posbench.common.quantities import plural
from posbench.evaluation.registry import find_protocol
from posbench.report.learned import LEAST_LEARNED_SHARE, task_that_shows_learning
from posbench.report.records import (
    SEEDS_ALIKE,
    ContextPoint,
    CurvePoint,
    Record,
    Score,
    StepPoint,
    grouped,
    interval_units,
    range_text,
    two_seeds_note,
)
from posbench.report.scores import GUESS_WORDS
from posbench.report.seed_marks import mark_lines
from posbench.report.tables import NEVER_LEARNED

MARKS_LINE = (
    "< gains from the longer context, > fails, ~ zero lies inside the interval (which does not"
    " prove that nothing is lost)"
)
MARKS_BY_POSITION = "< a lower loss than without extension, > a higher one, ~ zero lies inside"
EARLY_TARGETS_WORDS = ", or what there is where a document begins"
UNASKED = "not asked inside the window, so that a failure beyond it says nothing of a method"
PARENT_UNASKED = (
    "the parent was not asked inside its window, so that a failure says nothing of a method"
)
UNTESTED = "* a pair of methods its authors have not tested"


def below_curve(curve: Sequence[CurvePoint]) -> list[str]:
    """Lines below the tables of losses by length or position."""
    first = curve[0]
    by_position = bool(first.window)
    half_width = "change_half_width" if by_position else "half_width"
    units = interval_units(point.over for point in curve if getattr(point, half_width) is not None)
    lines = []
    if by_position and first.n_units == 1:
        lines.append(
            f"one {first.sem_unit}: there is no interval, and another text gives other numbers"
            " (evaluate.windows for more)"
        )
    elif units:
        lines.append(
            f"+- : half a 95 % interval of the paired difference, Student's t {units}; it says"
            " nothing of other corpora"
        )
        lines.append(MARKS_BY_POSITION if by_position else MARKS_LINE)
    return _lines_below(
        curve, targets_words(first), "loss and bits per byte are means over them", lines
    )


def below_scores(section: Sequence[Score]) -> list[str]:
    """Lines below the tables of a task: what was asked, what the intervals are over, and which
    methods have not learned the task.
    """
    measured = f"{questions_words(section)}, the same for every method"
    lines = [*guess_lines(section), _answer_loss_words(section), *unlearned_lines(section)]
    return _lines_below(section, measured, _accuracy_interval_words(section), lines)


def _accuracy_interval_words(section: Sequence[Score]) -> str:
    """Text on the intervals of accuracies, such as "in brackets: 95 % interval, Student's t over
    seeds crossed with examples".
    """
    units = {score.over for score in section}
    by_t = {unit for unit in units if unit.startswith("seeds")}
    rules = []
    if by_t:
        rules.append(f"Student's t {interval_units(by_t)}")
    if SEEDS_ALIKE in units:
        rules.append("Wilson's over examples where all seeds have the same accuracy")
    by_wilson = units - by_t - {SEEDS_ALIKE}
    if by_wilson:
        rules.append(f"Wilson's {interval_units(by_wilson)}")
    return f"in brackets: 95 % interval, {'; '.join(rules)}"


def _answer_loss_words(section: Sequence[Score]) -> str:
    """Text on -ln p and its interval. Depths of what is asked for are chosen and not drawn: they
    are strata.
    """
    mean = "-ln p: the mean over answers"
    # depth None: over all depths, as one score of every task and length is.
    if all(score.half_width is None for score in section if score.depth is None):
        return f"{mean}; no interval, since one text of a kind does not show how texts differ"
    interval = f"{mean}; +- half of its 95 % interval over the same units, Student's t for one seed"
    n_depths = len({score.depth for score in section if score.depth is not None})
    if n_depths < 2:
        return interval
    return (
        f"{interval}; it is over the texts at each of the {n_depths} depths, and says nothing of"
        " other depths"
    )


def below_contexts(section: Sequence[ContextPoint]) -> list[str]:
    """Lines below the table of loss against context: what was measured, and the meaning of G."""
    train_len = section[0].train_len
    meaning = (
        f"G: the gain from the second half of the window, the loss with {train_len // 2} tokens"
        f" minus that with {train_len}"
    )
    interval = doubling_interval_words(section)
    if interval:
        meaning += f"; +- : half a {interval}; ~ zero lies inside"
    return _lines_below(
        section,
        contexts_words(section),
        "losses are means over them",
        [meaning],
        protocol_words=", extension recompute_window with c tokens",
    )


def below_steps(section: Sequence[StepPoint]) -> list[str]:
    """Lines below the table of losses by length while models trained."""
    return _lines_below(
        section,
        f"the same {section[0].n_targets} targets of the validation split at every length and step",
        "losses are means over them",
        ["(in brackets): a lower loss at an earlier step"],
    )


def _lines_below(
    section: Sequence[Record],
    measured: str,
    means: str,
    lines: list[str],
    protocol_words: str = "",
) -> list[str]:
    """Lines on the text, the protocol and the setting of a section, on its seeds, `lines` of its
    own, and notes.
    """
    first = section[0]
    result = [
        f"data {first.data}, tokenizer {first.tokenizer}, trained at {first.train_len} tokens",
        f"protocol {first.protocol}{protocol_words}: {measured}",
        *unstated_lines(section),
    ]
    if first.setting:
        result.append(f"setting: {first.setting}")
    result.append(f"seeds: {range_text(record.n_seeds for record in section)}; {means}")
    result += [*mark_lines(section), *lines, *two_seeds_note(section)]
    if any(record.untested for record in section):
        result.append(UNTESTED)
    return result


def unstated_lines(section: Iterable[Record]) -> list[str]:
    """Lines on what CSVs of others, beside what was measured here, do not state."""
    columns: dict[str, dict[str, None]] = {}  # {source: columns}
    for record in section:
        unstated = getattr(record, "unstated", None)
        if record.source and unstated:
            columns.setdefault(record.source, {}).update(dict.fromkeys(unstated.split()))
    return [
        f"{source}: {', '.join(names)} not stated, so its lines may be of another text or protocol"
        for source, names in columns.items()
    ]


def _units_words(point: CurvePoint | ContextPoint) -> str:
    """Number of units, and in brackets those that a setting chooses by name, such as "12 documents
    (`longest`)".
    """
    documents = getattr(point.label_facts.setting, "documents", None)
    chosen = f" (`{documents}`)" if documents else ""
    return plural(point.n_units, point.sem_unit) + chosen


def targets_words(point: CurvePoint) -> str:
    """Text on the targets that a point is a mean over."""
    if point.foreign:
        return "which targets were scored is not stated"
    units = _units_words(point)
    if point.window:
        return f"every token of windows of {point.window} tokens in {units}, by its position"
    if getattr(find_protocol(point.protocol), "same_targets", False):
        return f"the same {point.n_targets} targets in {units} at every length"
    return f"targets in {units}"


def contexts_words(section: Sequence[ContextPoint]) -> str:
    """Text on the targets that a section's losses are means over."""
    first = section[0]
    early = EARLY_TARGETS_WORDS if first.protocol in ("sliding", "tiled_targets") else ""
    return f"the same {first.n_targets} targets in {_units_words(first)} for every c{early}"


def questions_words(section: Iterable[Score]) -> str:
    """Text on the questions of a section: their number at each length, and the definition of a
    right answer.
    """
    over_depths = [score for score in section if score.depth is None]
    texts = range_text(score.n_texts for score in over_depths)
    answers = range_text(score.n_answers for score in over_depths)
    return (
        f"{answers} answers in {texts} texts of each length, right if every token was the likeliest"
    )


def guess_lines(section: Iterable[Score]) -> list[str]:
    """Lines on the shares that guesses get right at the shortest and the longest length, for each
    part of a task.
    """
    # All kinds of guesses are known of a score, or none.
    scores = [score for score in section if score.depth is None and score.by_value is not None]
    scores.sort(key=lambda score: score.length)
    lines = []
    for task, of_task in grouped(scores, lambda score: score.task).items():
        for column, guess in GUESS_WORDS.items():
            shares = dict.fromkeys(
                f"{getattr(score, column):.3f} at {score.length} tokens"
                for score in (of_task[0], of_task[-1])
            )
            lines.append(f"right by {guess}: {task}: {', '.join(shares)}")
    return lines


def unlearned_lines(section: Sequence[Score]) -> list[str]:
    """Lines on the trainings that have not learned a task inside the window, or were not asked
    there.
    """
    bound = f"accuracy at the longest length inside the window below {LEAST_LEARNED_SHARE}"
    if any(score.label_facts.tuned_from for score in section):
        bound += ", the parent's too"
    never = f"{NEVER_LEARNED} ({bound}), so that nothing beyond counts against a method"
    left_out = f"left out of the means ({bound})"
    reasons = (never, UNASKED, PARENT_UNASKED, left_out)
    names: dict[str, dict[str, dict[str, None]]]  # {reason: {task: names}}
    names = {reason: {} for reason in reasons}
    for score in section:
        if score.depth is not None:  # its task has a score of all depths too
            continue
        name = (
            f"{score.encoding} {score.extension}"
            if score.label_facts.trained_in
            else score.encoding
        )
        n_failed = score.n_trained - score.n_seeds
        if score.inside is None:
            reason = PARENT_UNASKED if score.label_facts.tuned_from else UNASKED
        elif not score.learned:
            reason = never
            name += f" ({score.inside:.3f})"
        elif n_failed:
            reason = left_out
            name += f" ({n_failed} of {score.n_trained} seeds)"
        else:
            continue
        names[reason].setdefault(score.task, {})[name] = None
    lines = []
    for reason, tasks in names.items():
        for task, of_task in tasks.items():
            whole_task = task_that_shows_learning(task)
            # The whole task decides about its parts: a line on it holds for them too.
            if whole_task == task or tasks.get(whole_task) != of_task:
                lines.append(f"{reason}: {task}: {', '.join(of_task)}")
    return lines


def doubling_interval_words(section: Sequence[ContextPoint]) -> str:
    """Text on a section's intervals and their units; "" without intervals."""
    units = interval_units(
        step.over for step in section if step.doubling_half_width is not None and step.over
    )
    return f"95 % interval of the paired difference, Student's t {units}" if units else ""
