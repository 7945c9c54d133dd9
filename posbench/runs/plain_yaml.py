"""YAML files that may be anybody's, read as data: dicts, lists and plain values."""

import functools
import re
from pathlib import Path
from typing import Any

from posbench.common.errors import RunError
from posbench.common.files import read_bytes

MOST_BYTES = 2**20  # bytes; config.yaml of a run has a few thousand
# Levels of nesting; a run's has about a dozen, and a hundred thousand would end the process.
MOST_LEVELS = 100
# In addition to YAML 1.1.
FLOAT_PATTERN = re.compile(
    r"[-+]?[0-9]+(_[0-9]+)*(\.[0-9_]*)?[eE][-+]?[0-9]+$|[-+]?[0-9]+(_[0-9]+)*\.[0-9_]*$"
)
TAG_PREFIX = "tag:yaml.org,2002:"
PLAIN_KINDS = ("null", "bool", "int", "float", "str", "seq", "map")
PLAIN_TAGS = {f"{TAG_PREFIX}{kind}" for kind in PLAIN_KINDS}


def read_yaml(path: Path | str) -> object:
    """Content of a YAML file as dicts, lists and plain values, as OmegaConf reads it. Nothing is
    executed or resolved.

    Raises OSError when it cannot be opened, RunError for content that no run writes: aliases (a few
    bytes may expand to a billion values), tags, duplicate keys, too many levels, and for a file
    that is damaged, not regular or larger than MOST_BYTES."""
    import yaml

    content = read_bytes(path, MOST_BYTES)
    try:
        _check_structure(content)
        return yaml.load(content, Loader=plain_loader())
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise RunError(f"{path} is not plain YAML ({reason}): restore it.") from error


def _check_structure(content: bytes) -> None:
    """Raise ValueError for an alias, which may expand without bound, or more than MOST_LEVELS
    levels, which may end the process.
    """
    import yaml

    depth = 0
    for event in yaml.parse(content, Loader=safe_loader()):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if isinstance(event, yaml.AliasEvent) or depth > MOST_LEVELS:
            raise ValueError(f"it holds an alias, or more than {MOST_LEVELS} levels")


def safe_loader() -> type:
    """Safe loader of PyYAML, in C where that was built."""
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@functools.cache
def plain_loader() -> type:
    """Safe YAML loader class that works like OmegaConf's: 1e-3 is a number, 2026-01-01 is text,
    duplicate keys are errors.
    """

    class PlainLoader(safe_loader()):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict:
            keys = [key.value for key, _ in node.value if key.tag == f"{TAG_PREFIX}str"]
            if len(set(keys)) < len(keys):
                raise ValueError(f"the key {max(keys, key=keys.count)} occurs twice")
            return super().construct_mapping(node, deep)

    PlainLoader.add_implicit_resolver(f"{TAG_PREFIX}float", FLOAT_PATTERN, list("-+0123456789."))
    resolvers = PlainLoader.yaml_implicit_resolvers  # {first character: [(tag, pattern)]}
    PlainLoader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in patterns if tag != f"{TAG_PREFIX}timestamp"]
        for first, patterns in resolvers.items()
    }
    constructors = PlainLoader.yaml_constructors  # None: of an unknown tag, which it refuses
    PlainLoader.yaml_constructors = {
        tag: construct
        for tag, construct in constructors.items()
        if tag in PLAIN_TAGS or tag is None
    }
    return PlainLoader
