"""Reader of the json files beside a checkpoint's weights, with type checks. Torch-free."""

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from posbench.common.errors import ConfigError, Undescribed
from posbench.common.files import read_bytes
from posbench.config.typed_args import Check, convert

# Defaults of transformers for keys that config.json lacks: those of all families, and of each.
DEFAULTS = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
MISTRAL_DEFAULTS = {
    "max_position_embeddings": 131072,
    "bos_token_id": 1,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
}
QWEN_DEFAULTS = {"max_position_embeddings": 32768, "sliding_window": 4096, "max_window_layers": 28}
DEFAULTS_OF_FAMILY = {
    "llama": {"max_position_embeddings": 2048, "bos_token_id": 1},
    "mistral": MISTRAL_DEFAULTS,
    "ministral": MISTRAL_DEFAULTS,
    "qwen2": QWEN_DEFAULTS,
    "qwen3": {**QWEN_DEFAULTS, "head_dim": 128},
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
SINGLE_FILE = "model.safetensors"  # all weights in one file
LARGEST_JSON = 64 * 2**20  # bytes; the index of many weight files has one or two million
NEEDED_KEYS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
    "rms_norm_eps",
    "tie_word_embeddings",
)
# {key: the only value that this model has}
ONLY_VALUES = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "quantization_config": None,
}


def _whole_number(low: int, high: int) -> Any:
    """Type of a whole number in a range."""
    return Annotated[
        int, Check(f"a whole number from {low} to {high}", lambda value: low <= value <= high)
    ]


SIZE = _whole_number(1, 2**20)
COUNT = _whole_number(1, 2**14)
LENGTH = _whole_number(1, 2**40)
INDEX = _whole_number(0, 2**40)
NUMBER = Annotated[float, Check("a number between 0 and 1e15", lambda value: 0 < value < 1e15)]
TYPES = {  # of values that are given and not null
    "vocab_size": _whole_number(1, 2**24),
    "hidden_size": SIZE,
    "intermediate_size": SIZE,
    "head_dim": SIZE,
    "num_hidden_layers": COUNT,
    "num_attention_heads": COUNT,
    "num_key_value_heads": COUNT,
    "no_rope_layer_interval": COUNT,
    "max_position_embeddings": LENGTH,
    "sliding_window": LENGTH,
    "max_window_layers": INDEX,
    "bos_token_id": INDEX,
    "rms_norm_eps": NUMBER,
    "rope_theta": NUMBER,
    "partial_rotary_factor": NUMBER,
    "tie_word_embeddings": bool,
    "use_sliding_window": bool,
    "truncate": bool,
    "rope_scaling": dict,
    "rope_parameters": dict,
    "rope_type": str,
    "type": str,
    "factor": NUMBER,
    "low_freq_factor": NUMBER,
    "high_freq_factor": NUMBER,
    "beta_slow": NUMBER,
    "beta_fast": NUMBER,
    "attention_factor": NUMBER,
    "mscale": NUMBER,
    "mscale_all_dim": NUMBER,
    "original_max_position_embeddings": NUMBER,
    "long_factor": list[NUMBER],
    "short_factor": list[NUMBER],
    "layer_types": list[Literal["full_attention", "sliding_attention"]],
    "no_rope_layers": list[Literal[0, 1]],
}


def read_json_mapping(file: Path) -> dict:
    """Content of a checkpoint's json file.

    Raises ConfigError when it is not a mapping, RunError when it is irregular or too large."""
    try:
        content = json.loads(read_bytes(file, LARGEST_JSON).decode())
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be read ({error.strerror}): make it readable, or download it again."
        ) from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{file} is not JSON ({error}): download it again.") from error
    if not isinstance(content, dict):
        raise ConfigError(
            f"{file} holds a {type(content).__name__} instead of a mapping: download it again."
        )
    return content


def read_config(folder: Path) -> dict:
    """Content of a checkpoint's config.json. Raises ConfigError for a folder without one."""
    file = folder / "config.json"
    if not os.path.isfile(file):
        raise ConfigError(
            f"model.path={folder} is not a folder with a config.json: give that of a downloaded or"
            " exported checkpoint."
        )
    return read_json_mapping(file)


def weight_file_names(folder: Path) -> list[str]:
    """Names of a checkpoint's safetensors files, sorted: the one file, or those of the index.

    transformers chooses so too. Raises ConfigError for an index that names none, or one outside
    the folder."""
    index = folder / "model.safetensors.index.json"
    if (folder / SINGLE_FILE).is_file() or not index.is_file():
        return [SINGLE_FILE]  # also where it is missing, which the caller finds
    file_of_tensor = read_json_mapping(index).get("weight_map")  # {tensor: file}
    names = set()
    if isinstance(file_of_tensor, dict) and all(
        isinstance(name, str) for name in file_of_tensor.values()
    ):
        names = set(file_of_tensor.values())
    if not names:
        raise ConfigError(
            f"{index} has no weight_map from tensors to file names: download it again."
        )
    for name in file_of_tensor.values():
        if Path(name).name != name:
            raise ConfigError(
                f"{index} names {name}, which is outside its folder: download the checkpoint again."
            )
    return sorted(names)


