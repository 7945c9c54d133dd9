"""Words of other projects: what they mean here exists, and a refusal leads there."""

from dataclasses import fields

import pytest
from conftest import choices
from script_calls import call

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


@pytest.mark.parametrize(
    ("words", "way_out"),
    [
        ("encoding=nope", "(did you mean none?)"),
        ("encoding=RoPE", "(did you mean rope?)"),
        ("extension=NTK-aware", "(did you mean ntk?)"),
        ("scale_attention=yarn", "(did you mean yarn_temperature?)"),
        ("data=text", "(did you mean local data.path=PATH?)"),
        ("data=notes/mine.txt", "type your own text as data=local data.path=notes/mine.txt"),
        ("model=ORG/NAME", "type a checkpoint as model=hf model.path=ORG/NAME"),
        ("model=gpt2", "a checkpoint is given as model=hf model.path=PATH_OR_NAME"),
        ("evaluate.protocol=perplexity", "(did you mean disjoint?)"),
        ("evaluate.protocol=passkey", "(did you mean accuracy, with evaluate.tasks=[passkey]?)"),
        ("--encoding rope", "values are typed without dashes, as encoding=VALUE"),
        ("--learning-rate=1", "values are typed without dashes, as train.lr=1"),
        ("max_iters=9", "(did you mean train.steps?)"),
        ("pe=rope", "(did you mean encoding?)"),
        ("extension=yarn extension.factor=4", "(did you mean extension.target_len, in tokens: "),
        ("encoding.dim=4", "(it is of encoding=sandwich)"),
        ("dropout=0.1", "models are trained without dropout: leave it out"),
        ("extension=pi,yarn", "names several values: add -m to take each."),
        ("seed=[0,1]", "(for a job with each, type -m seed=0,1)"),
        ("encoding=[rope,alibi]", "for a job with each, type -m encoding=rope,alibi"),
        ("seed=0,1", "names several values: add -m to take each."),
        ("data.tokenizer=byte", "(did you mean bytes?)"),
        ("data.tokenizer=char data.vocab_size=65", "data.vocab_size=65 has no effect on data."),
        ("extension=yarn extension.mode=fixed", "add extension.target_len=TOKENS"),
        ("name=a/b", "name=a/b must be a name of at most 60 letters"),
        ("-m name=a,b", "name=a,b gives 2 names to one sweep"),
    ],
)
def test_a_refusal_leads_to_the_word_here(tmp_path, capfd, words, way_out):
    done = call(capfd, tmp_path, "run", *words.split(), "dry=true")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and way_out in done.stderr, (
        done.stderr
    )
