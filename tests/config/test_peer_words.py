"""Words of other projects: what they mean here exists."""

from dataclasses import fields

from conftest import choices

from posbench.cli.commands import find_command
from posbench.config.names import shipped_yamls
from posbench.config.peer_words import (
    CHOICES_ELSEWHERE,
    COMMANDS_ELSEWHERE,
    KEYS_ELSEWHERE,
    WITHOUT_KEY,
)
from posbench.config.schema import SCHEMAS, JobConfig
from posbench.evaluation.registry import protocol_names

KEYS = {field.name for field in fields(JobConfig)}


def exists(key: str) -> bool:
    """True for a key outside the groups, or one of a group's schema or of one of its choices."""
    group, _, name = key.partition(".")
    if not name:
        return key in KEYS
    in_schema = group in SCHEMAS and hasattr(SCHEMAS[group](), name)
    return in_schema or any(name in content for content in shipped_yamls(group).values())


def test_what_is_meant_exists_and_what_is_typed_does_not():
    for word, key in KEYS_ELSEWHERE.items():
        assert exists(key) and word not in KEYS, (word, key)
    for group, words in CHOICES_ELSEWHERE.items():
        names = protocol_names() if group == "protocol" else choices(group)
        assert set(words.values()) <= set(names) and not set(words) & set(names), group
    for word, command in COMMANDS_ELSEWHERE.items():
        assert find_command(command.split()[0]) and not find_command(word), word
    assert not set(WITHOUT_KEY) & {*KEYS_ELSEWHERE, *KEYS}
