"""Lines below the tables of a report: what was measured, meanings of marks, settings of trainings,
arguments, and G with its gate.

The gate is whether a model uses its window at all. A training has a line on it; where they would be
many, an encoding has one for its seeds."""

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from posbench.config.identity import method_args, method_name
from posbench.config.names import called
from posbench.evaluation.protocol import known
from posbench.position.default_beta import PUBLISHED, default_beta
from posbench.report.labels import METHODS, Labels
from posbench.report.learned import LEARNED
from posbench.report.records import (
    SEEDS_ALIKE,
    ContextPoint,
    CurvePoint,
    Record,
    Score,
    grouped,
    interval_units,
    span,
    two_seeds,
)
from posbench.report.references import References
from posbench.report.scores import GUESSES
from posbench.report.seed_marks import mark_lines
from posbench.report.tables import NEVER, number
from posbench.results.evaluation import Evaluation
from posbench.results.run_metadata import RunMetadata, differing, text
from posbench.statistics.crossed import Estimate

MARKS = (
    "< gains from the longer context, > fails, ~ zero lies inside the interval (which does not"
    " prove that nothing is lost)"
)
EARLY = ", or what there is where a document begins"
UNASKED = "not asked inside the window, so that a failure beyond it says nothing of a method"
PARENT_UNASKED = (
    "the parent was not asked inside its window, so that a failure says nothing of a method"
)
QUANTISED = re.compile(r"(\d+) I?Q(\d)_?\w*")  # 210 Q4_1 in the text of train.json
MANY = 24  # lines of a section, above which the seeds of an encoding share one
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


def below_curve(curve: Sequence[CurvePoint]) -> list[str]:
    """Lines below the tables of losses by length or position: what was measured, and the meaning of
    the marks.
    """
    first, lines = curve[0], []
    over = interval_units(
        one.over
        for one in curve
        if (one.change_half_width if one.window else one.half_width) is not None
    )
    if first.window and first.n_units == 1:
        lines = [
            f"one {first.sem_unit}: there is no interval, and another text gives other numbers"
            " (evaluate.windows for more)"
        ]
    elif over:
        lines = [
            f"+- : half a 95 % interval of the paired difference, Student's t {over}; it says"
            " nothing of other corpora"
        ]
        lines.append(
            "< a lower loss than without extension, > a higher one, ~ zero lies inside"
            if first.window
            else MARKS
        )
    return _below(curve, targets_of(first), "loss and bits per byte are means over them", lines)


def below_scores(section: Sequence[Score]) -> list[str]:
    """Lines below the tables of a task: what was asked, what the intervals are over, and which
    methods have not learned the task.
    """
    lines = [*guessed(section), _of_answer_losses(section), *unlearned(section)]
    return _below(
        section, f"{questions_of(section)}, the same for every method", _in_brackets(section), lines
    )


def _in_brackets(section: Sequence[Score]) -> str:
    """Text on the intervals of accuracies, such as "in brackets: 95 % interval, Student's t over
    seeds crossed with examples".
    """
    units = {score.over for score in section}
    rules = []
    if by_t := interval_units(unit for unit in units if unit.startswith("seeds")):
        rules.append(f"Student's t {by_t}")
    if SEEDS_ALIKE in units:
        rules.append("Wilson's over examples where all seeds have the same accuracy")
    if by_wilson := interval_units(
        unit for unit in units if unit != SEEDS_ALIKE and not unit.startswith("seeds")
    ):
        rules.append(f"Wilson's {by_wilson}")
    return f"in brackets: 95 % interval, {'; '.join(rules)}"


def _of_answer_losses(section: Sequence[Score]) -> str:
    """Text on -ln p and its interval. Depths of what is asked for are chosen and not drawn: they
    are strata.
    """
    mean = "-ln p: the mean over answers"
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
    train_len, over = section[0].train_len, units_of_doubling(section)
    gained = (
        f"G: the gain from the second half of the window, the loss with {train_len // 2} tokens"
        f" minus that with {train_len}"
    )
    lines = [gained + (f"; +- : half a {over}; ~ zero lies inside" if over else "")]
    return _below(
        section,
        contexts_of(section),
        "losses are means over them",
        lines,
        ", extension recompute_window with c tokens",
    )


