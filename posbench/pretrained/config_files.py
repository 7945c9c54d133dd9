"""Reader of the json files beside a checkpoint's weights, with type checks. Torch-free."""

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from posbench.common.errors import ConfigError, Undescribed
from posbench.common.files import read_bytes
from posbench.config.typed_args import Must, fit_value

# Defaults of transformers for keys that config.json lacks.
SILENT = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
SILENT_OF = {
    "llama": {"max_position_embeddings": 2048, "bos_token_id": 1},
    "mistral": {
        "max_position_embeddings": 131072,
        "bos_token_id": 1,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    },
    "ministral": {
        "max_position_embeddings": 131072,
        "bos_token_id": 1,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    },
    "qwen2": {"max_position_embeddings": 32768, "sliding_window": 4096, "max_window_layers": 28},
    "qwen3": {
        "max_position_embeddings": 32768,
        "sliding_window": 4096,
        "max_window_layers": 28,
        "head_dim": 128,
    },
    "smollm3": {
        "max_position_embeddings": 32768,
        "bos_token_id": 128000,
        "num_key_value_heads": 4,
        "rope_theta": 2e6,
        "tie_word_embeddings": True,
    },
    "phi3": {
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "bos_token_id": 1,
        "rms_norm_eps": 1e-5,
    },
}
WHOLE = "model.safetensors"  # all weights in one file
LARGEST = 64 * 2**20  # bytes; the index of many weight files has one or two million
NEEDED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
)
NEEDED += ("max_position_embeddings", "rms_norm_eps", "tie_word_embeddings")
OTHER = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "quantization_config": None,
}


def _whole(low: int, high: int) -> Any:
    return Annotated[
        int, Must(f"a whole number from {low} to {high}", lambda value: low <= value <= high)
    ]


NUMBER = Annotated[float, Must("a number between 0 and 1e15", lambda value: 0 < value < 1e15)]
TYPES = {  # of values that are given and not null
    "vocab_size": _whole(1, 2**24),
    **dict.fromkeys(("hidden_size", "intermediate_size", "head_dim"), _whole(1, 2**20)),
    **dict.fromkeys(
        (
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "no_rope_layer_interval",
        ),
        _whole(1, 2**14),
    ),
    **dict.fromkeys(("max_position_embeddings", "sliding_window"), _whole(1, 2**40)),
    **dict.fromkeys(("max_window_layers", "bos_token_id"), _whole(0, 2**40)),
    **dict.fromkeys(("rms_norm_eps", "rope_theta", "partial_rotary_factor"), NUMBER),
    **dict.fromkeys(("tie_word_embeddings", "use_sliding_window", "truncate"), bool),
    **dict.fromkeys(("rope_scaling", "rope_parameters"), dict),
    **dict.fromkeys(("rope_type", "type"), str),
    **dict.fromkeys(
        (
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            "beta_slow",
            "beta_fast",
            "attention_factor",
        ),
        NUMBER,
    ),
    **dict.fromkeys(("mscale", "mscale_all_dim", "original_max_position_embeddings"), NUMBER),
    **dict.fromkeys(("long_factor", "short_factor"), list[NUMBER]),
    "layer_types": list[Literal["full_attention", "sliding_attention"]],
    "no_rope_layers": list[Literal[0, 1]],
}


def read_mapping(file: Path) -> dict:
    """Content of a checkpoint's json file. Raises ConfigError when it is not a mapping, RunError
    when it is irregular or too large.
    """
    try:
        found = json.loads(read_bytes(file, LARGEST).decode())
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be read ({error.strerror}): make it readable, or download it again."
        ) from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{file} is not JSON ({error}): download it again.") from error
    if not isinstance(found, dict):
        raise ConfigError(
            f"{file} holds a {type(found).__name__} instead of a mapping: download it again."
        )
    return found


def read_config(folder: Path) -> dict:
    """Content of a checkpoint's config.json. Raises ConfigError for a folder without one."""
    file = folder / "config.json"
    if not os.path.isfile(file):
        raise ConfigError(
            f"model.path={folder} is not a folder with a config.json: give that of a downloaded or"
            " exported checkpoint."
        )
    return read_mapping(file)


def weight_names(folder: Path) -> list[str]:
    """Names of a checkpoint's safetensors files, sorted: the one file or, without it, those of the
    index, as transformers chooses.

    Raises ConfigError for an index that names none, or one outside the folder.
    """
    index = folder / "model.safetensors.index.json"
    if (folder / WHOLE).is_file() or not index.is_file():
        return [WHOLE]
    found = read_mapping(index).get("weight_map")
    if (
        not isinstance(found, dict)
        or not found
        or not all(isinstance(name, str) for name in found.values())
    ):
        raise ConfigError(
            f"{index} has no weight_map from tensors to file names: download it again."
        )
    if outside := [name for name in found.values() if Path(name).name != name]:
        raise ConfigError(
            f"{index} names {outside[0]}, which is outside its folder: download the checkpoint"
            " again."
        )
    return sorted(set(found.values()))


def completed(config: dict, file: Path) -> dict:
    """Description of a model with transformers' defaults for missing keys. Every key that is used
    has its type.

    Raises ConfigError for a model that posbench cannot build; `file` is where the description was
    read."""
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise ConfigError(
            f"{file} describes a model of type {kind}, which is not a known family: is it a"
            " checkpoint's?"
        )
    if kind not in SILENT_OF:
        raise Undescribed(
            f"{file} describes a model of type {kind}, and only {', '.join(SILENT_OF)} have the"
            " shape of this one."
        )
    if kind == "mistral" and "layer_types" in config:  # as transformers' AutoConfig reads it
        config = {**config, "model_type": (kind := "ministral")}
    if config.get("is_causal") not in (None, True):
        raise ConfigError(
            f"{file} has is_causal={config['is_causal']}, so queries see later tokens: choose a"
            " causal checkpoint."
        )
    if config.get("transformers_weights") is not None:
        raise ConfigError(
            f"{file} has transformers_weights={config['transformers_weights']}, which is not read:"
            f" rename that file {WHOLE}."
        )
    config = {**SILENT, **SILENT_OF[kind], **config}
    if missing := [
        key
        for key in (*NEEDED, *({"max_window_layers"} & config.keys()))
        if config.get(key) is None
    ]:
        raise ConfigError(f"{file} lacks {' and '.join(missing)}: is it a checkpoint's?")
    for key, wanted in OTHER.items():
        if (config.get(key) or wanted) != wanted:
            error = (
                Undescribed
                if isinstance(config[key], str | bool) and key != "quantization_config"
                else ConfigError
            )
            raise error(
                f"{file} has {key}={config[key]}, which this model does not have: choose a"
                " checkpoint without it."
            )
    for where, mapping in (
        ("", config),
        *((f"{key}.", config.get(key) or {}) for key in ("rope_scaling", "rope_parameters")),
    ):
        for key, value in mapping.items():
            if key in TYPES and value is not None:
                mapping[key] = fit_value(
                    f"{file} is damaged or was edited, so download it again: {where}{key}",
                    value,
                    TYPES[key],
                )
    if (bos := config.get("bos_token_id")) is not None and bos >= config["vocab_size"]:
        raise ConfigError(
            f"{file} has bos_token_id={bos} and vocab_size={config['vocab_size']}: download it"
            " again."
        )
    for key in ("layer_types", "no_rope_layers"):
        if (listed := config.get(key)) is not None and len(listed) != config["num_hidden_layers"]:
            raise ConfigError(
                f"{file} has {len(listed)} {key} and"
                f" num_hidden_layers={config['num_hidden_layers']}: download it again."
            )
    return config
