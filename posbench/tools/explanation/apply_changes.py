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
    nested,
    rope_words,
    text_path,
)
from posbench.tools.explanation.facts import HF, SGLANG, VLLM, of_family

INSIDE = ("rope_theta", "partial_rotary_factor")  # keys that engines move into the mapping


class Override(NamedTuple):
    """Keys of a change: `read` where the tool looks for them, `lost` elsewhere. `merges`: the old
    mapping stays below the new one.
    """

    read: dict
    lost: list[str]
    merges: bool


def override_of(config: dict, changes: Changes) -> Override:
    """The part of the changes of a config.json that a tool takes."""
    path, given = text_path(config), dict(changes.config)
    if changes.reader == HF:  # keys of config.json, which are meant for where the others stand
        inside = at_path(given, path) if path else {}
        beside = {key: value for key, value in given.items() if key not in path[:1]}
        return Override({**beside, **inside}, [], False)
    if not path:
        lost = [key for key in given if key in TEXT_PARTS]
        return Override(
            {key: given[key] for key in given if key not in lost}, lost, changes.reader == SGLANG
        )
    lost = [key for key in given if key != path[0]]
    return Override(at_path(given, path), lost, changes.reader == VLLM)


def applied(config: dict, changes: Changes) -> dict:
    """A description of text alone with the changes; as it is without them, where transformers reads
    it.
    """
    override = override_of(config, changes)
    if changes.reader == HF:
        return {**flat(config), **override.read} if override.read else config
    family = str(flat(config).get("model_type"))
    text, given = flat(config), dict(override.read)
    words = dict(rope_words(text))
    if not nested(words):
        words.setdefault("rope_type", words.get("type", "default"))
        text.setdefault("rope_theta", of_family(family, "theta", 1e4))
        if changes.older and given.get("rope_theta") is not None:
            words["rope_theta"] = given["rope_theta"]
        for key in INSIDE:
            if text.get(key) is not None:
                words.setdefault(key, text[key])
            if words.get(key) is not None:
                text.pop(key, None)
                given.pop(key, None)  # the mapping has it already, and comes first
    new = given.pop("rope_parameters", None) or given.pop("rope_scaling", None)
    given.pop("rope_scaling", None)
    text.pop("rope_scaling", None)
    if isinstance(new, dict):
        words = _with_mapping(words, new, override, changes, family)
    return {**text, **given, "rope_parameters": words}


def _with_mapping(
    words: dict, new: dict, override: Override, changes: Changes, family: str
) -> dict:
    """The mapping of RoPE after a new one is given."""
    if changes.reader == VLLM and override.merges:
        return merged(words, new)
    if override.merges:
        return {**words, **new}
    if changes.older:
        kept = {key: words[key] for key in INSIDE if key in words}
        return {**kept, "rope_type": new.get("type", "default"), **new}
    default = of_family(family, "vllm_theta", 1e4) if changes.reader == VLLM else 1e4
    return {"rope_theta": default, **new}


def merged(old: dict, new: dict) -> dict:
    """A mapping with another one over it, and the mappings in it likewise."""
    result = dict(old)
    for key, value in new.items():
        both = isinstance(value, dict) and isinstance(old.get(key), dict)
        result[key] = merged(old[key], value) if both else value
    return result