def _below(
    section: Sequence[Record], measured: str, means: str, lines: list[str], how: str = ""
) -> list[str]:
    """Lines on the text, the protocol and the setting of a section, on its seeds, `lines` of its
    own, and notes.
    """
    first = section[0]
    return [
        f"data {first.data}, tokenizer {first.tokenizer}, trained at {first.train_len} tokens",
        f"protocol {first.protocol}{how}: {measured}",
        *unstated_lines(section),
        *([f"setting: {first.setting}"] if first.setting else []),
        f"seeds: {span(one.n_seeds for one in section)}; {means}",
        *mark_lines(section),
        *lines,
        *two_seeds(section),
        *["* a pair of methods its authors have not tested"] * any(one.untested for one in section),
    ]


def unstated_lines(section: Iterable[Record]) -> list[str]:
    """Lines on what CSVs of others, beside what was measured here, do not state."""
    files: dict[str, dict[str, None]] = {}
    for one in section:
        if one.source and getattr(one, "unstated", None):
            files.setdefault(one.source, {}).update(dict.fromkeys(one.unstated.split()))
    return [
        f"{source}: {', '.join(columns)} not stated, so its lines may be of another text or"
        " protocol"
        for source, columns in files.items()
    ]


def _units(one: CurvePoint | ContextPoint) -> str:
    """Number of units, and in brackets those that a setting chooses by name."""
    documents = getattr(one.behind.setting, "documents", None)
    return (
        f"{one.n_units}"
        f" {one.sem_unit}{'s' * (one.n_units != 1)}{f' (`{documents}`)' if documents else ''}"
    )


def targets_of(point: CurvePoint) -> str:
    """Text on the targets that a point is a mean over."""
    if point.foreign:
        return "which targets were scored is not stated"
    if point.window:
        return (
            f"every token of windows of {point.window} tokens in {_units(point)}, by its position"
        )
    same = getattr(known(point.protocol), "same_targets", False)
    return (
        f"the same {point.n_targets} targets in {_units(point)} at every length"
        if same
        else f"targets in {_units(point)}"
    )


def contexts_of(section: Sequence[ContextPoint]) -> str:
    """Text on the targets that a section's losses are means over."""
    first = section[0]
    early = EARLY if first.protocol in ("sliding", "tiled_targets") else ""
    return f"the same {first.n_targets} targets in {_units(first)} for every c{early}"


def questions_of(section: Iterable[Score]) -> str:
    """Text on the questions of a section: their number at each length, and the definition of a
    right answer.
    """
    whole = [score for score in section if score.depth is None]
    texts, answers = (
        span(getattr(score, name) for score in whole) for name in ("n_texts", "n_answers")
    )
    return (
        f"{answers} answers in {texts} texts of each length, right if every token was the likeliest"
    )


def guessed(section: Iterable[Score]) -> list[str]:
    """Lines on the shares that guesses get right at the shortest and the longest length, for each
    part of a task.
    """
    known, lines = (
        [score for score in section if score.depth is None and score.by_value is not None],
        [],
    )
    for task, own in grouped(
        sorted(known, key=lambda score: score.length), lambda score: score.task
    ).items():
        for column, what in GUESSES.items():
            ends = [
                f"{getattr(score, column):.3f} at {score.length} tokens"
                for score in (own[0], own[-1])
            ]
            lines.append(f"right by {what}: {task}: {', '.join(dict.fromkeys(ends))}")
    return lines


def unlearned(section: Sequence[Score]) -> list[str]:
    """Lines on the trainings that have not learned a task inside the window, or were not asked
    there.
    """
    fine_tuned = any(score.behind.tuned_from for score in section)
    bound = f"accuracy at the longest length inside the window below {LEARNED}"
    if fine_tuned:
        bound += ", the parent's too"
    never = f"{NEVER} ({bound}), so that nothing beyond counts against a method"
    left_out = f"left out of the means ({bound})"
    names: dict[str, dict[str, dict[str, None]]] = {
        never: {},
        UNASKED: {},
        PARENT_UNASKED: {},
        left_out: {},
    }  # {reason: {task: names}}
    for score in section:
        all_learned = score.learned and score.n_seeds == score.n_trained
        if score.depth is not None or all_learned and score.inside is not None:
            continue
        name = f"{score.encoding} {score.extension}" if score.behind.trained_in else score.encoding
        if score.inside is None:
            reason = PARENT_UNASKED if score.behind.tuned_from else UNASKED
        elif score.learned:
            reason = left_out
            name += f" ({score.n_trained - score.n_seeds} of {score.n_trained} seeds)"
        else:
            reason = never
            name += f" ({score.inside:.3f})"
        names[reason].setdefault(score.task, {})[name] = None
    return [
        f"{reason}: {task}: {', '.join(of_task)}"
        for reason, tasks in names.items()
        for task, of_task in tasks.items()
    ]


