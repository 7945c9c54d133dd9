"""Changes of a setting as people type them: keys of config.json and of GGUF files, flags of vLLM, SGLang and llama.cpp."""

import json
import re
from dataclasses import dataclass, field

from posbench.common.errors import ConfigError, did_you_mean
from posbench.config.typed_args import in_tokens, shown
from posbench.explanation.llama_cpp import KEYS
from posbench.explanation.settings import HF, SGLANG, VLLM

# {flag of llama.cpp: its name here}; --rope-freq-scale is one divided by --rope-scale.
LLAMA_FLAGS = {
    "--rope-scaling": "scaling",
    "--rope-scale": "factor",
    "--rope-freq-scale": "factor",
    "--rope-freq-base": "base",
    "--yarn-orig-ctx": "orig",
    "--yarn-ext-factor": "ext",
    "--yarn-attn-factor": "attn",
    "--yarn-beta-slow": "slow",
    "--yarn-beta-fast": "fast",
    "-c": "ctx",
    "--ctx-size": "ctx",
    "-gan": "group",
    "--grp-attn-n": "group",
    "-gaw": "group_width",
    "--grp-attn-w": "group_width",
}
OVERRIDES = {"--hf-overrides": VLLM, "--json-model-override-args": SGLANG}
SERVED = {"--max-model-len": VLLM, "--context-length": SGLANG}
FLAGS = (*LLAMA_FLAGS, *OVERRIDES, *SERVED, "--override-kv")
SCALINGS = ("none", "linear", "yarn")
MAPPINGS = ("rope_parameters", "rope_scaling")
CONFIG_KEYS = (
    *MAPPINGS,
    *"rope_theta max_position_embeddings original_max_position_embeddings partial_rotary_factor rope_local_base_freq".split(),
    *"sliding_window use_sliding_window max_window_layers sliding_window_pattern layer_types head_dim".split(),
)
OPTIONS = ("figure", "json", "length")


@dataclass
class Changes:
    """Words that were typed: `config` by who reads it, `keys` of a GGUF file, `flags` of llama.cpp, `served` lengths, and options."""

    reader: str = HF
    config: dict = field(default_factory=dict)
    keys: dict = field(default_factory=dict)
    flags: dict = field(default_factory=dict)
    served: float | None = None
    options: dict = field(default_factory=dict)
    typed: list[str] = field(default_factory=list)  # flags and keys as they were typed


def read_changes(words: list[str]) -> Changes:
    """The words behind WHAT. Raises ConfigError for a flag or key that nobody knows, or a value of another kind."""
    found, left = Changes(), list(words)
    while left:
        word = left.pop(0)
        if word.startswith("-"):
            flag, equals, value = word.partition("=")
            if not equals:
                if not left:
                    raise ConfigError(f"{flag} has no value: write it behind the flag.")
                value = left.pop(0)
            _flag(found, flag, value)
        elif "=" in word:
            key, _, value = word.partition("=")
            _key(found, key, value)
        else:
            raise ConfigError(f"{word} is neither a key=value nor a flag: one model is explained at a time.")
    return found


def _flag(found: Changes, flag: str, value: str) -> None:
    dotted = flag.partition(".")
    if dotted[0] in OVERRIDES and dotted[2]:  # vLLM's --hf-overrides.rope_parameters.factor 4
        path, value = dotted[2].split("."), json.dumps(_value(value))
        for key in reversed(path):
            value = f"{{{json.dumps(key)}: {value}}}"
        flag = dotted[0]
    if flag not in FLAGS:
        raise ConfigError(f"{flag} is not a flag{did_you_mean(flag, FLAGS)}: explain knows {', '.join(FLAGS)}.")
    found.typed.append(flag)
    if flag in OVERRIDES:
        found.reader = OVERRIDES[flag]
        found.config |= _mapping(flag, value)
    elif flag in SERVED:
        found.reader, found.served = SERVED[flag], _number(flag, value)
    elif flag == "--override-kv":
        for one in value.split(","):
            typed = re.fullmatch(r"([^=]+)=(int|float|bool|str):(.*)", one)
            if typed is None:
                raise ConfigError(f"{flag} {shown(one)} must be KEY=TYPE:VALUE with TYPE int, float, bool or str.")
            _gguf_key(found, typed[1], typed[3])
    elif flag == "--rope-scaling":
        if value.lstrip().startswith("{"):
            raise ConfigError(
                f"{flag} takes a mapping in no engine any more: give --hf-overrides '{{\"rope_parameters\": {{...}}}}' to vLLM."
            )
        if value not in SCALINGS:
            raise ConfigError(f"{flag} {shown(value)} is not a type of llama.cpp's{did_you_mean(value, SCALINGS)}: {', '.join(SCALINGS)}.")
        found.flags["scaling"] = value
    else:
        number = _number(flag, value)
        found.flags[LLAMA_FLAGS[flag]] = 1 / number if flag == "--rope-freq-scale" and number else number


def _key(found: Changes, key: str, value: str) -> None:
    found.typed.append(key)
    if key in OPTIONS:
        found.options[key] = _number(key, value) if key == "length" else value
    elif key in MAPPINGS:
        found.config[key] = None if value in ("null", "None") else _mapping(key, value)
    elif key in CONFIG_KEYS:
        found.config[key] = _value(value)
    elif "." in key:
        _gguf_key(found, key, value)
    else:
        known = (*CONFIG_KEYS, *OPTIONS)
        raise ConfigError(f"{key} is not a key that sets positions{did_you_mean(key, known)}: explain knows {', '.join(known)}.")


def _gguf_key(found: Changes, key: str, value: str) -> None:
    """Keep a key of a GGUF file, with the architecture's name before it or without."""
    below = key if key in KEYS else key.partition(".")[2]
    if below not in KEYS:
        near = did_you_mean(below if "." in below else key, KEYS)
        raise ConfigError(f"{shown(key)} is not a key of positions in GGUF files{near}: explain knows {', '.join(KEYS)}.")
    found.keys[below] = value if KEYS[below] == "str" else _value(value) if KEYS[below] == "bool" else _number(key, value)


def _number(name: str, value: str) -> float:
    try:
        number = float(in_tokens(value, "length"))
    except ValueError:
        raise ConfigError(f"{name} {shown(value)} must be a number.") from None
    if not abs(number) < 1e15:
        raise ConfigError(f"{name} {shown(value)} must be a number below 1e15.")
    return int(number) if number.is_integer() else number


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return {"True": True, "False": False, "None": None}.get(text, text)


def _mapping(name: str, text: str) -> dict:
    """A mapping in JSON. Raises ConfigError for anything else."""
    try:
        found = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        quotes = " (JSON has double quotes and true, false, null)" if "'" in text or re.search(r"\b(True|False|None)\b", text) else ""
        raise ConfigError(f"{name}={shown(text)} is not JSON, {error}{quotes}.") from None
    if not isinstance(found, dict):
        raise ConfigError(f'{name}={shown(text)} must be a mapping, such as {name}=\'{{"rope_type": "yarn", "factor": 4.0}}\'.')
    return found
