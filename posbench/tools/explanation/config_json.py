"""Reader of the parts of a config.json that set positions: its description of text, its length, its
mapping of RoPE.

A model of text and images describes its text in a part of its own, such as text_config, and every
engine takes positions from there."""

from posbench.pretrained.outline import NAMES_IN_CONFIG
from posbench.tools.explanation.facts import FACTS

TEXT_PARTS = tuple(FACTS["text_parts"])


def positive_number(value: object, default: float | None = None) -> float | None:
    """A positive number, else the default."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return default
    # No length, base or factor is as large as 1e15; nan and inf are refused too.
    return value if 0 < value < 1e15 else default


def first_value(config: dict, *keys: str, default: object = None) -> object:
    """The value of the first of these keys that is there and not null, else the default."""
    return next((config[key] for key in keys if config.get(key) is not None), default)


def text_path(config: dict) -> tuple[str, ...]:
    """Keys that lead to the description of text; () where the config.json describes text alone.

    >>> text_path({"model_type": "llama4", "text_config": {"rope_theta": 5e5}})
    ('text_config',)
    """
    for key in TEXT_PARTS:
        if isinstance(config.get(key), dict):
            return (key, *text_path(config[key]))
    return ()


def mapping_at(config: dict, path: tuple[str, ...]) -> dict:
    """The mapping at these keys; {} where there is none."""
    for key in path:
        part = config.get(key)
        config = part if isinstance(part, dict) else {}
    return config


def nest(keys: dict, path: tuple[str, ...]) -> dict:
    """The mapping below these keys.

    >>> nest({"rope_theta": 1e4}, ("text_config",))
    {'text_config': {'rope_theta': 10000.0}}
    """
    for key in reversed(path):
        keys = {key: keys}
    return keys


def text_description(config: dict) -> dict:
    """A description of text alone: the part that describes text, over the rest."""
    merged = dict(config)
    path = text_path(config)
    for depth in range(1, len(path) + 1):
        merged |= mapping_at(config, path[:depth])
    for key in TEXT_PARTS:
        merged.pop(key, None)
    # The part for text of these families may lack its own name.
    if merged.get("model_type") in ("gemma3", "gemma3n", "gemma4", "llama4"):
        merged["model_type"] += "_text"
    return merged


def config_length(config: dict) -> float | None:
    """Length that a config.json states; None where it states none.

    model_max_length (of Command R) comes before max_position_embeddings, as engines take it."""
    for name in ("model_max_length", *NAMES_IN_CONFIG["length"]):
        length = positive_number(config.get(name))
        if length:
            return length
    return None


def rope_mapping(config: dict) -> dict:
    """The mapping of RoPE that transformers reads: rope_scaling, else rope_parameters, else {}."""
    mapping = config.get("rope_scaling") or config.get("rope_parameters")
    return mapping if isinstance(mapping, dict) else {}


def kinds_with_own_mapping(mapping: dict) -> list[str]:
    """Kinds of layers that a mapping of RoPE keeps apart.

    >>> kinds_with_own_mapping({"full_attention": {"rope_theta": 1e6}, "sliding_attention": None})
    ['full_attention', 'sliding_attention']
    """
    return [
        key
        for key, value in mapping.items()
        if isinstance(value, dict) or (value is None and key.endswith("_attention"))
    ]
