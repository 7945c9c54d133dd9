"""Lines below the tables of a report about G, the gain of a model from the second half of its window, and its gate.

The gate is whether a model uses its window at all. A training has a line; where they would be many, an encoding has one for its seeds.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from posbench.report.labels import Labels
from posbench.report.points import section_of
from posbench.report.references import gains, references
from posbench.report.tables import number
from posbench.runs.evaluation import Evaluation
from posbench.runs.run_metadata import RunMetadata
from posbench.statistics.crossed import Gain

MANY = 24  # lines of a section, above which the seeds of an encoding share one
FAILED = "gate failed: nothing shows that the model uses the second half of its window, and a comparison of methods then says little: "
UNTIL = ", until the lower bound of G lies above 0"
WAY_ON = f"{FAILED}train longer (train.steps) or a larger model (model.d_model, model.n_layer){UNTIL}"
WAY_ON_OF_CHILD = f"{FAILED}fine-tune longer (finetune.steps), or with an extension that holds at that length (extension){UNTIL}"
WAY_ON_OF_CHECKPOINT = f"{FAILED}read other texts (data=), or more of them (evaluate.windows){UNTIL}"

Trained = tuple[str, str, int]  # name of an encoding, the protocol that G is taken from in words, training length
Found = tuple[Trained, int, Gain]  # with the seed


def gain_lines(evaluations: list[Evaluation], label: Labels, origins: Mapping[Path, RunMetadata]) -> dict[tuple, list[str]]:
    """{section: a line for each encoding and seed, or for each encoding; one for all of unknown G, and the ways on where one fails}.

    CSVs, which hold no losses of targets, have none.
    """
    held = [one for one in evaluations if not one.rows_alone and any(row["position"] is None for row in one.rows)]
    known, floors = gains(evaluations), references(evaluations)
    asked_alike: dict[tuple, tuple] = {}  # G by another protocol is taken only if its windows are the same
    for key in known:
        asked_alike.setdefault(floors[key, "floor"].windows, key)
    found: dict[tuple, list[Found]] = {}
    failed: dict[tuple, list[str]] = {}
    unknown: dict[tuple, dict[str, list[int]]] = {}  # {(section, why): {encoding: seeds}}
    trained = {(one.first["run_id"], section_of(one)): one for one in held}
    for (_, section), one in sorted(trained.items(), key=lambda item: (item[1].first["encoding"], item[1].first["seed"])):
        own = one.key if one.key in known else asked_alike.get(one.windows)
        if own and not known[own].ok:
            failed.setdefault(section, []).append(_way_on(one, origins[one.origin]))
        whence = f" (by {own[1]})" if own and own != one.key else ""
        name, seed = label(one.first)[0], one.first["seed"]
        if own in known:
            found.setdefault(section, []).append(((name, whence, one.first["train_len"]), seed, known[own]))
        else:
            unknown.setdefault((section, _unknown(one)), {}).setdefault(name, []).append(seed)
    lines = {section: _of_section(own) for section, own in found.items()}
    for (section, why), own in unknown.items():
        seeds = [f"{name} {_seeds(of)}" for name, of in own.items()]
        lines.setdefault(section, []).append(f"G {'; '.join(seeds)}: {why}")
    return {section: said + list(dict.fromkeys(failed.get(section, []))) for section, said in lines.items()}


def _of_section(found: list[Found]) -> list[str]:
    if len(found) <= MANY:
        return [f"G {name} seed {seed}{whence}: {_gate(gain, train_len)}" for (name, whence, train_len), seed, gain in found]
    own: dict[Trained, dict[int, Gain]] = {}
    for trained, seed, gain in found:
        own.setdefault(trained, {})[seed] = gain
    return [f"G {name} {_seeds(of)}{whence}: {_together(of, train_len)}" for (name, whence, train_len), of in own.items()]


def _seeds(of: Iterable[int]) -> str:
    seeds = sorted(set(of))
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def _way_on(one: Evaluation, origin: RunMetadata) -> str:
    if origin.config.get("model.path") and not one.first["finetune"]:
        return WAY_ON_OF_CHECKPOINT
    return WAY_ON_OF_CHILD if one.first["finetune"] else WAY_ON


def _unknown(evaluation: Evaluation) -> str:
    texts = f" in texts of {evaluation.full_from} tokens or more (evaluate.max_length)" if evaluation.full_from else ""
    return f"unknown, since it takes recompute_window at both windows{texts} and the loss of every target; gate: unknown"


def _together(of: Mapping[int, Gain], train_len: int) -> str:
    values = [gain.value for gain in of.values()]
    bring = f"{number(sum(values) / len(values))} nats/token"
    if len(values) > 1:
        bring += f" ({number(min(values))} to {number(max(values))})"
    failed = [seed for seed, gain in of.items() if not gain.ok]
    return f"{train_len // 2} -> {train_len} tokens of context bring {bring}; gate: {f'failed, {_seeds(failed)}' if failed else 'ok'}"


def _gate(found: Gain, train_len: int) -> str:
    half = f"{train_len // 2} -> {train_len} tokens of context bring {number(found.value)} +- {number(found.sem)} nats/token (s.e.)"
    if found.lower != found.lower:
        return f"{half}, no interval (one document); gate: failed, one document shows nothing: evaluate.windows for more"
    ok = "ok" if found.ok else f"failed, {-found.lower:.2g} nats/token short"
    return f"{half}, 95 % above {number(found.lower)}; gate: {ok}"
