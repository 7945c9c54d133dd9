"""Lines below the tables of a report: checkpoints, arguments of methods, and G with its gate.

G is the gain of a model from the second half of its window; the gate is whether it uses its window at all.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from posbench.config.names import called
from posbench.report.labels import METHODS
from posbench.report.points import section_of
from posbench.report.references import gains, references
from posbench.report.tables import number
from posbench.runs.evaluation import Evaluation
from posbench.runs.origins import Origin, text
from posbench.statistics.clustered import Gain

QUANTISED = re.compile(r"(\d+) I?Q(\d)_?\w*")  # 210 Q4_1 in the text of train.json
FAILED = "gate failed: nothing shows that the model uses the second half of its window, and a comparison of methods then says little: "
UNTIL = ", until the lower bound of G lies above 0"
WAY_ON = f"{FAILED}train longer (train.steps) or a larger model (model.d_model, model.n_layer){UNTIL}"
WAY_ON_OF_CHECKPOINT = f"{FAILED}read other texts (data=), or more of them (evaluate.windows){UNTIL}"


def checkpoint_lines(origins: Iterable[Origin]) -> list[str]:
    """A line for each checkpoint among the runs; quantised weights are named as such, since they are dequantised when loaded."""
    lines = {}
    for origin in origins:
        if path := origin.config.get("model.path"):
            stored = text(origin.summary.get("stored") or "")
            quantised = QUANTISED.match(stored)  # the most frequent kind comes first
            how = f": {quantised[2]}-bit weights, dequantised" if quantised else ""
            lines[f"checkpoint {Path(text(path).rpartition(':')[2]).name}{how}{f' ({stored})' if stored else ''}"] = None
    return list(lines)


def argument_line(evaluations: list[Evaluation]) -> list[str]:
    """Line with the arguments of each method, without those that are null. One method may have several sets."""
    found: dict[str, dict] = {}
    for row, group in itertools.product((evaluation.first for evaluation in evaluations), METHODS):
        args = row[METHODS[group]]
        text = ", ".join(f"{key}={value}" for key, value in (args or {}).items() if value is not None)
        if text and row[group] != "recompute_window":
            found.setdefault(called(group, row[group], args), {})[text] = None
    return ["arguments: " + "; ".join(f"{name} {' or '.join(texts)}" for name, texts in found.items())] if found else []


def gain_lines(evaluations: list[Evaluation], label: Callable[[dict], tuple], origins: Mapping[Path, Origin]) -> dict[tuple, list[str]]:
    """{section: a line for each encoding and seed, one for all of unknown G, and the way on if one fails}.

    CSVs, which hold no losses of targets, have none.
    """
    held = [one for one in evaluations if not one.rows_alone and any(row["position"] is None for row in one.rows)]
    known, floors = gains(evaluations), references(evaluations)
    asked_alike: dict[tuple, tuple] = {}  # G by another protocol is taken only if its windows are the same
    for key in known:
        asked_alike.setdefault(floors[key, "floor"].windows, key)
    lines: dict[tuple, list[str]] = {}
    failed: dict[tuple, list[str]] = {}
    unknown: dict[tuple, dict[str, list[int]]] = {}  # {(section, why): {encoding: seeds}}
    trained = {(one.first["run_id"], section_of(one)): one for one in held}
    for (_, section), one in sorted(trained.items(), key=lambda item: (item[1].first["encoding"], item[1].first["seed"])):
        own = one.key if one.key in known else asked_alike.get(one.windows)
        if own and not known[own].ok:
            failed[section] = [WAY_ON_OF_CHECKPOINT if origins[one.origin].config.get("model.path") else WAY_ON]
        whence = f" (by {own[1]})" if own and own != one.key else ""
        name, seed = label(one.first)[0], one.first["seed"]
        if own in known:
            lines.setdefault(section, []).append(f"G {name} seed {seed}{whence}: {_gate(known[own], one.first['train_len'])}")
        else:
            unknown.setdefault((section, _unknown(one)), {}).setdefault(name, []).append(seed)
    for (section, why), own in unknown.items():
        seeds = [f"{name} seed{'s' * (len(set(of)) > 1)} {', '.join(map(str, sorted(set(of))))}" for name, of in own.items()]
        lines.setdefault(section, []).append(f"G {'; '.join(seeds)}: {why}")
    return {section: said + failed.get(section, []) for section, said in lines.items()}


def _unknown(evaluation: Evaluation) -> str:
    texts = f" in texts of {evaluation.full_from} tokens or more (evaluate.max_length)" if evaluation.full_from else ""
    return f"unknown, since it takes recompute_window at both windows{texts} and the loss of every target; gate: unknown"


def _gate(found: Gain, train_len: int) -> str:
    half = f"{train_len // 2} -> {train_len} tokens of context bring {number(found.value)} +- {number(found.sem)} nats/token (s.e.)"
    if found.lower != found.lower:
        return f"{half}, no interval (one document); gate: failed, one document shows nothing: evaluate.windows for more"
    ok = "ok" if found.ok else f"failed, {-found.lower:.2g} nats/token short"
    return f"{half}, 95 % above {number(found.lower)}; gate: {ok}"
