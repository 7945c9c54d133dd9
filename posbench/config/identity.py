"""Stable names and ids of methods, runs and evaluations.

Only settings that can change a result are hashed.
"""

import json
import os
import re
import shlex
from typing import Any

from posbench.common.errors import ConfigError
from posbench.common.files import sha256_json

# Key of a node of somebody's own class: the yaml that it was chosen by, which names it. It changes
# no result and no hash.
CHOICE_KEY = "_name_"
NON_ARGUMENT_KEYS = ("_target_", CHOICE_KEY)
POSBENCH_PREFIX = "posbench."  # of the `_target_` of a class of posbench's own
METHOD_NAME = re.compile(r"\w[\w.+-]*")  # a part of names of files and of command lines
LONGEST_TEXT_NAME = 60  # characters of a text's name
NO_EXTENSION = {"_target_": "posbench.extensions.none.NoExtension"}
NO_SCALE = {"_target_": "posbench.scale_attention.none.NoScale"}

# Settings that never change a result, such as how often something is written, or one but for
# rounding.
TRAIN_KEYS_NOT_HASHED = {
    *("graph", "log_every", "checkpoint_every", "keep_steps"),
    *("validate_every", "validate_windows", "validate_lengths", "validate_extensions"),
}
# Places of a checkpoint or an engine; what it is, is hashed as model.checkpoint and encoding.
MODEL_KEYS_NOT_HASHED = {"path", "engine"}
EVALUATE_KEYS_NOT_HASHED = {"lengths", "batch_tokens", "protocol", "floor"}

# {key added after the first release: its default}. A key at its default is left out of the hash, so
# that old ids stay.
FIELDS_ADDED_LATER: dict[str, object] = {
    "encoding.fraction": 1.0,
    "encoding.resonance": False,
    "encoding.scaling": None,
    "encoding.scaling_len": None,
    "encoding.slope_scale": 1.0,
    "encoding.window": None,
    "encoding.amplitude": None,
    "encoding.unturned": None,
    "encoding.real": False,
    "encoding.scaled_heads": "all",
    "extension.fed": None,
    "scale_attention.clamp": True,
    "scale_attention.p": 1.0,
    "train.scale_attention": NO_SCALE,
    "train.scale_attention.p": 1.0,
    "train.parent": None,
    "train.frozen": False,
    "train.step": None,
    "model.head_dim": None,
    "model.qkv_bias": False,
    "model.checkpoint": None,
    "model.own_scaling": True,
    "model.output_gate": "none",
    "data.mix": None,
    "data.mix.task": None,
    "data.source.distinct": False,
    "data.source.filler": "any",
    "data.source.test_extra": False,
    "evaluate.stride": None,
    "evaluate.origin": None,
    "evaluate.documents": None,
    "evaluate.text": None,
    "evaluate.unit": "document",
    "evaluate.floor_block": 1,
    "evaluate.tasks": None,
    "evaluate.chat": False,
    "evaluate.rivals": 0,
    "evaluate.key_gain": None,
    "evaluate.key_loss": None,
    "evaluate.key_context": None,
    "evaluate.key_run": None,
    "evaluate.settings": None,
    "version": 1,
}


def method_name(node: dict) -> str:
    """Short name of a method: the last module of its `_target_`, or the yaml of a user's own class.

    >>> method_name({"_target_": "posbench.encodings.rope.Rope"})
    'rope'
    >>> method_name({"_target_": "mine.Half", "_name_": "half"})
    'half'

    Raises ConfigError without a `_target_`.
    """
    target = node.get("_target_") if isinstance(node, dict) else None
    if not target or not isinstance(target, str):
        raise ConfigError(
            f"{node} does not name a method: a method's configuration needs a _target_ such as"
            " posbench.encodings.rope.Rope."
        )
    choice = node.get(CHOICE_KEY)
    if (
        isinstance(choice, str)
        and METHOD_NAME.fullmatch(choice)
        and not target.startswith(POSBENCH_PREFIX)
    ):
        return choice
    return target.split(".")[-2] if "." in target else target.lower()