def with_defaults(config: dict, file: Path) -> dict:
    """Description of a model with transformers' defaults for missing keys, each of its type.

    Raises ConfigError for a model that posbench cannot build; `file` is where the description was
    read."""
    family = _family(config, file)
    _check_causal_and_file_names(config, file)
    config = {**DEFAULTS, **DEFAULTS_OF_FAMILY[family], **config, "model_type": family}
    _check_needed(config, file)
    for key, only_value in ONLY_VALUES.items():
        _check_only_value(key, config.get(key), only_value, file)
    _give_types(config, file)
    _check_consistent(config, file)
    return config


def _family(config: dict, file: Path) -> str:
    """Model type as transformers' AutoConfig reads it: a Mistral with layer_types is a Ministral.

    Raises ConfigError for what is no family, and Undescribed, a kind of it, for one that
    transformers may have."""
    family = config.get("model_type")
    if not isinstance(family, str):
        raise ConfigError(
            f"{file} describes a model of type {family}, which is not a known family: is it a"
            " checkpoint's?"
        )
    if family not in DEFAULTS_OF_FAMILY:
        raise Undescribed(
            f"{file} describes a model of type {family}, and only"
            f" {', '.join(DEFAULTS_OF_FAMILY)} have the shape of this one."
        )
    return "ministral" if family == "mistral" and "layer_types" in config else family


def _check_causal_and_file_names(config: dict, file: Path) -> None:
    """Raise ConfigError for queries that see later tokens, and for weights of another name."""
    if config.get("is_causal") not in (None, True):
        raise ConfigError(
            f"{file} has is_causal={config['is_causal']}, so queries see later tokens: choose a"
            " causal checkpoint."
        )
    if config.get("transformers_weights") is not None:
        raise ConfigError(
            f"{file} has transformers_weights={config['transformers_weights']}, which is not read:"
            f" rename that file {SINGLE_FILE}."
        )


def _check_needed(config: dict, file: Path) -> None:
    """Raise ConfigError where a key that this model needs is missing or null."""
    needed = list(NEEDED_KEYS)
    if "max_window_layers" in config:  # of Qwen, which has a default, but may say null
        needed.append("max_window_layers")
    missing = [key for key in needed if config.get(key) is None]
    if missing:
        raise ConfigError(f"{file} lacks {' and '.join(missing)}: is it a checkpoint's?")


def _check_only_value(key: str, value: object, only_value: object, file: Path) -> None:
    """Raise an error for a value that is neither empty nor the only one that this model has.

    It is Undescribed, so that transformers is tried, for another activation and for biases, but not
    for quantized weights or a value of no possible type."""
    is_empty_or_only = (value or only_value) == only_value
    if is_empty_or_only:
        return
    transformers_may_build = isinstance(value, str | bool) and key != "quantization_config"
    error = Undescribed if transformers_may_build else ConfigError
    raise error(
        f"{file} has {key}={value}, which this model does not have: choose a checkpoint without it."
    )


def _give_types(config: dict, file: Path) -> None:
    """Convert every value to its type, also those of RoPE, in place.

    Raises ConfigError for a value of another type."""
    mappings = {"": config}  # {what stands before its keys in a message: mapping}
    for name in ("rope_scaling", "rope_parameters"):
        mappings[f"{name}."] = config.get(name) or {}
    for beginning, mapping in mappings.items():
        for key, value in mapping.items():
            if key in TYPES and value is not None:
                # `convert` begins its message with this
                start = f"{file} is damaged or was edited, so download it again: {beginning}{key}"
                mapping[key] = convert(start, value, TYPES[key])


def _check_consistent(config: dict, file: Path) -> None:
    """Raise ConfigError for values that contradict each other."""
    bos = config.get("bos_token_id")
    if bos is not None and bos >= config["vocab_size"]:
        raise ConfigError(
            f"{file} has bos_token_id={bos} and vocab_size={config['vocab_size']}: download it"
            " again."
        )
    n_layer = config["num_hidden_layers"]
    for key in ("layer_types", "no_rope_layers"):
        values_by_layer = config.get(key)
        if values_by_layer is not None and len(values_by_layer) != n_layer:
            raise ConfigError(
                f"{file} has {len(values_by_layer)} {key} and num_hidden_layers={n_layer}: download"
                " it again."
            )
