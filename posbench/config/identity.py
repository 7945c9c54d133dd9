"""Stable names and ids of methods, runs and evaluations. Only settings that can change a result are
hashed.
"""

import json
import re
import shlex
from typing import Any

from posbench.common.errors import ConfigError
from posbench.common.files import sha256_json

# Key of a node of somebody's own class: the yaml that it was chosen by, which names it. It changes
# no result and no hash.
CHOICE = "_name_"
NOT_ARGUMENTS = ("_target_", CHOICE)
OURS = "posbench."
NAME = re.compile(
    r"\w[\w.+-]*"
)  # of a method, which is a part of the names of files and of command lines
NO_EXTENSION = {"_target_": "posbench.extensions.none.NoExtension"}
NO_SCALE = {"_target_": "posbench.scale_attention.none.NoScale"}

# Settings that never change a result, such as how often something is written, or one but for
# rounding.
NOT_TRAIN = {"graph", "log_every", "validate_every", "validate_windows", "checkpoint_every"}
NOT_MODEL = {
    "path",
    "engine",
}  # of a checkpoint or an engine; what it is, is hashed as model.checkpoint and encoding
NOT_EVALUATE = {"lengths", "batch_tokens", "protocol", "floor"}

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
    "train.scale_attention": NO_SCALE,
    "train.parent": None,
    "train.frozen": False,
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
    """Short name of a method: the yaml by which somebody's own class was chosen, else the last
    module of its `_target_`.

    posbench.encodings.rope.Rope -> rope; {"_target_": "mine.Half", "_name_": "half"} -> half.
    Raises ConfigError without a `_target_`."""
    target = node.get("_target_") if isinstance(node, dict) else None
    if not target or not isinstance(target, str):
        raise ConfigError(
            f"{node} does not name a method: a method's configuration needs a _target_ such as"
            " posbench.encodings.rope.Rope."
        )
    choice = node.get(CHOICE)
    if isinstance(choice, str) and NAME.fullmatch(choice) and not target.startswith(OURS):
        return choice
    return target.split(".")[-2] if "." in target else target.lower()


def method_args(node: dict) -> dict:
    """Arguments of a method's configuration, sorted by name."""
    return {key: node[key] for key in sorted(node) if key not in NOT_ARGUMENTS}


def without_choices(value: Any) -> Any:
    """A configuration without the yamls by which its methods were chosen, at any depth: as it was
    before they were recorded.
    """
    if isinstance(value, dict):
        return {key: without_choices(item) for key, item in value.items() if key != CHOICE}
    if isinstance(value, list | tuple):
        return [without_choices(item) for item in value]
    return value


def method_label(node: dict, group: str = "extension") -> str:
    """Name of a method, followed by its arguments as JSON if it has any; the value of the column
    scale_attention.

    Arguments at their default in FIELDS_ADDED_LATER are left out.
    """
    args = without_later(group, method_args(node))
    return method_name(node) + (" " + json.dumps(args, separators=(",", ":")) if args else "")


def as_typed(group: str, node: dict) -> str:
    """Command-line words that choose a method: encoding=rope encoding.base=500000."""
    given = without_later(group, method_args(node))
    return " ".join(
        [
            f"{group}={method_name(node)}",
            *(f"{group}.{key}={value}" for key, value in given.items()),
        ]
    )


def as_word(key: str, value: object) -> str:
    """Word of a command line that sets a key, quoted for Hydra and for the shell where the value
    needs it.
    """
    text = str(value)
    if not re.fullmatch(r"[A-Za-z0-9_./:+@%?|^-]+", text):
        text = '"' + text.replace('"', '\\"') + '"'
    return shlex.quote(f"{key}={text}")


def without_later(group: str, args: dict) -> dict:
    """Values of a group without keys at their default in FIELDS_ADDED_LATER.

    Older files lack these keys and mean the same."""
    return {key: value for key, value in args.items() if not _at_default(f"{group}.{key}", value)}


def _at_default(key: str, value: object) -> bool:
    return (
        key in FIELDS_ADDED_LATER
        and value == FIELDS_ADDED_LATER[key]
        and isinstance(value, bool) == isinstance(FIELDS_ADDED_LATER[key], bool)
    )


def training_identity(cfg: dict, data_fingerprint: str) -> dict:
    """Settings that determine a training, and nothing else: two equal identities train the same
    weights.

    The fingerprint stands for the text, the tokenizer and the BOS choice, whatever their paths.
    """
    train = _without(cfg["train"], NOT_TRAIN)
    if isinstance(train["length"], list):
        lengths = sorted(set(train["length"]))
        train["length"] = lengths if len(lengths) > 1 else lengths[0]
    if parent := train.get("parent"):
        train["parent"] = parent["run_id"]  # an id stands for all that made its weights
        if generation := parent.get(
            "generation"
        ):  # absent in the first, and in later ones of before batches followed it
            train["generation"] = generation
    parts = {
        "encoding": cfg["encoding"],
        "model": _without(cfg["model"], NOT_MODEL),
        "train": train,
    }
    return canonical({**parts, "seed": cfg["seed"], "data_fingerprint": data_fingerprint})


def run_id(cfg: dict, data_fingerprint: str) -> str:
    """Id of a training: a readable prefix and ten hex digits, such as rope-64-s0-1a2b3c4d5e, of a
    child rope+yarn-64to256-s0-1a2b3c4d5e.
    """
    parts = training_identity(cfg, data_fingerprint)
    length = parts["train"]["length"]
    lengths = "+".join(map(str, length)) if isinstance(length, list) else length
    kind = "hf" if cfg["model"].get("checkpoint") else method_name(cfg["encoding"])
    kind = cfg["encoding"]["engine"] if cfg["model"].get("engine") else kind
    if parent := cfg["train"].get("parent"):
        scaling = cfg["encoding"].get("scaling")
        kind += f"+{method_name(scaling)}" if scaling else ""
        lengths = f"{parent['reach']}to{lengths}"
    return f"{kind}-{lengths}-s{cfg['seed']}-{sha256_json(parts)[:10]}"


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
    """Id of an evaluation: sixteen hex digits. Lengths are not hashed, so a missing length is added
    to the same file.

    `evaluate` must be resolved: `max_length: null` and the number it stands for would give two ids.
    `version` of the protocol."""
    if text := evaluate.get("text"):
        evaluate = {**evaluate, "text": text["content"]}  # whatever its name and its path
    if chooser := evaluate.get("key_run"):
        evaluate = {**evaluate, "key_run": chooser["sha256"]}
    parts = {
        "extension": extension,
        "scale_attention": scale_attention,
        "evaluate": _without(evaluate, NOT_EVALUATE),
    }
    return sha256_json(
        canonical({**parts, "protocol": protocol, "run_id": run_id, "version": version})
    )[:16]


def _without(node: dict, names: set[str]) -> dict:
    return {key: value for key, value in node.items() if key not in names}


def canonical(value: object, prefix: str = "") -> object:
    """Drop CHOICE and keys at their default in FIELDS_ADDED_LATER, and write whole floats as int.

    1.0 and 1 hash alike."""
    if isinstance(value, dict):
        kept = {
            key: item
            for key, item in value.items()
            if key != CHOICE and not _at_default(f"{prefix}{key}", item)
        }
        return {key: canonical(item, f"{prefix}{key}.") for key, item in kept.items()}
    if isinstance(value, list | tuple):
        return [canonical(item, prefix) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
