"""Keys of a config.json that are about positions, or may be: those that explain does not read are
named, and no length is then said.

A key counts as one about positions by its name (`position_names` of facts.yaml). What is known of a
key beyond its name stands there."""

import json
import re
from typing import NamedTuple

from posbench.config.typed_args import shown
from posbench.tools.explanation.config_json import (
    first_value,
    mapping_at,
    positive_number,
    rope_mapping,
    text_path,
)
from posbench.tools.explanation.facts import FACTS, TYPES, Finding, finding, finding_of

POSITION_NAMES = re.compile("|".join(FACTS["position_names"]))
LENGTH_NAMES = re.compile(FACTS["length_names"])
READ_KEYS = {*FACTS["position_keys_read"], *FACTS["config_keys"], "rope_parameters", "rope_scaling"}
MAPPING_KEYS = {"rope_type", "scaling_factor", *FACTS["elsewhere"]}
MAPPING_KEYS.update(*TYPES.values())
OFF_VALUES = (None, False, 0, 1, "", [], {})  # values that ask for nothing


class PositionKey(NamedTuple):
    """A key about positions that explain does not read.

    With `hides_length` no length can be said.
    """

    key: str
    value: object
    hides_length: bool


def position_keys(config: dict) -> list[PositionKey]:
    """Keys of the description of text that are about positions and not read, such as
    dual_chunk_attention_config. Beside one that hides the length no covered length is named.
    """
    text = mapping_at(config, text_path(config))
    result = []
    for key, value in text.items():
        if key in READ_KEYS or _is_off(key, value) or _repeats_another_key(key, value, text):
            continue
        if key in FACTS["position_keys"]:
            hides_length = FACTS["position_keys"][key].get("decides", True)
            result.append(PositionKey(key, value, hides_length))
        elif POSITION_NAMES.search(key) or key in MAPPING_KEYS or _is_length(key, value):
            result.append(PositionKey(key, value, hides_length=True))
    if _lacks_type(rope_mapping(text)):
        result.append(PositionKey("rope_type", value=None, hides_length=True))
    return result


def _is_off(key: str, value: object) -> bool:
    """True for a value that is off, or that says in words that positions are RoPE's."""
    if isinstance(value, str):
        return any(name in value.lower() for name in FACTS["rope_names"])
    return any(value is off or (type(value) is not bool and value == off) for off in OFF_VALUES)


def _is_length(key: str, value: object) -> bool:
    """True for a positive number under the name of a length."""
    return bool(LENGTH_NAMES.search(key) and positive_number(value))


def _repeats_another_key(key: str, value: object, text: dict) -> bool:
    """True for a share or a length that says once more what another key says."""
    if key in FACTS["position_keys"]:
        return False
    if key in FACTS["share_names"]:
        return value == first_value(text, "partial_rotary_factor", "rotary_pct")
    return _is_length(key, value) and list(text.values()).count(value) > 1


def _lacks_type(mapping: dict) -> bool:
    """True for a mapping that has keys of a type, and does not say which."""
    has_keys = any(key in mapping for key in ("factor", "long_factor", "short_factor"))
    return has_keys and first_value(mapping, "rope_type", "type") is None


def position_findings(keys: list[PositionKey]) -> list[Finding]:
    """A sentence about each key."""
    result = []
    for key, value, _hides_length in keys:
        fact = FACTS["position_keys"].get(key)
        text = shown(json.dumps(value))
        if key == "rope_type":  # listed where the mapping lacks it
            result.append(finding("no_type"))
        elif fact is None:
            result.append(finding("position_key", key=key, value=text))
        else:
            inner = value if isinstance(value, dict) else {}
            sizes = {}
            for name in fact.get("values", ()):
                sizes[name] = f"{inner[name]:,}" if positive_number(inner.get(name)) else "?"
            result.append(finding_of(fact, key=key, value=text, **sizes))
    return result
