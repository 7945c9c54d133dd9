"""A config.json with changes, as the tool of their words applies them.

A description of text alone: vLLM replaces rope_parameters as a whole, SGLang merges it into the old
one; both have moved rope_theta into it before. A description with a part for text: both read that
part alone, so keys beside it do nothing; inside it vLLM merges, and SGLang replaces. vLLM up to
0.11 read --rope-scaling, which replaced the mapping and left the base where it stood."""

from typing import NamedTuple

from posbench.tools.explanation.changes import Changes
from posbench.tools.explanation.config_json import (
    TEXT_PARTS,
    kinds_with_own_mapping,
    mapping_at,
    rope_mapping,
    text_description,
    text_path,
)
from posbench.tools.explanation.facts import HF, SGLANG, VLLM, fact_of_family

# keys that engines move into the mapping
MOVED_INTO_MAPPING = (
    "rope_theta",
    "partial_rotary_factor",
)


class Override(NamedTuple):
    """Keys of a change of config.json, as a tool takes them."""

    effective_keys: dict  # that stand where the tool looks for them
    ignored: list[str]  # that stand elsewhere
    merges: bool  # the old mapping stays below the new one


def override_of(config: dict, changes: Changes) -> Override:
    """The part of the changes of a config.json that a tool takes.

    transformers takes all. An engine takes, of a description with a part for text, that part alone.
    """
    path = text_path(config)
    keys = changes.config
    if changes.reader == HF:
        # The changes are edits of config.json: a key beside the part for text is meant for it.
        inside = mapping_at(keys, path) if path else {}
        beside = {key: value for key, value in keys.items() if key not in path[:1]}
        return Override({**beside, **inside}, ignored=[], merges=False)
    if path:
        ignored = [key for key in keys if key != path[0]]
        # Inside a part vLLM merges mappings, and SGLang replaces them.
        return Override(mapping_at(keys, path), ignored, merges=changes.reader == VLLM)
    # A part for text does nothing where the model describes text alone.
    ignored = [key for key in keys if key in TEXT_PARTS]
    effective_keys = {key: value for key, value in keys.items() if key not in ignored}
    # Of text alone it is the other way round.
    return Override(effective_keys, ignored, merges=changes.reader == SGLANG)


def config_with_changes(config: dict, changes: Changes) -> dict:
    """A description of text alone with the changes, as its reader has it: of an engine all keys of
    RoPE stand in rope_parameters. transformers' without changes is `config` itself.
    """
    override = override_of(config, changes)
    if changes.reader == HF:
        if not override.effective_keys:
            return config
        return {**text_description(config), **override.effective_keys}
    text = text_description(config)  # a copy, as the two below
    family = str(text.get("model_type"))
    keys = dict(override.effective_keys)
    mapping = dict(rope_mapping(text))
    if not kinds_with_own_mapping(mapping):
        # Engines move the base and the share into the mapping before they read the words.
        mapping.setdefault("rope_type", mapping.get("type", "default"))
        text.setdefault("rope_theta", fact_of_family(family, "theta", 1e4))
        # vLLM up to 0.11 laid --rope-theta over config.json, where the base still stood.
        if changes.has_older_flags and keys.get("rope_theta") is not None:
            mapping["rope_theta"] = keys["rope_theta"]
        for key in MOVED_INTO_MAPPING:
            if text.get(key) is not None:
                mapping.setdefault(key, text[key])
            if mapping.get(key) is not None:
                text.pop(key, None)
                keys.pop(key, None)  # the mapping has it already, and comes first
    typed_mapping = keys.pop("rope_parameters", None) or keys.pop("rope_scaling", None)
    keys.pop("rope_scaling", None)  # beside rope_parameters it does not count
    text.pop("rope_scaling", None)
    if isinstance(typed_mapping, dict):
        mapping = _new_rope_mapping(mapping, typed_mapping, override, changes, family)
    return {**text, **keys, "rope_parameters": mapping}


def _new_rope_mapping(
    old_mapping: dict, typed_mapping: dict, override: Override, changes: Changes, family: str
) -> dict:
    """The mapping of RoPE after a new one is typed."""
    if override.merges and changes.reader == VLLM:
        return deep_merged(old_mapping, typed_mapping)
    if override.merges:  # SGLang, whose new values replace old ones whole
        return {**old_mapping, **typed_mapping}
    if changes.has_older_flags:
        # --rope-scaling of vLLM up to 0.11: the base and partial_rotary_factor stood beside the
        # mapping, and stay.
        moved_keys = {key: old_mapping[key] for key in MOVED_INTO_MAPPING if key in old_mapping}
        return {**moved_keys, "rope_type": typed_mapping.get("type", "default"), **typed_mapping}
    # The old mapping is gone, and its base with it.
    default_base = fact_of_family(family, "vllm_theta", 1e4) if changes.reader == VLLM else 1e4
    return {"rope_theta": default_base, **typed_mapping}


def deep_merged(old: dict, new: dict) -> dict:
    """A mapping with another one over it, and the mappings in it likewise.

    >>> deep_merged({"a": 1, "b": {"c": 2}}, {"b": {"d": 3}})
    {'a': 1, 'b': {'c': 2, 'd': 3}}
    """
    result = dict(old)
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(old.get(key), dict):
            value = deep_merged(old[key], value)
        result[key] = value
    return result
