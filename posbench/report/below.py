"""Lines below the tables of a report: checkpoints, settings of training in which encodings differ, and arguments of methods."""

import itertools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from posbench.config.identity import method_args, method_name
from posbench.config.names import called
from posbench.report.labels import METHODS, Labels
from posbench.runs.evaluation import Evaluation
from posbench.runs.run_metadata import RunMetadata, differing, text

QUANTISED = re.compile(r"(\d+) I?Q(\d)_?\w*")  # 210 Q4_1 in the text of train.json


def checkpoint_lines(origins: Iterable[RunMetadata]) -> list[str]:
    """A line for each checkpoint among the runs; quantised weights are named as such, since they are dequantised when loaded."""
    lines = {}
    for origin in origins:
        if path := origin.config.get("model.path"):
            stored = text(origin.summary.get("stored") or "")
            quantised = QUANTISED.match(stored)  # the most frequent kind comes first
            how = f": {quantised[2]}-bit weights, dequantised" if quantised else ""
            lines[f"checkpoint {Path(text(path).rpartition(':')[2]).name}{how}{f' ({stored})' if stored else ''}"] = None
    return list(lines)


def training_lines(evaluations: Iterable[Evaluation], origins: Mapping[Path, RunMetadata], label: Labels) -> list[str]:
    """A line for each setting in which trainings of the encodings differ, unless their names say it; fine-tuned runs aside.

    An example: train.steps is not the same for all: 6000 for alibi, fox; 1000 for the others.
    """
    known: dict[str, Mapping[str, object]] = {}
    for evaluation in evaluations:
        name = label(evaluation.first)[0]
        if name not in known and not evaluation.first["finetune"] and (found := origins[evaluation.origin].training):
            known[name] = found
    lines = []
    for key, values in differing(list(known.values())).items():
        if key in ("data", "sha256") or any(f" {key.rpartition('.')[2]}=" in name for name in known):
            continue
        of = {value: [name for name, own in zip(known, values, strict=True) if own == value] for value in values}
        *few, most = sorted(of, key=lambda value: len(of[value]))
        said = [f"{value} for {', '.join(of[value])}" for value in few]
        said.append(f"{most} for {'the others' if len(of[most]) > 1 else of[most][0]}")
        lines.append(f"{key} is not the same for all: {'; '.join(said)}")
    return lines


def argument_line(evaluations: list[Evaluation]) -> list[str]:
    """Line with the arguments of each method, without those that are null. One method may have several sets."""
    found: dict[str, dict] = {}
    for row, group in itertools.product((evaluation.first for evaluation in evaluations), METHODS):
        args = row[METHODS[group]]
        text = _words(args or {})
        if text and row[group] != "recompute_window":
            found.setdefault(called(group, row[group], args), {})[text] = None
    return ["arguments: " + "; ".join(f"{name} {' or '.join(texts)}" for name, texts in found.items())] if found else []


def _words(args: Mapping[str, object]) -> str:
    """Arguments with their values, without those that are null; a method among these by its name: local=rope(base=10000.0)."""
    return ", ".join(f"{key}={_word(value)}" for key, value in args.items() if value is not None)


def _word(value: object) -> object:
    if not isinstance(value, dict):
        return value
    if "_target_" not in value:
        return f"{{{_words(value)}}}"
    own = _words(method_args(value))
    return f"{method_name(value)}({own})" if own else method_name(value)
