"""Reader of the json files beside a checkpoint's weights, with type checks. Torch-free."""

import json
import os
from pathlib import Path

from posbench.common.errors import ConfigError, Undescribed
from posbench.common.files import read_bytes
from posbench.config.typed_args import shown

# Defaults of transformers for keys that config.json lacks.
SILENT = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
SILENT_OF = {
    "llama": {"max_position_embeddings": 2048, "bos_token_id": 1},
    "mistral": {"max_position_embeddings": 131072, "bos_token_id": 1, "num_key_value_heads": 8, "sliding_window": 4096},
    "ministral": {"max_position_embeddings": 131072, "bos_token_id": 1, "num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {"max_position_embeddings": 32768, "sliding_window": 4096, "max_window_layers": 28},
    "qwen3": {"max_position_embeddings": 32768, "sliding_window": 4096, "max_window_layers": 28, "head_dim": 128},
    "smollm3": {
        "max_position_embeddings": 32768,
        "bos_token_id": 128000,
        "num_key_value_heads": 4,
        "rope_theta": 2e6,
        "tie_word_embeddings": True,
    },
    "phi3": {"max_position_embeddings": 4096, "original_max_position_embeddings": 4096, "bos_token_id": 1, "rms_norm_eps": 1e-5},
}
WHOLE = "model.safetensors"  # all weights in one file
LARGEST = 64 * 2**20  # bytes; the index of many weight files has one or two million
MOST = 1e15  # bound on numbers that are not whole
NEEDED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
OTHER = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "quantization_config": None}
# {key: (lowest, largest) whole number, or a type}, for values that are given and not null.
TYPES: dict[str, tuple[int, int] | type] = {
    "vocab_size": (1, 2**24),
    **dict.fromkeys(("hidden_size", "intermediate_size", "head_dim"), (1, 2**20)),
    **dict.fromkeys(("num_hidden_layers", "num_attention_heads", "num_key_value_heads"), (1, 2**14)),
    "max_position_embeddings": (2, 2**40),
    "sliding_window": (1, 2**40),
    "max_window_layers": (0, 2**40),
    "bos_token_id": (0, 2**24),
    **dict.fromkeys(("rms_norm_eps", "rope_theta", "partial_rotary_factor"), float),
    **dict.fromkeys(("tie_word_embeddings", "use_sliding_window", "truncate"), bool),
    **dict.fromkeys(("rope_scaling", "rope_parameters"), dict),
    **dict.fromkeys(("rope_type", "type"), str),
    **dict.fromkeys(("factor", "low_freq_factor", "high_freq_factor", "beta_slow", "beta_fast", "attention_factor"), float),
    **dict.fromkeys(("mscale", "mscale_all_dim", "original_max_position_embeddings"), float),
    **dict.fromkeys(("layer_types", "long_factor", "short_factor", "no_rope_layers"), list),
    "no_rope_layer_interval": (1, 2**14),
}
WORDS = {float: "a number between 0 and 1e15", bool: "true or false", dict: "a mapping", str: "a word", list: "a list"}
LISTED = {
    "layer_types": frozenset({"full_attention", "sliding_attention"}),
    "no_rope_layers": (0, 1),
    "long_factor": float,
    "short_factor": float,
}


def read_mapping(file: Path) -> dict:
    """Content of a checkpoint's json file. Raises ConfigError when it is not a mapping, RunError when it is irregular or too large."""
    try:
        found = json.loads(read_bytes(file, LARGEST).decode())
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror}): make it readable, or download it again.") from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{file} is not JSON ({error}): download it again.") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{file} holds a {type(found).__name__} instead of a mapping: download it again.")
    return found


def read_config(folder: Path) -> dict:
    """Content of a checkpoint's config.json. Raises ConfigError for a folder without one."""
    file = folder / "config.json"
    if not os.path.isfile(file):
        raise ConfigError(
            f"model.path={folder} is not a folder with a config.json: give the folder of a downloaded or exported checkpoint."
        )
    return read_mapping(file)


