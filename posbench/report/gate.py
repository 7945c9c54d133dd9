"""Lines on G, the gain of a model from the second half of its window, and on the gate: whether it uses its window at all."""

from __future__ import annotations

from collections.abc import Callable

from posbench.report.points import section_of
from posbench.report.references import gains, references
from posbench.report.tables import number
from posbench.runs.evaluation import Evaluation
from posbench.statistics.clustered import Gain

WAY_ON = (
    "gate failed: nothing shows that the model uses the second half of its window, and a comparison of methods then says little: train "
    "longer (train.steps) or a larger model (model.d_model, model.n_layer), until the lower bound of G lies above 0"
)


def gain_lines(evaluations: list[Evaluation], label: Callable[[dict], tuple]) -> dict[tuple, list[str]]:
    """{section: a line for each encoding and seed, and the way on if one fails}. CSVs, which hold no losses of targets, have none."""
    held = [one for one in evaluations if not one.rows_alone and any(row["position"] is None for row in one.rows)]
    known, floors = gains(evaluations), references(evaluations)
    asked_alike: dict[tuple, tuple] = {}  # G by another protocol is taken only if its windows are the same
    for key in known:
        asked_alike.setdefault(floors[key, "floor"].windows, key)
    lines: dict[tuple, list[str]] = {}
    failed: dict[tuple, list[str]] = {}
    trained = {(one.first["run_id"], section_of(one)): one for one in held}
    for (_, section), one in sorted(trained.items(), key=lambda item: (item[1].first["encoding"], item[1].first["seed"])):
        own = one.key if one.key in known else asked_alike.get(one.windows)
        if own and not known[own].ok:
            failed[section] = [WAY_ON]
        whence = f" (by {own[1]})" if own and own != one.key else ""
        lines.setdefault(section, []).append(f"G {label(one.first)[0]} seed {one.first['seed']}{whence}: {_gate(known.get(own), one)}")
    return {section: said + failed.get(section, []) for section, said in lines.items()}


def _gate(found: Gain | None, evaluation: Evaluation) -> str:
    train_len, full_from = evaluation.first["train_len"], evaluation.full_from
    if found is None:
        texts = f" in texts of {full_from} tokens or more (evaluate.max_length)" if full_from else ""
        return f"unknown, since it takes recompute_window at both windows{texts} and the loss of every target; gate: unknown"
    half = f"{train_len // 2} -> {train_len} tokens of context bring {number(found.value)} +- {number(found.sem)} nats/token (s.e.)"
    if found.lower != found.lower:
        return f"{half}, no interval (one document); gate: failed, one document shows nothing: evaluate.windows for more"
    ok = "ok" if found.ok else f"failed, {-found.lower:.2g} nats/token short"
    return f"{half}, 95 % above {number(found.lower)}; gate: {ok}"
