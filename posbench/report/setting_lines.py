"""Lines below the tables of a report on the trainings of a section and the arguments of methods."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from posbench.config.names import closest_yaml_name
from posbench.report.labels import ARGUMENT_COLUMNS, Labels
from posbench.report.method_words import arguments_text
from posbench.results.distinguish import values_of_differing_keys
from posbench.results.evaluation import Evaluation
from posbench.results.run_metadata import RunMetadata, typed_text

GROUPS_WITH_OTHER_LINES = ("data", "sha256")  # sections have a text each; weights always differ
QUANTISED_TYPE = re.compile(r"(\d+) I?Q(\d)_?\w*")  # 210 Q4_1 in the text of train.json


def checkpoint_lines(
    evaluations: Iterable[Evaluation], origins: Mapping[Path, RunMetadata]
) -> list[str]:
    """A line for each checkpoint among the runs."""
    lines: dict[str, None] = {}
    for evaluation in evaluations:
        origin = origins[evaluation.origin]
        path = origin.config.get("model.path")
        if path:
            # A file in a wheel stands behind the wheel's name and a colon.
            file = typed_text(path).rpartition(":")[2]
            lines[f"checkpoint {Path(file).name}{_stored_types(origin)}"] = None
    return list(lines)


def _stored_types(origin: RunMetadata) -> str:
    """Types of a checkpoint's weights, such as ": 4-bit weights, dequantised (210 Q4_1, 61 F32)";
    "" if they are not known.

    Quantised weights are dequantised when loaded."""
    stored = typed_text(origin.summary.get("stored") or "")
    if not stored:
        return ""
    quantised = QUANTISED_TYPE.match(stored)  # the most frequent kind comes first
    bits = f": {quantised[2]}-bit weights, dequantised" if quantised else ""
    return f"{bits} ({stored})"


def training_lines(
    evaluations: Iterable[Evaluation], origins: Mapping[Path, RunMetadata], label: Labels
) -> list[str]:
    """A line for each setting in which trainings of the encodings differ, unless their names say
    it; fine-tuned runs aside.
    """
    settings: dict[str, Mapping[str, object]] = {}  # {encoding: settings of its first training}
    for evaluation in evaluations:
        name, *_ = label(evaluation.first)  # of the encoding and its arguments: "rope base=500"
        if name not in settings and not evaluation.first["finetune"]:
            training = origins[evaluation.origin].training
            if training:
                settings[name] = training
    lines = []
    for key, values in values_of_differing_keys(list(settings.values())).items():
        parts = key.split(".")
        group = parts[0]
        is_named = any(f" {parts[-1]}=" in name for name in settings)
        if group not in GROUPS_WITH_OTHER_LINES and not is_named:
            words = _value_words(list(settings), values)
            lines.append(f"{key} is not the same for all: {words}")
    return lines


def _value_words(names: Sequence[str], values: Sequence[str]) -> str:
    """The values of several, the rarest first.

    >>> _value_words(["rope", "alibi", "fox"], ["2000", "1000", "2000"])
    '1000 for alibi; 2000 for the others'
    """
    names_by_value: dict[str, list[str]] = {}
    for name, value in zip(names, values, strict=True):
        names_by_value.setdefault(value, []).append(name)
    *rare, most = sorted(names_by_value, key=lambda value: len(names_by_value[value]))
    parts = [f"{value} for {', '.join(names_by_value[value])}" for value in rare]
    if len(names_by_value[most]) > 1:
        parts.append(f"{most} for the others")
    else:
        parts.append(f"{most} for {names_by_value[most][0]}")
    return "; ".join(parts)


def argument_lines(evaluations: Iterable[Evaluation]) -> list[str]:
    """A line with the arguments of each method, without those that are null. One method may have
    several sets.
    """
    texts: dict[str, dict[str, None]] = {}  # {method: its sets of arguments}
    for evaluation in evaluations:
        row = evaluation.first
        for group, column in ARGUMENT_COLUMNS.items():
            args = row[column] or {}
            # With train_len a null beta is written as its default, which is known for such a RoPE.
            default_is_known = group == "extension" and _fastest_pair_turns_1(row)
            text = arguments_text(args, train_len=row["train_len"] if default_is_known else None)
            # Windows of recompute_window are those of the floor and of G, which have other lines.
            if text and row[group] != "recompute_window":
                texts.setdefault(closest_yaml_name(group, row[group], args), {})[text] = None
    if not texts:
        return []
    return [
        "arguments: " + "; ".join(f"{name} {' or '.join(sets)}" for name, sets in texts.items())
    ]


def _fastest_pair_turns_1(row: dict) -> bool:
    """True for the RoPE of a row whose fastest pair turns by one radian for each token, as
    `default_beta` takes it.
    """
    args = row["encoding_args"] or {}
    return isinstance(args.get("base"), int | float) and not args.get("scaling")
