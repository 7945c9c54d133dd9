"""Safe reader for YAML of foreign results folders: plain values, bounded in size and depth, without aliases or tags."""

import functools
import re
from pathlib import Path
from typing import Any

from posbench.common.errors import RunError
from posbench.common.files import DEEPEST, read_bytes

LARGEST = 2**20  # bytes; config.yaml of a run has a few thousand
FLOAT = re.compile(r"[-+]?[0-9]+(_[0-9]+)*(\.[0-9_]*)?[eE][-+]?[0-9]+$|[-+]?[0-9]+(_[0-9]+)*\.[0-9_]*$")  # in addition to YAML 1.1
WIDEST = 2**64  # bound on whole numbers: one with a million digits could not even be printed


def read_yaml(path: Path | str) -> object:
    """Content of a YAML file as dicts, lists and plain values, as OmegaConf reads it. Nothing is executed or resolved.

    Raises OSError when it cannot be opened, RunError for content that no run writes: aliases (a few bytes may expand to a billion
    values), tags, duplicate keys, thousands of levels, and for a file that is damaged, not regular or larger than LARGEST.
    """
    import yaml

    content = read_bytes(path, LARGEST)
    try:
        _check_depth(yaml, content)
        return _checked(yaml.load(content, Loader=plain_loader()))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        said = " ".join(str(error).split())
        raise RunError(f"{path} is not plain YAML ({said[:200]}): restore it.") from error


def _check_depth(yaml: Any, content: bytes) -> None:
    """Raise ValueError for aliases and for too many levels, before a recursive parser sees them."""
    depth = 0
    for event in yaml.parse(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"it holds the alias *{event.anchor}")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError(f"it has more than {DEEPEST} levels")


def _checked(value: object) -> object:
    """`value` after a check that JSON could hold it. Raises ValueError otherwise."""
    if isinstance(value, dict):
        if not all(isinstance(key, str | int | float) for key in value):
            raise ValueError("a key is neither text nor a number")
        return {key: _checked(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_checked(item) for item in value]
    if isinstance(value, int) and abs(value) >= WIDEST:
        raise ValueError("a whole number has more than 64 bits")
    if value is not None and not isinstance(value, str | int | float):
        raise ValueError(f"a value has the type {type(value).__name__}")
    return value


@functools.cache
def plain_loader() -> type:
    """Safe YAML loader class that works like OmegaConf's: 1e-3 is a number, 2026-01-01 is text, duplicate keys are errors."""
    import yaml

    class PlainLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict:
            keys = [key.value for key, _ in node.value if key.tag == "tag:yaml.org,2002:str"]
            if len(set(keys)) < len(keys):
                raise ValueError(f"the key {max(keys, key=keys.count)} occurs twice")
            return super().construct_mapping(node, deep)

    PlainLoader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+0123456789."))
    PlainLoader.yaml_implicit_resolvers = {
        first: [(tag, form) for tag, form in forms if tag != "tag:yaml.org,2002:timestamp"]
        for first, forms in PlainLoader.yaml_implicit_resolvers.items()
    }
    return PlainLoader