def method_args(node: dict) -> dict:
    """Arguments of a method's configuration, sorted by name."""
    return {key: node[key] for key in sorted(node) if key not in NON_ARGUMENT_KEYS}


def text_name(data: dict) -> str | None:
    """Name of a text in tables and figures: data.name, or that of the user's own file or folder.

    >>> text_name({"name": None, "path": "novels/my notes.jsonl.gz"})
    'my_notes'

    None where neither is given."""
    name = data.get("name")
    path = data.get("path")
    if name is not None or not isinstance(path, str) or not path:
        return name
    last = os.path.basename(os.path.abspath(path))  # of "." too
    stem = re.sub(r"(\.(txt|md|py|jsonl?|gz|parquet))+$", "", last)
    return re.sub(r"[^\w.-]+", "_", stem)[:LONGEST_TEXT_NAME] or "text"


def without_choice_keys(value: Any) -> Any:
    """A configuration without CHOICE_KEY at any depth: as it was before choices were recorded."""
    if isinstance(value, dict):
        return {key: without_choice_keys(item) for key, item in value.items() if key != CHOICE_KEY}
    if isinstance(value, list | tuple):
        return [without_choice_keys(item) for item in value]
    return value


def method_label(node: dict, group: str = "extension") -> str:
    """Name of a method, and its arguments as JSON if any: the value of the column scale_attention.

    Arguments at their default in FIELDS_ADDED_LATER are left out.

    >>> method_label({"_target_": "posbench.extensions.pi.PI", "mode": "dynamic"})
    'pi {"mode":"dynamic"}'
    """
    args = without_new_defaults(group, method_args(node))
    if not args:
        return method_name(node)
    return f"{method_name(node)} {json.dumps(args, separators=(',', ':'))}"


def typed_words(group: str, node: dict) -> str:
    """Command-line words that choose a method: encoding=rope encoding.base=500000."""
    words = [f"{group}={method_name(node)}"]
    for key, value in without_new_defaults(group, method_args(node)).items():
        words.append(f"{group}.{key}={value}")
    return " ".join(words)


def quoted_word(key: str, value: object) -> str:
    """Word of a command line that sets a key, quoted for Hydra and the shell if it needs it.

    >>> print(quoted_word("out", "a b.csv"))
    'out="a b.csv"'
    """
    text = str(value)
    if not re.fullmatch(r"[A-Za-z0-9_./:+@%?|^-]+", text):
        text = '"' + text.replace('"', '\\"') + '"'
    return shlex.quote(f"{key}={text}")


def without_new_defaults(group: str, args: dict) -> dict:
    """Values of a group without keys at their default in FIELDS_ADDED_LATER.

    Older files lack these keys and mean the same."""
    return {
        key: value for key, value in args.items() if not _is_new_default(f"{group}.{key}", value)
    }


def _is_new_default(key: str, value: object) -> bool:
    """True for a key of FIELDS_ADDED_LATER at its default. False does not equal 0, nor True 1."""
    if key not in FIELDS_ADDED_LATER:
        return False
    default = FIELDS_ADDED_LATER[key]
    return value == default and isinstance(value, bool) == isinstance(default, bool)


