"""Words of scripts/run.py that measure a line of a report again, from what its runs say of
themselves.
"""

import json
import shlex
from collections.abc import Mapping, Sequence

from posbench.config.identity import (
    LATER,
    NOT_TRAIN,
    as_word,
    method_args,
    method_label,
    without_later,
)
from posbench.config.names import as_command, base_node, called, named, nodes
from posbench.results.evaluation import Evaluation
from posbench.results.run_metadata import RunMetadata, flatten
from posbench.runs.setting import Setting

PLACES = {"train.parent", "model.path", "model.checkpoint", *(f"train.{key}" for key in NOT_TRAIN)}
OWN_WORDS = ("text", "key_run", "version")  # of a setting: they stand for files


def command(
    evaluations: Sequence[Evaluation], origins: Mapping, lengths: Sequence[int]
) -> str | None:
    """Command that trains the seeds of one line and evaluates them at `lengths`, or the one that
    was typed; None where nothing says it.
    """
    first = evaluations[0]
    origin: RunMetadata | None = origins.get(first.origin)
    if origin is None or first.rows_alone:
        return None
    found = _words(first, origin)
    if found is None:
        return str(origin.provenance.get("command") or "") or None
    seeds = sorted({one.first["seed"] for one in evaluations})
    sweep = ["-m"] * (len(seeds) > 1)
    found += [f"seed={','.join(map(str, seeds))}", as_typed("evaluate.lengths", sorted(lengths))]
    return as_command(f"python scripts/run.py {' '.join([*sweep, *found])}")


def _words(evaluation: Evaluation, origin: RunMetadata) -> list[str] | None:
    """Words without seeds and lengths; None for a child, a checkpoint, somebody's own class, and
    texts that are files.
    """
    given, row, setting = origin.nested, evaluation.first, evaluation.setting
    if (
        not origin.whole
        or row["finetune"]
        or given["model"].get("checkpoint")
        or not isinstance(setting, Setting)
    ):
        return None
    if any(getattr(setting, name) not in (None, 1) for name in OWN_WORDS) or given["data"].get(
        "mix"
    ):
        return None
    scale, _, args = row["scale_attention"].partition(" ")
    methods = {
        "encoding": (named("encoding", given["encoding"]), method_args(given["encoding"])),
        "extension": (
            called("extension", row["extension"], row["extension_args"]),
            row["extension_args"] or {},
        ),
        "scale_attention": (
            called("scale_attention", scale, json.loads(args or "{}")),
            json.loads(args or "{}"),
        ),
    }
    trained = given["train"].get("scale_attention") or {}
    if method_label(trained, "scale_attention") != "none":
        methods["train.scale_attention"] = (named("scale_attention", trained), method_args(trained))
    found = []
    for group, (name, own) in methods.items():
        usual = nodes(group.rpartition(".")[2]).get(name)
        if usual is None:
            return None
        found += [f"{group}={name}", *_changed(group, own, method_args(usual))]
    data, base = str(given["data"].get("name")), base_node("data")
    if data not in nodes("data"):
        return None
    found += [
        f"data={data}",
        *_changed("data", given["data"], {**base, **nodes("data")[data]}, known=True),
    ]
    models = {
        name: _changed("model", given["model"], usual) for name, usual in nodes("model").items()
    }
    model = min(models, key=lambda name: len(models[name]))
    found += [f"model={model}", *models[model]]
    train = {key: value for key, value in given["train"].items() if key != "scale_attention"}
    found += _changed("train", train, nodes("train")["default"])
    of_setting = {
        name: getattr(setting, name)
        for name in Setting.__dataclass_fields__
        if name not in OWN_WORDS
    }
    found += _changed(
        "evaluate", {"protocol": row["protocol"], **of_setting}, nodes("evaluate")["default"]
    )
    return found + ["allow_untested=true"] * any(one["untested"] for one in evaluation.rows)


def _changed(group: str, given: dict, usual: dict, known: bool = False) -> list[str]:
    """Words for keys that differ from the yaml of a group, `known`: of those it has. An absent key
    of LATER means its default.
    """
    default, own = flatten(usual, f"{group}."), flatten(without_later(group, given), f"{group}.")
    own |= {
        key: LATER[key]
        for key, value in default.items()
        if key in LATER and key not in own and value is not None
    }
    found = {
        key: value
        for key, value in own.items()
        if value is not None and default.get(key) != value and (not known or key in default)
    }
    return [
        as_typed(key, value)
        for key, value in found.items()
        if key not in PLACES and not key.endswith("_target_")
    ]


def as_typed(key: str, value: object) -> str:
    """Word that sets a key to a number, a truth value, a text or a list of these."""
    if isinstance(value, str):
        return as_word(key, value)
    return shlex.quote(f"{key}={json.dumps(value, separators=(',', ':'))}")
