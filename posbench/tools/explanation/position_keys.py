"""Keys of a config.json that are about positions, or may be: those that explain does not read are
named, and no length is then said.

A key counts as one about positions by its name (`position_names` of facts.yaml). What is known of a
key beyond its name stands there."""

import json
import re
from typing import NamedTuple

from posbench.config.typed_args import shown
from posbench.tools.explanation.config_json import at_path, first_of, number, rope_words, text_path
from posbench.tools.explanation.facts import FACTS, TYPES, Finding, finding

NAMES = re.compile("|".join(FACTS["position_names"]))
LENGTHS = re.compile(FACTS["length_names"])
READ = {*FACTS["position_keys_read"], *FACTS["config_keys"], "rope_parameters", "rope_scaling"}
MAPPING_KEYS = {key for keys in TYPES.values() for key in keys} | {
    *FACTS["elsewhere"],
    "rope_type",
    "scaling_factor",
}
OFF = (None, False, 0, 1, "", [], {})  # values that ask for nothing


class PositionKey(NamedTuple):
    """A key about positions that explain does not read. With `decides` no length can be said."""

    key: str
    value: object
    decides: bool


def position_keys(config: dict) -> list[PositionKey]:
    """Keys of the description of text that are about positions and not read, such as
    dual_chunk_attention_config.
    """
    text = at_path(config, text_path(config))
    known = FACTS["position_keys"]
    words = rope_words(text)
    lengths = {
        value for value in (*text.values(), *words.values(), *_of_kinds(words)) if number(value)
    }
    result = []
    for key, value in text.items():
        if key in READ or _asks_nothing(key, value):
            continue
        if key in known:
            result.append(PositionKey(key, value, known[key].get("decides", True)))
        elif key in FACTS["share_names"] and value == first_of(
            text, "partial_rotary_factor", "rotary_pct"
        ):
            continue
        elif LENGTHS.search(key) and number(value):
            if list(text.values()).count(value) < 2 and value not in lengths - {value}:
                result.append(PositionKey(key, value, True))
        elif NAMES.search(key) or key in MAPPING_KEYS:
            result.append(PositionKey(key, value, True))
    if _without_type(words):
        result.append(PositionKey("rope_type", None, True))
    return result


def _of_kinds(words: dict) -> list[object]:
    return [
        inner for value in words.values() if isinstance(value, dict) for inner in value.values()
    ]


def _asks_nothing(key: str, value: object) -> bool:
    """True for a value that is off, or that says in words that positions are RoPE's."""
    if isinstance(value, str):
        return any(name in value.lower() for name in FACTS["rope_names"])
    return any(value is off or (type(value) is not bool and value == off) for off in OFF)


def _without_type(words: dict) -> bool:
    """True for a mapping that has keys of a type, and does not say which."""
    return first_of(words, "rope_type", "type") is None and any(
        key in words for key in ("factor", "long_factor", "short_factor")
    )


def position_findings(keys: list[PositionKey]) -> list[Finding]:
    """A sentence about each key."""
    result = []
    for key, value, _ in keys:
        known = FACTS["position_keys"].get(key)
        if key == "rope_type":
            result.append(finding("no_type"))
        elif known is None:
            result.append(finding("position_key", key=key, value=shown(json.dumps(value))))
        else:
            inner = value if isinstance(value, dict) else {}
            values = {
                name: f"{inner.get(name):,}" if number(inner.get(name)) else "?"
                for name in known.get("values", ())
            }
            result.append(finding(known, key=key, value=shown(json.dumps(value)), **values))
    return result
