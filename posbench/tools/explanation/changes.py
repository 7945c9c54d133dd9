"""Changes of a setting as people type them: keys of config.json and of GGUF files, flags of vLLM,
SGLang and llama.cpp.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from posbench.common.errors import ConfigError, did_you_mean
from posbench.config.typed_args import expand_sizes, shown
from posbench.tools.explanation.facts import FACTS, GGUF_KEYS, HF, LLAMA_FLAGS, VLLM

OVERRIDE_FLAGS = FACTS["overrides"]  # {flag: engine that reads it}
LENGTH_FLAGS = FACTS["served"]  # {flag of a length: engine that reads it}
FITTED_LENGTHS = ("auto", "-1")  # --max-model-len of vLLM: as long as the memory allows
DOTTED_FLAG = "--hf-overrides"  # vLLM's --hf-overrides.rope_parameters.factor 4
ALL_FLAGS = (*LLAMA_FLAGS, *OVERRIDE_FLAGS, *LENGTH_FLAGS, "--override-kv", "--rope-theta")
LLAMA_SCALINGS = ("none", "linear", "yarn")
MAPPINGS = ("rope_parameters", "rope_scaling", *FACTS["text_parts"])
CONFIG_KEYS = (*MAPPINGS, *FACTS["config_keys"])
EXPLAIN_OPTIONS = ("figure", "json", "length")


@dataclass
class Changes:
    """Words that were typed, by who reads them."""

    reader: str = HF  # of `config`
    config: dict = field(default_factory=dict)  # keys of config.json
    gguf_keys: dict = field(default_factory=dict)  # of a GGUF file
    llama_flags: dict = field(default_factory=dict)  # of llama.cpp
    served_length: float | None = None  # length that an engine is to serve
    explain_options: dict = field(default_factory=dict)  # of explain itself
    typed_words: list[str] = field(default_factory=list)  # flags and keys as they were typed
    has_older_flags: bool = False  # flags that vLLM had up to 0.11

    def keys_of(self, architecture: str) -> dict:
        """{key below the architecture's name: value} of the keys that llama.cpp reads in a file of
        this architecture.
        """
        foreign = self.foreign_keys(architecture)
        return {
            _without_architecture(key): value
            for key, value in self.gguf_keys.items()
            if key not in foreign
        }

    def foreign_keys(self, architecture: str) -> list[str]:
        """Keys with another architecture's name before them."""
        return [
            key
            for key in self.gguf_keys
            if key not in GGUF_KEYS and not key.startswith(f"{architecture}.")
        ]


def read_changes(words: list[str]) -> Changes:
    """Changes that the words behind the model's name make. Raises ConfigError for a flag or key
    that nobody knows, or a value of another kind.

    >>> read_changes(["--rope-scaling", "yarn", "--rope-scale", "4"]).llama_flags
    {'scaling': 'yarn', 'factor': 4}
    """
    changes = Changes()
    dotted: list[str] = []  # keys behind DOTTED_FLAG, such as "rope_parameters.factor=4"
    unknown: list[str] = []
    words_left = list(words)
    while words_left:
        word = words_left.pop(0)
        if not word.startswith("-"):
            _add_key(changes, word)
            continue
        flag, equals, value = _with_dashes(word).partition("=")
        name, _, path = flag.partition(".")
        is_known = name in ALL_FLAGS and (not path or name == DOTTED_FLAG)
        if not equals:
            value = _take_value(flag, words_left, is_known)
        if not is_known:
            unknown.append(flag)
        elif path:
            changes.reader = OVERRIDE_FLAGS[DOTTED_FLAG]  # the engine that has this flag
            dotted.append(f"{path}={value}")
        else:
            _add_flag(changes, flag, value)
    if unknown:
        flags = ", ".join(flag + did_you_mean(flag, ALL_FLAGS) for flag in unknown)
        raise ConfigError(
            f"{flags} cannot set positions: leave out all flags but {', '.join(ALL_FLAGS)}."
        )
    if dotted:  # vLLM puts them together behind the others, and the last mapping counts
        from omegaconf import OmegaConf

        changes.config = OmegaConf.to_container(OmegaConf.from_dotlist(dotted))
    return changes


def _take_value(flag: str, words_left: list[str], is_known: bool) -> str:
    """Take the value of a flag from the words behind it; "" of an unknown flag without any."""
    if is_known and not words_left:
        raise ConfigError(f"{flag} has no value: write it behind the flag.")
    if is_known or (words_left and not words_left[0].startswith("-")):
        return words_left.pop(0)
    return ""


def _with_dashes(word: str) -> str:
    """A flag as vLLM and llama.cpp read it: underscores are dashes, but for those of keys behind a
    dot.

    >>> _with_dashes("--hf_overrides.rope_theta=5")
    '--hf-overrides.rope_theta=5'
    """
    return re.sub(r"^--[^.=]*", lambda match: match.group().replace("_", "-"), word)


def _add_flag(changes: Changes, flag: str, value: str) -> None:
    """Add a flag to the changes."""
    changes.typed_words.append(flag)
    if flag in OVERRIDE_FLAGS:
        changes.reader = OVERRIDE_FLAGS[flag]
        changes.config = _parsed_mapping(flag, value)
    elif flag in LENGTH_FLAGS:
        changes.reader = LENGTH_FLAGS[flag]
        if changes.reader == VLLM and value in FITTED_LENGTHS:
            return  # no length is known before vLLM runs
        length = _length_to_serve(flag, value, changes.reader)
        changes.served_length = _checked_length(flag, value, length)
    elif flag == "--override-kv":
        for entry in value.split(","):
            _add_kv_override(changes, flag, entry)
    elif flag == "--rope-theta":
        changes.reader = VLLM
        changes.has_older_flags = True
        changes.config["rope_theta"] = _parsed_number(flag, value, float)
    elif flag == "--rope-scaling" and value.lstrip().startswith("{"):  # of vLLM, not of llama.cpp
        changes.reader = VLLM
        changes.has_older_flags = True
        changes.config["rope_scaling"] = _parsed_mapping(flag, value)
    elif flag == "--rope-scaling":
        if value not in LLAMA_SCALINGS:
            near = did_you_mean(value, LLAMA_SCALINGS)
            raise ConfigError(
                f"{flag} {shown(value)} is not a type of llama.cpp's{near}:"
                f" {', '.join(LLAMA_SCALINGS)}."
            )
        changes.llama_flags["scaling"] = value
    else:
        name = LLAMA_FLAGS[flag]  # such as "factor" for --rope-scale
        changes.llama_flags[name] = _llama_number(flag, value)


def _length_to_serve(flag: str, value: str, engine: str) -> float:
    """Length to serve. In vLLM 32k is 32,000 and 32K is 32,768; other engines know neither."""
    if engine == VLLM:
        decimal = re.fullmatch(r"(\d+(?:\.\d+)?)([km])", value)
        if decimal:
            return round(float(decimal[1]) * {"k": 10**3, "m": 10**6}[decimal[2]])
        binary = re.fullmatch(r"(\d+)([KM])", value)
        if binary:
            return int(binary[1]) * {"K": 2**10, "M": 2**20}[binary[2]]
    return _parsed_number(flag, value, float)


def _checked_length(name: str, text: str, length: float) -> float:
    """A length that a text may have. Raises ConfigError for one below 1."""
    if length < 1:
        raise ConfigError(
            f"{name} {shown(text)} must be at least 1 token: give a length, or leave it out."
        )
    return length


def _add_kv_override(changes: Changes, flag: str, entry: str) -> None:
    """Add a key of a GGUF file, such as llama.rope.freq_base=float:500000."""
    parts = re.fullmatch(r"(?P<key>[^=]+)=(int|float|bool|str):(?P<value>.*)", entry)
    if parts is None:
        raise ConfigError(
            f"{flag} {shown(entry)} must be KEY=TYPE:VALUE with TYPE int, float, bool or str."
        )
    _add_gguf_key(changes, parts["key"], parts["value"])  # read as the type that the key has


def _llama_number(flag: str, value: str) -> float:
    """Number of a flag of llama.cpp; of --rope-freq-scale the factor that it stands for.

    --rope-freq-scale 0.25 is the factor 4, and 0 is llama.cpp's word for "as the model says".
    """
    number = _parsed_number(flag, value, float)
    if flag == "--rope-scale" and number <= 0:
        raise ConfigError(
            f"{flag} {shown(value)} must be above 0: llama.cpp divides positions by it."
        )
    if LLAMA_FLAGS[flag] == "ctx" and number:  # 0 is llama.cpp's word for the file's length
        return _checked_length(flag, value, number)
    return 1 / number if flag == "--rope-freq-scale" and number else number


def _add_key(changes: Changes, word: str) -> None:
    """Add a key=value to the changes."""
    key, equals, value = word.partition("=")
    if not equals:
        raise ConfigError(
            f"{word} is neither a key=value nor a flag: one model is explained at a time."
        )
    changes.typed_words.append(key)
    if key == "length":
        changes.explain_options[key] = _checked_length(key, value, _parsed_number(key, value))
    elif key in EXPLAIN_OPTIONS:
        changes.explain_options[key] = value
    elif key in MAPPINGS:
        changes.config[key] = None if value in ("null", "None") else _parsed_mapping(key, value)
    elif key in CONFIG_KEYS:
        changes.config[key] = _parsed_value(value)
    elif "." in key:
        _add_gguf_key(changes, key, value)
    else:
        known_keys = (*CONFIG_KEYS, *EXPLAIN_OPTIONS)
        raise ConfigError(
            f"{key} is not a key that sets positions{did_you_mean(key, known_keys)}: explain knows"
            f" {', '.join(known_keys)}."
        )


def _add_gguf_key(changes: Changes, key: str, text: str) -> None:
    """Add a key of a GGUF file, with the architecture's name before it or without."""
    bare_key = _without_architecture(key)
    if bare_key not in GGUF_KEYS:
        # Of rope.scale the architecture would be "rope": a word without a dot is no bare key.
        near = did_you_mean(bare_key if "." in bare_key else key, GGUF_KEYS)
        raise ConfigError(
            f"{shown(key)} is not a key of positions in GGUF files{near}: explain knows"
            f" {', '.join(GGUF_KEYS)}."
        )
    match GGUF_KEYS[bare_key]:
        case "str":
            changes.gguf_keys[key] = text
        case "bool":
            changes.gguf_keys[key] = _parsed_value(text)
        case _:
            changes.gguf_keys[key] = _parsed_number(key, text)


def _without_architecture(key: str) -> str:
    """Key of a GGUF file without the architecture's name.

    >>> _without_architecture("llama.rope.freq_base"), _without_architecture("rope.freq_base")
    ('rope.freq_base', 'rope.freq_base')
    """
    return key if key in GGUF_KEYS else key.partition(".")[2]


def _tokens(text: str) -> float:
    return float(expand_sizes(text, "length"))


def _parsed_number(name: str, text: str, read: Callable[[str], float] = _tokens) -> float:
    """A number, whole if it can be. By default k and m stand for tokens, as in 32k."""
    try:
        number = read(text)
    except ValueError:
        units = ""
        if re.fullmatch(r"\d+[kKmM]", text):
            units = ", which its engine reads without k and m"
        raise ConfigError(f"{name} {shown(text)} must be a number{units}.") from None
    # No length, base or factor is as large as 1e15; nan and inf are refused too.
    if not abs(number) < 1e15:
        raise ConfigError(f"{name} {shown(text)} must be a number below 1e15.")
    return int(number) if number.is_integer() else number


def _parsed_value(text: str) -> object:
    """A value in JSON or Python, else the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return {"True": True, "False": False, "None": None}.get(text, text)


def _parsed_mapping(name: str, text: str) -> dict:
    """A mapping in JSON."""
    try:
        mapping = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        quotes = ""
        if "'" in text or re.search(r"\b(True|False|None)\b", text):
            quotes = " (JSON has double quotes and true, false, null)"
        raise ConfigError(f"{name}={shown(text)} is not JSON, {error}{quotes}.") from None
    if not isinstance(mapping, dict):
        raise ConfigError(
            f'{name}={shown(text)} must be a mapping, such as {name}=\'{{"rope_type": "yarn",'
            ' "factor": 4.0}\'.'
        )
    return mapping