def units_of_doubling(section: Sequence[ContextPoint]) -> str:
    """Text on the units of a section's intervals; "" without intervals."""
    over = interval_units(
        step.over for step in section if step.doubling_half_width is not None and step.over
    )
    return f"95 % interval of the paired difference, Student's t {over}" if over else ""


def checkpoint_lines(
    evaluations: Iterable[Evaluation], origins: Mapping[Path, RunMetadata]
) -> list[str]:
    """A line for each checkpoint among the runs; quantised weights are named as such, since they
    are dequantised when loaded.
    """
    lines = {}
    for origin in (origins[one.origin] for one in evaluations):
        if path := origin.config.get("model.path"):
            stored = text(origin.summary.get("stored") or "")
            quantised = QUANTISED.match(stored)  # the most frequent kind comes first
            how = f": {quantised[2]}-bit weights, dequantised" if quantised else ""
            lines[
                "checkpoint"
                f" {Path(text(path).rpartition(':')[2]).name}{how}{f' ({stored})' if stored else ''}"
            ] = None
    return list(lines)


def training_lines(
    evaluations: Iterable[Evaluation], origins: Mapping[Path, RunMetadata], label: Labels
) -> list[str]:
    """A line for each setting in which trainings of the encodings differ, unless their names say
    it; fine-tuned runs aside.
    """
    known: dict[str, Mapping[str, object]] = {}
    for evaluation in evaluations:
        name = label(evaluation.first)[0]
        if (
            name not in known
            and not evaluation.first["finetune"]
            and (found := origins[evaluation.origin].training)
        ):
            known[name] = found
    lines = []
    for key, values in differing(list(known.values())).items():
        if key in ("data", "sha256") or any(
            f" {key.rpartition('.')[2]}=" in name for name in known
        ):
            continue
        of = {
            value: [name for name, own in zip(known, values, strict=True) if own == value]
            for value in values
        }
        *few, most = sorted(of, key=lambda value: len(of[value]))
        said = [f"{value} for {', '.join(of[value])}" for value in few]
        said.append(f"{most} for {'the others' if len(of[most]) > 1 else of[most][0]}")
        lines.append(f"{key} is not the same for all: {'; '.join(said)}")
    return lines


def argument_line(evaluations: list[Evaluation]) -> list[str]:
    """Line with the arguments of each method, without those that are null. One method may have
    several sets.
    """
    found: dict[str, dict] = {}
    for row, group in itertools.product((evaluation.first for evaluation in evaluations), METHODS):
        args = row[METHODS[group]]
        text = _words(
            args or {},
            row["train_len"] if group == "extension" and _fastest_pair_turns_1(row) else None,
        )
        if text and row[group] != "recompute_window":
            found.setdefault(called(group, row[group], args), {})[text] = None
    return (
        ["arguments: " + "; ".join(f"{name} {' or '.join(texts)}" for name, texts in found.items())]
        if found
        else []
    )


def _fastest_pair_turns_1(row: dict) -> bool:
    """True for the RoPE of a row whose fastest pair turns by one radian for each token, as
    `default_beta` takes it.
    """
    encoding_args = row["encoding_args"] or {}
    return isinstance(encoding_args.get("base"), int | float) and not encoding_args.get("scaling")


def _words(args: Mapping[str, object], train_len: int | None = None) -> str:
    """Arguments with their values, without those that are null; a method among these by its name:
    local=rope(base=10000.0).

    `train_len` in tokens, where it is known that a null beta stands for `default_beta`: beta=2.546
    (null; 32 is published)."""
    said = {key: value for key, value in args.items() if value is not None}
    if (
        train_len is not None
        and args.get("beta", 0) is None
        and isinstance(args.get("alpha"), int | float)
    ):
        beta = default_beta(args["alpha"], train_len)
        said["beta"] = f"{beta:.4g} (null; {PUBLISHED:g} is published)"
    for key, value in said.items():
        if isinstance(value, dict):
            own = _words(method_args(value), train_len)
            said[key] = (
                f"{{{own}}}"
                if "_target_" not in value
                else f"{method_name(value)}({own})"
                if own
                else method_name(value)
            )
    return ", ".join(f"{key}={value}" for key, value in said.items())


