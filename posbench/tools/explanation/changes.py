"""Changes of a setting as people type them: keys of config.json and of GGUF files, flags of vLLM,
SGLang and llama.cpp.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from posbench.common.errors import ConfigError, did_you_mean
from posbench.config.typed_args import in_tokens, shown
from posbench.tools.explanation.facts import FACTS, GGUF_KEYS, HF, LLAMA_FLAGS, VLLM

OVERRIDES, SERVED = FACTS["overrides"], FACTS["served"]  # {flag: engine that reads it}
DOTTED = "--hf-overrides"  # vLLM's --hf-overrides.rope_parameters.factor 4
FLAGS = (*LLAMA_FLAGS, *OVERRIDES, *SERVED, "--override-kv", "--rope-theta")
SCALINGS = ("none", "linear", "yarn")
MAPPINGS = ("rope_parameters", "rope_scaling", *FACTS["text_parts"])
CONFIG_KEYS = (*MAPPINGS, *FACTS["config_keys"])
OPTIONS = ("figure", "json", "length")


@dataclass
class Changes:
    """Words that were typed: `config` by who reads it, `keys` of a GGUF file, `flags` of llama.cpp,
    `served` lengths, and options.
    """

    reader: str = HF
    config: dict = field(default_factory=dict)
    keys: dict = field(default_factory=dict)
    flags: dict = field(default_factory=dict)
    served: float | None = None
    options: dict = field(default_factory=dict)
    typed: list[str] = field(default_factory=list)  # flags and keys as they were typed
    older: bool = False  # flags that vLLM had up to 0.11

    def keys_of(self, architecture: str) -> dict:
        """{key below the architecture's name: value} of the keys that llama.cpp reads in a file of
        this architecture.
        """
        return {
            _below(key): value
            for key, value in self.keys.items()
            if key not in self.foreign_keys(architecture)
        }

    def foreign_keys(self, architecture: str) -> list[str]:
        """Keys with another architecture's name before them."""
        return [
            key
            for key in self.keys
            if key not in GGUF_KEYS and not key.startswith(f"{architecture}.")
        ]


def read_changes(words: list[str]) -> Changes:
    """The words behind WHAT. Raises ConfigError for a flag or key that nobody knows, or a value of
    another kind.
    """
    found, left, dotted, strange = Changes(), list(words), [], []
    while left:
        word = left.pop(0)
        if word.startswith("-"):
            # vLLM and llama.cpp read underscores as dashes, but for those of keys behind a dot.
            flag, equals, value = re.sub(
                r"^--[^.=]*", lambda name: name[0].replace("_", "-"), word
            ).partition("=")
            name, _, path = flag.partition(".")
            if name not in FLAGS or (path and name != DOTTED):
                strange.append(flag)
                left = left[1:] if left and not equals and not left[0].startswith("-") else left
                continue
            if not equals:
                if not left:
                    raise ConfigError(f"{flag} has no value: write it behind the flag.")
                value = left.pop(0)
            if path:
                found.reader = OVERRIDES[name]
                dotted.append(f"{path}={value}")
            else:
                _flag(found, flag, value)
        elif "=" in word:
            key, _, value = word.partition("=")
            _key(found, key, value)
        else:
            raise ConfigError(
                f"{word} is neither a key=value nor a flag: one model is explained at a time."
            )
    if strange:
        said = ", ".join(one + did_you_mean(one, FLAGS) for one in strange)
        raise ConfigError(
            f"{said} cannot set positions: leave out all flags but {', '.join(FLAGS)}."
        )
    if dotted:  # vLLM puts them together behind the others, and the last mapping counts
        from omegaconf import OmegaConf

        found.config = OmegaConf.to_container(OmegaConf.from_dotlist(dotted))
    return found


def _flag(found: Changes, flag: str, value: str) -> None:
    found.typed.append(flag)
    if flag in OVERRIDES:
        found.reader = OVERRIDES[flag]
        found.config = _mapping(flag, value)
    elif flag in SERVED:
        found.reader = SERVED[flag]
        typed = (
            re.fullmatch(r"(\d+(?:\.\d+)?)([km])|(\d+)([KM])", value)
            if found.reader == VLLM
            else None
        )
        if typed is None:
            found.served = _number(flag, value, float)
        elif typed[1]:  # in vLLM 32k is 32,000 and 32K is 32,768; other engines know neither
            found.served = round(float(typed[1]) * {"k": 10**3, "m": 10**6}[typed[2]])
        else:
            found.served = int(typed[3]) * {"K": 2**10, "M": 2**20}[typed[4]]
    elif flag == "--override-kv":
        for one in value.split(","):
            typed = re.fullmatch(r"([^=]+)=(int|float|bool|str):(.*)", one)
            if typed is None:
                raise ConfigError(
                    f"{flag} {shown(one)} must be KEY=TYPE:VALUE with TYPE int, float, bool or str."
                )
            _gguf_key(found, typed[1], typed[3])
    elif flag == "--rope-theta" or (
        flag == "--rope-scaling" and value.lstrip().startswith("{")
    ):  # of vLLM, not of llama.cpp
        found.reader, found.older = VLLM, True
        key = flag.removeprefix("--").replace("-", "_")
        found.config[key] = (
            _mapping(flag, value) if key == "rope_scaling" else _number(flag, value, float)
        )
    elif flag == "--rope-scaling":
        if value not in SCALINGS:
            near = did_you_mean(value, SCALINGS)
            raise ConfigError(
                f"{flag} {shown(value)} is not a type of llama.cpp's{near}: {', '.join(SCALINGS)}."
            )
        found.flags["scaling"] = value
    else:
        number = _number(flag, value, float)
        if flag == "--rope-scale" and number <= 0:
            raise ConfigError(
                f"{flag} {shown(value)} must be above 0: llama.cpp divides positions by it."
            )
        found.flags[LLAMA_FLAGS[flag]] = (
            1 / number if flag == "--rope-freq-scale" and number else number
        )


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
        raise ConfigError(
            f"{key} is not a key that sets positions{did_you_mean(key, known)}: explain knows"
            f" {', '.join(known)}."
        )


def _gguf_key(found: Changes, key: str, value: str) -> None:
    """Keep a key of a GGUF file, with the architecture's name before it or without."""
    below = _below(key)
    if below not in GGUF_KEYS:
        near = did_you_mean(below if "." in below else key, GGUF_KEYS)
        raise ConfigError(
            f"{shown(key)} is not a key of positions in GGUF files{near}: explain knows"
            f" {', '.join(GGUF_KEYS)}."
        )
    readers = {"str": lambda: value, "bool": lambda: _value(value)}
    found.keys[key] = readers.get(GGUF_KEYS[below], lambda: _number(key, value))()


def _below(key: str) -> str:
    """Key of a GGUF file without the architecture's name: rope.freq_base of
    llama.rope.freq_base.
    """
    return key if key in GGUF_KEYS else key.partition(".")[2]


def _number(
    name: str,
    value: str,
    read: Callable[[str], float] = lambda value: float(in_tokens(value, "length")),
) -> float:
    try:
        number = read(value)
    except ValueError:
        plain = (
            ", which its engine reads without k and m" if re.fullmatch(r"\d+[kKmM]", value) else ""
        )
        raise ConfigError(f"{name} {shown(value)} must be a number{plain}.") from None
    if not abs(number) < 1e15:
        raise ConfigError(f"{name} {shown(value)} must be a number below 1e15.")
    return int(number) if number.is_integer() else number


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return {"True": True, "False": False, "None": None}.get(text, text)


def _mapping(name: str, text: str) -> dict:
    try:
        found = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        quotes = (
            " (JSON has double quotes and true, false, null)"
            if "'" in text or re.search(r"\b(True|False|None)\b", text)
            else ""
        )
        raise ConfigError(f"{name}={shown(text)} is not JSON, {error}{quotes}.") from None
    if not isinstance(found, dict):
        raise ConfigError(
            f'{name}={shown(text)} must be a mapping, such as {name}=\'{{"rope_type": "yarn",'
            ' "factor": 4.0}\'.'
        )
    return found
