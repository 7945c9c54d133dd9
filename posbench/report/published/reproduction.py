"""Words of scripts/run.py that measure a line of a report again, from what its runs say of
themselves.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from posbench.config.identity import (
    FIELDS_ADDED_LATER,
    TRAIN_KEYS_NOT_HASHED,
    method_args,
    method_label,
    quoted_word,
    without_new_defaults,
)
from posbench.config.names import (
    base_yaml,
    closest_yaml_name,
    display_name,
    shipped_yamls,
    with_command_names,
)
from posbench.results.evaluation import Evaluation
from posbench.results.run_metadata import RunMetadata, flatten
from posbench.runs.setting import Setting

UNTYPED_KEYS = {
    "train.parent",
    "model.path",
    "model.checkpoint",
    *(f"train.{key}" for key in TRAIN_KEYS_NOT_HASHED),
}
# Fields of a setting that stand for files: another text, the model that chooses key tokens, and a
# protocol's version, which no word can choose.
FILE_FIELDS = ("text", "key_run", "version")
# Values of these fields that stand for no file. 1 is the first version of a protocol.
NO_FILE_VALUES = (None, 1)


def command_to_repeat(
    evaluations: Sequence[Evaluation], origins: Mapping[Path, RunMetadata], lengths: Sequence[int]
) -> str | None:
    """Command that trains the seeds of one line and evaluates them at `lengths`, or the one that
    was typed; None where nothing says it.
    """
    first = evaluations[0]
    origin = origins.get(first.origin)
    if origin is None:
        return None
    if first.rows_alone:  # rows of a CSV: no run lies beside them whose command could be read
        return None
    words = _command_words(first, origin)
    if words is None:
        return str(origin.provenance.get("command") or "") or None
    seeds = sorted({evaluation.first["seed"] for evaluation in evaluations})
    if len(seeds) > 1:
        words.insert(0, "-m")
    words.append(f"seed={','.join(map(str, seeds))}")
    words.append(as_typed("evaluate.lengths", sorted(lengths)))
    return with_command_names(f"python scripts/run.py {' '.join(words)}")


def _command_words(evaluation: Evaluation, origin: RunMetadata) -> list[str] | None:
    """Words of the command line without seeds and lengths; None for a fine-tuned model, a
    checkpoint, a mix, somebody's own class, and texts that are files.
    """
    config = origin.nested_config
    setting = evaluation.setting
    if (
        not origin.has_whole_config
        or evaluation.first["finetune"]
        or not isinstance(setting, Setting)
    ):
        return None
    if config["model"].get("checkpoint") or config["data"].get("mix"):
        return None
    # A file or run of this machine, or an older protocol, which nobody else can type.
    if any(getattr(setting, field) not in NO_FILE_VALUES for field in FILE_FIELDS):
        return None
    method_words = _method_words(evaluation.first, config)
    data_words = _data_words(config["data"])
    if method_words is None or data_words is None:
        return None
    words = [
        *method_words,
        *data_words,
        *_model_words(config["model"]),
        *_train_words(config["train"]),
        *_step_words(config["train"]),
        *_evaluate_words(evaluation.first["protocol"], setting),
    ]
    if any(row["untested"] for row in evaluation.rows):
        words.append("allow_untested=true")
    return words


def _method_words(row: dict, config: Mapping[str, dict]) -> list[str] | None:
    """Words of all methods, such as ["encoding=rope", "encoding.base=500.0", "extension=none"];
    None for somebody's own class.
    """
    # A scale has no column for its arguments: they stand behind its name, as JSON.
    scale, _, scale_json = row["scale_attention"].partition(" ")
    scale_args = json.loads(scale_json or "{}")
    extension_args = row["extension_args"] or {}
    methods = {  # {key: (name, arguments)}
        "encoding": (display_name("encoding", config["encoding"]), method_args(config["encoding"])),
        "extension": (
            closest_yaml_name("extension", row["extension"], extension_args),
            extension_args,
        ),
        "scale_attention": (closest_yaml_name("scale_attention", scale, scale_args), scale_args),
    }
    trained = config["train"].get("scale_attention") or {}
    if method_label(trained, "scale_attention") != "none":
        methods["train.scale_attention"] = (
            display_name("scale_attention", trained),
            method_args(trained),
        )
    words = []
    for key, (name, args) in methods.items():
        usual = shipped_yamls(key.rpartition(".")[2]).get(name)
        if usual is None:
            return None
        words += [f"{key}={name}", *_changed_words(key, args, method_args(usual))]
    return words


def _data_words(data: dict) -> list[str] | None:
    """Words of the data, without keys that its yaml does not have; None for data without a yaml."""
    name = str(data.get("name"))
    if name not in shipped_yamls("data"):
        return None
    usual = {**base_yaml("data"), **shipped_yamls("data")[name]}
    return [f"data={name}", *_changed_words("data", data, usual, usual_keys_only=True)]


def _model_words(model: dict) -> list[str]:
    """Words of the model, from the yaml that needs the fewest."""
    changes = {
        name: _changed_words("model", model, usual)
        for name, usual in shipped_yamls("model").items()
    }
    name = min(changes, key=lambda name: len(changes[name]))
    return [f"model={name}", *changes[name]]


def _train_words(train: dict) -> list[str]:
    apart = ("scale_attention", "step")
    values = {key: value for key, value in train.items() if key not in apart}
    return _changed_words("train", values, shipped_yamls("train")["default"])


def _step_words(train: dict) -> list[str]:
    """Word of a training that was ended, or kept, before its last step."""
    return [f"step={train['step']}"] if train.get("step") else []


def _evaluate_words(protocol: str, setting: Setting) -> list[str]:
    values = {"protocol": protocol}
    for field in Setting.__dataclass_fields__:
        if field not in FILE_FIELDS:
            values[field] = getattr(setting, field)
    return _changed_words("evaluate", values, shipped_yamls("evaluate")["default"])


def _changed_words(
    group: str, values: dict, usual: dict, usual_keys_only: bool = False
) -> list[str]:
    """Words for values that differ from `usual`, the yaml of a group; with `usual_keys_only` none
    for keys that it lacks.

    An absent key of FIELDS_ADDED_LATER means its default. Null is a word where the yaml has a
    value, but not in `evaluate`: a setting has None for what its protocol does not use."""
    usual_values = flatten(usual, f"{group}.")
    run_values = flatten(without_new_defaults(group, values), f"{group}.")
    for key, value in usual_values.items():
        if key in FIELDS_ADDED_LATER and key not in run_values and value is not None:
            run_values[key] = FIELDS_ADDED_LATER[key]
    words = []
    for key, value in run_values.items():
        if value == usual_values.get(key):
            continue
        if value is None and group == "evaluate":
            continue
        if key in UNTYPED_KEYS or key.endswith("_target_"):
            continue
        if key in usual_values or not usual_keys_only:
            words.append(as_typed(key, value))
    return words


def as_typed(key: str, value: object) -> str:
    """Word that sets a key to a number, a truth value, a text or a list of these.

    >>> as_typed("evaluate.lengths", [64, 128])
    "'evaluate.lengths=[64,128]'"
    """
    if isinstance(value, str):
        return quoted_word(key, value)
    return shlex.quote(f"{key}={json.dumps(value, separators=(',', ':'))}")