def gain_lines(
    own: Iterable[Evaluation],
    references: References,
    label: Labels,
    origins: Mapping[Path, RunMetadata],
) -> list[str]:
    """A line for each encoding and seed of a section, or for each encoding; lines on an unknown G,
    and on what mends a failed gate.
    """
    known = references.gains
    asked_alike: dict[
        tuple, tuple
    ] = {}  # G by another protocol is taken only if its windows are the same
    for key in known:
        asked_alike.setdefault(references.floors[key, "floor"].windows, key)
    found: list[
        tuple[tuple[str, str, int], int, Estimate]
    ] = []  # name with the protocol that G is taken from, training length; seed
    failed: dict[str, None] = {}
    unknown: dict[str, dict[str, list[int]]] = {}  # {why: {encoding: seeds}}
    trained = {
        one.first["run_id"]: one
        for one in own
        if not one.rows_alone and any(row["position"] is None for row in one.rows)
    }
    for one in sorted(trained.values(), key=lambda one: (one.first["encoding"], one.first["seed"])):
        key = one.key if one.key in known else asked_alike.get(one.windows)
        name, seed = label(one.first)[0], one.first["seed"]
        if key is None:
            texts = (
                f" in texts of {one.full_from} tokens or more (evaluate.max_length)"
                if one.full_from
                else ""
            )
            why = (
                f"unknown, since it takes recompute_window at both windows{texts} and the loss of"
                " every target; gate: unknown"
            )
            unknown.setdefault(why, {}).setdefault(name, []).append(seed)
            continue
        whence = f" (by {key[1]})" if key != one.key else ""
        found.append(((name, whence, one.first["train_len"]), seed, known[key]))
        if not known[key].lower > 0:
            of_checkpoint = (
                WAY_ON_OF_CHECKPOINT if origins[one.origin].config.get("model.path") else WAY_ON
            )
            failed[WAY_ON_OF_CHILD if one.first["finetune"] else of_checkpoint] = None
    said = [
        f"G {'; '.join(f'{name} {_seeds(of)}' for name, of in names.items())}: {why}"
        for why, names in unknown.items()
    ]
    if len(found) <= MANY:
        told = [
            f"G {name} seed {seed}{whence}: {_gate(gain, train_len)}"
            for (name, whence, train_len), seed, gain in found
        ]
    else:
        alike = {
            trained: dict(one[1:] for one in of)
            for trained, of in grouped(found, lambda one: one[0]).items()
        }
        told = [
            f"G {name} {_seeds(of)}{whence}: {_gain_over_seeds(of, train_len)}"
            for (name, whence, train_len), of in alike.items()
        ]
    return [*told, *said, *failed]


def _seeds(of: Iterable[int]) -> str:
    seeds = sorted(set(of))
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def _gain_over_seeds(of: Mapping[int, Estimate], train_len: int) -> str:
    values = [gain.value for gain in of.values()]
    bring = f"{number(sum(values) / len(values))} nats/token"
    if len(values) > 1:
        bring += f" ({number(min(values))} to {number(max(values))})"
    failed = [seed for seed, gain in of.items() if not gain.lower > 0]
    return (
        f"{train_len // 2} -> {train_len} tokens of context bring {bring}; gate:"
        f" {f'failed, {_seeds(failed)}' if failed else 'ok'}"
    )


def _gate(found: Estimate, train_len: int) -> str:
    bring = f"{train_len // 2} -> {train_len} tokens of context bring {number(found.value)}"
    low, high = found.interval()
    if math.isnan(low):
        return (
            f"{bring} nats/token, no interval (one document); gate: failed, one document shows"
            " nothing: evaluate.windows for more"
        )
    ok = "ok" if low > 0 else f"failed, {-low:.2g} nats/token short"
    return f"{bring} +- {number((high - low) / 2)} nats/token, 95 % above {number(low)}; gate: {ok}"
