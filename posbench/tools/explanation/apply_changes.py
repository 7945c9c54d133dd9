"""A config.json with changes, as the tool of their words applies them.

A description of text alone: vLLM replaces rope_parameters as a whole, SGLang merges it into the old
one; both have moved rope_theta into it before. A description with a part for text: both read that
part alone, so keys beside it do nothing; inside it vLLM merges, and SGLang replaces. vLLM up to
0.11 read --rope-scaling, which replaced the mapping and left the base where it stood."""

from typing import NamedTuple

from posbench.tools.explanation.changes import Changes
from posbench.tools.explanation.config_json import (
    TEXT_PARTS,
    at_path,
    flat,
    kinds_apart,
    rope_mapping,
    text_path,
)
from posbench.tools.explanation.facts import HF, SGLANG, VLLM, of_family

INSIDE = ("rope_theta", "partial_rotary_factor")  # keys that engines move into the mapping


class Override(NamedTuple):
    """Keys of a change of config.json, as a tool takes them."""

    read: dict  # where the tool looks for them
    lost: list[str]  # keys elsewhere
    merges: bool  # the old mapping stays below the new one


def override_of(config: dict, changes: Changes) -> Override:
    """The part of the changes of a config.json that a tool takes.

    transformers takes all. An engine takes, of a description with a part for text, that part alone.
    """
    path = text_path(config)
    keys = changes.config
    if changes.reader == HF:  # keys of config.json, which are meant for where the others stand
        inside = at_path(keys, path) if path else {}
        beside = {key: value for key, value in keys.items() if key not in path[:1]}
        return Override({**beside, **inside}, lost=[], merges=False)
    if path:
        lost = [key for key in keys if key != path[0]]
        return Override(at_path(keys, path), lost, merges=changes.reader == VLLM)
    lost = [key for key in keys if key in TEXT_PARTS]
    read = {key: value for key, value in keys.items() if key not in lost}
    return Override(read, lost, merges=changes.reader == SGLANG)


def applied(config: dict, changes: Changes) -> dict:
    """A description of text alone with the changes; as it is without them, where transformers reads
    it.
    """
    override = override_of(config, changes)
    if changes.reader == HF:
        return {**flat(config), **override.read} if override.read else config
    family = str(flat(config).get("model_type"))
    text = flat(config)
    keys = dict(override.read)
    mapping = dict(rope_mapping(text))
    if not kinds_apart(mapping):
        # Engines move the base and the share into the mapping before they read the words.
        mapping.setdefault("rope_type", mapping.get("type", "default"))
        text.setdefault("rope_theta", of_family(family, "theta", 1e4))
        if changes.older and keys.get("rope_theta") is not None:
            mapping["rope_theta"] = keys["rope_theta"]
        for key in INSIDE:
            if text.get(key) is not None:
                mapping.setdefault(key, text[key])
            if mapping.get(key) is not None:
                text.pop(key, None)
                keys.pop(key, None)  # the mapping has it already, and comes first
    new = keys.pop("rope_parameters", None) or keys.pop("rope_scaling", None)
    keys.pop("rope_scaling", None)
    text.pop("rope_scaling", None)
    if isinstance(new, dict):
        mapping = _with_mapping(mapping, new, override, changes, family)
    return {**text, **keys, "rope_parameters": mapping}


def _with_mapping(old: dict, new: dict, override: Override, changes: Changes, family: str) -> dict:
    """The mapping of RoPE after a new one is typed."""
    if changes.reader == VLLM and override.merges:
        return merged(old, new)
    if override.merges:  # SGLang, whose new values replace old ones whole
        return {**old, **new}
    if changes.older:
        moved = {key: old[key] for key in INSIDE if key in old}
        return {**moved, "rope_type": new.get("type", "default"), **new}
    # The old mapping is gone, and its base with it.
    default = of_family(family, "vllm_theta", 1e4) if changes.reader == VLLM else 1e4
    return {"rope_theta": default, **new}


def merged(old: dict, new: dict) -> dict:
    """A mapping with another one over it, and the mappings in it likewise.

    >>> merged({"a": 1, "b": {"c": 2}}, {"b": {"d": 3}})
    {'a': 1, 'b': {'c': 2, 'd': 3}}
    """
    result = dict(old)
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(old.get(key), dict):
            value = merged(old[key], value)
        result[key] = value
    return result