def weight_names(folder: Path) -> list[str]:
    """Names of a checkpoint's safetensors files, sorted: the one file or, without it, those of the index, as transformers chooses.

    Raises ConfigError for an index that names none, or one outside the folder.
    """
    index = folder / "model.safetensors.index.json"
    if (folder / WHOLE).is_file() or not index.is_file():
        return [WHOLE]
    found = read_mapping(index).get("weight_map")
    if not isinstance(found, dict) or not found or not all(isinstance(name, str) for name in found.values()):
        raise ConfigError(f"{index} has no weight_map from tensors to file names: download it again.")
    if outside := [name for name in found.values() if Path(name).name != name]:
        raise ConfigError(f"{index} names {outside[0]}, which is outside its folder: download the checkpoint again.")
    return sorted(set(found.values()))


def completed(config: dict, file: Path) -> dict:
    """Description of a model with transformers' defaults for missing keys. Every key that is used has its type.

    Raises ConfigError for a model that posbench cannot build; `file` is where the description was read.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise ConfigError(f"{file} describes a model of type {kind}, which is not a known family: is it a checkpoint's?")
    if kind not in SILENT_OF:
        raise Undescribed(f"{file} describes a model of type {kind}, and only {', '.join(SILENT_OF)} have the shape of this one.")
    if kind == "mistral" and "layer_types" in config:  # as transformers' AutoConfig reads it
        config = {**config, "model_type": (kind := "ministral")}
    if config.get("is_causal") not in (None, True):
        raise ConfigError(f"{file} has is_causal={config['is_causal']}, so queries see later tokens: choose a causal checkpoint.")
    if config.get("transformers_weights") is not None:
        raise ConfigError(
            f"{file} has transformers_weights={config['transformers_weights']}, which is not supported: rename that file {WHOLE}."
        )
    config = {**SILENT, **SILENT_OF[kind], **config}
    if missing := [key for key in NEEDED if config.get(key) is None]:
        raise ConfigError(f"{file} lacks {' and '.join(missing)}: is it a checkpoint's?")
    for key in ("max_position_embeddings", "rms_norm_eps", "tie_word_embeddings", "max_window_layers"):
        if key in config and config[key] is None:
            raise ConfigError(f"{file} has {key}=null: download it again.")
    for key, wanted in OTHER.items():
        if (config.get(key) or wanted) != wanted:
            error = Undescribed if isinstance(config[key], str | bool) and key != "quantization_config" else ConfigError
            raise error(f"{file} has {key}={config[key]}, which this model does not have: choose a checkpoint without it.")
    _check(config, "", file)
    for key in ("rope_scaling", "rope_parameters"):
        _check(config.get(key) or {}, f"{key}.", file)
    if (bos := config.get("bos_token_id")) is not None and bos >= config["vocab_size"]:
        raise ConfigError(f"{file} has bos_token_id={bos} and vocab_size={config['vocab_size']}: download it again.")
    for key in ("layer_types", "no_rope_layers"):
        if (listed := config.get(key)) is not None and len(listed) != config["num_hidden_layers"]:
            raise ConfigError(f"{file} has {len(listed)} {key} and num_hidden_layers={config['num_hidden_layers']}: download it again.")
    return config


def _check(mapping: dict, where: str, file: Path) -> None:
    for key, wanted in TYPES.items():
        value = mapping.get(key)
        if value is None:
            continue
        what = f"a whole number from {wanted[0]} to {wanted[1]}" if isinstance(wanted, tuple) else WORDS[wanted]
        if not _is(value, wanted):
            raise ConfigError(f"{file} has {where}{key}={shown(json.dumps(value))}, where {what} belongs: download it again.")
        for entry in value if key in LISTED else ():
            if not _is(entry, LISTED[key]):
                wanted = LISTED[key]
                what = " or ".join(sorted(wanted)) if isinstance(wanted, frozenset) else WORDS.get(wanted, "0 or 1")
                raise ConfigError(f"{file} has {shown(json.dumps(entry))} in {where}{key}, where {what} belongs: download it again.")


def _is(value: object, wanted: tuple[int, int] | frozenset[str] | type) -> bool:
    if isinstance(wanted, frozenset):
        return isinstance(value, str) and value in wanted
    if isinstance(wanted, tuple):
        return isinstance(value, int) and not isinstance(value, bool) and wanted[0] <= value <= wanted[1]
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < MOST
    return isinstance(value, wanted)
