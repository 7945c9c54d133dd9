"""Safe reader for YAML of foreign results folders: plain values, bounded in size and depth, without aliases or tags."""

import functools
import re
from pathlib import Path
from typing import Any

from posbench.common.errors import RunError
from posbench.common.files import read_bytes

LARGEST = 2**20  # bytes; config.yaml of a run has a few thousand
DEEPEST = 100  # levels of nesting; a run's has about a dozen, and a hundred thousand would end the process
FLOAT = re.compile(r"[-+]?[0-9]+(_[0-9]+)*(\.[0-9_]*)?[eE][-+]?[0-9]+$|[-+]?[0-9]+(_[0-9]+)*\.[0-9_]*$")  # in addition to YAML 1.1
PLAIN = {f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str", "seq", "map")}


def read_yaml(path: Path | str) -> object:
    """Content of a YAML file as dicts, lists and plain values, as OmegaConf reads it. Nothing is executed or resolved.

    Raises OSError when it cannot be opened, RunError for content that no run writes: aliases (a few bytes may expand to a billion
    values), tags, duplicate keys, too many levels, and for a file that is damaged, not regular or larger than LARGEST.
    """
    import yaml

    content, depth = read_bytes(path, LARGEST), 0
    try:
        for event in yaml.parse(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent) or depth > DEEPEST:
                raise ValueError(f"it holds an alias, or more than {DEEPEST} levels")
        return yaml.load(content, Loader=plain_loader())
    except (yaml.YAMLError, ValueError) as error:
        said = " ".join(str(error).split())
        raise RunError(f"{path} is not plain YAML ({said[:200]}): restore it.") from error


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
    PlainLoader.yaml_constructors = {tag: make for tag, make in PlainLoader.yaml_constructors.items() if tag in PLAIN or tag is None}
    return PlainLoader