def training_identity(raw: dict, data_fingerprint: str) -> dict:
    """Settings that determine a training: two equal identities train the same weights.

    The fingerprint stands for the text, the tokenizer and the BOS choice, whatever their paths.
    """
    train = _without_keys(raw["train"], TRAIN_KEYS_NOT_HASHED)
    # Lengths train the same in any order, and a list of one as that length.
    if isinstance(train["length"], list):
        lengths = sorted(set(train["length"]))
        train["length"] = lengths if len(lengths) > 1 else lengths[0]
    if parent := train.get("parent"):
        train["parent"] = parent["run_id"]  # an id stands for all that made its weights
        # No key for a first training's child, nor for older children, whose batches were the same
        # in every generation: their ids stay.
        if parent.get("generation"):
            train["generation"] = parent["generation"]
    return canonical(
        {
            "encoding": raw["encoding"],
            "model": _without_keys(raw["model"], MODEL_KEYS_NOT_HASHED),
            "train": train,
            "seed": raw["seed"],
            "data_fingerprint": data_fingerprint,
        }
    )


def run_id(raw: dict, data_fingerprint: str) -> str:
    """Id of a training: a readable prefix and ten hex digits, such as rope-64-s0-1a2b3c4d5e.

    Of a child: rope+yarn-64to256-s0-1a2b3c4d5e. Of one that ended at step 300:
    rope-64at300-s0-1a2b3c4d5e.
    """
    identity = training_identity(raw, data_fingerprint)
    length = identity["train"]["length"]
    lengths = "+".join(map(str, length)) if isinstance(length, list) else str(length)
    name = _trained_name(raw)
    if parent := raw["train"].get("parent"):
        scaling = raw["encoding"].get("scaling")
        if scaling:
            name += f"+{method_name(scaling)}"
        lengths = f"{parent['reach']}to{lengths}"
    if raw["train"].get("step"):
        lengths += f"at{raw['train']['step']}"
    return f"{name}-{lengths}-s{raw['seed']}-{sha256_json(identity)[:10]}"


def _trained_name(raw: dict) -> str:
    """First part of a run's id: an engine, hf for a checkpoint, or the encoding."""
    if raw["model"].get("engine"):
        return raw["encoding"]["engine"]
    if raw["model"].get("checkpoint"):
        return "hf"
    return method_name(raw["encoding"])


def run_prefix(run_id: str) -> str:
    """Readable prefix of a run's id without its seed: rope-64 of rope-64-s0-1a2b3c4d5e."""
    return run_id.rsplit("-", 2)[0]


def eval_id(
    protocol: str,
    extension: dict,
    scale_attention: dict,
    evaluate: dict,
    run_id: str,
    version: int = 1,
) -> str:
    """Id of an evaluation: sixteen hex digits.

    Lengths are not hashed, so a missing length is added to the same file. `evaluate` must be
    resolved: `max_length: null` and the number it stands for would give two ids. `version` is the
    protocol's.
    """
    if text := evaluate.get("text"):
        evaluate = {**evaluate, "text": text["content"]}  # whatever its name and its path
    if chooser := evaluate.get("key_run"):
        evaluate = {**evaluate, "key_run": chooser["sha256"]}
    identity = canonical(
        {
            "extension": extension,
            "scale_attention": scale_attention,
            "evaluate": _without_keys(evaluate, EVALUATE_KEYS_NOT_HASHED),
            "protocol": protocol,
            "run_id": run_id,
            "version": version,
        }
    )
    return sha256_json(identity)[:16]


def _without_keys(node: dict, names: set[str]) -> dict:
    """`node` without the keys `names`."""
    return {key: value for key, value in node.items() if key not in names}


def canonical(value: object, prefix: str = "") -> object:
    """`value` as it is hashed: without CHOICE_KEY and keys at their default in FIELDS_ADDED_LATER,
    and whole floats as int, so that 1.0 and 1 hash alike.

    `prefix` are the keys above it, such as encoding.

    >>> canonical({"encoding": {"base": 10000.0, "window": None}})
    {'encoding': {'base': 10000}}
    """
    if isinstance(value, dict):
        result = {}
        for key, item in value.items():
            if key != CHOICE_KEY and not _is_new_default(f"{prefix}{key}", item):
                result[key] = canonical(item, f"{prefix}{key}.")
        return result
    if isinstance(value, list | tuple):
        return [canonical(item, prefix) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
