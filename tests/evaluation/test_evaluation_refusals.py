"""Refusals of evaluations: settings as typed, texts that are too short, and the words of the
message.
"""

from dataclasses import replace

import pytest
from test_evaluate import text
from test_protocols import NAMES, WHOLE
from test_text_tasks import questions
from typed_lines import configured

from posbench.common.errors import ConfigError
from posbench.config.schema import EvaluateConfig
from posbench.data.tokenizers import ByteTokenizer
from posbench.evaluation.registry import protocol
from posbench.position.instantiate import make_method

USUAL = (
    "extension=none train.length=16 evaluate.protocol=fixed_targets evaluate.dtype=fp32"
    " evaluate.lengths=[16,32,64] evaluate.max_length=64 evaluate.windows=512 evaluate.targets=2"
    " evaluate.stride=4 evaluate.key_gain=2.0 evaluate.key_loss=2.0 evaluate.key_context=4"
)
SETTINGS = [
    *(
        (
            f"evaluate.protocol={name} extension=recompute_window",
            "which extension=recompute_window never does: use 'evaluate.protocol=",
        )
        for name in WHOLE
    ),
    *(
        (f"evaluate.protocol={name} evaluate.lengths=[1,16]", "leave out lengths below 2")
        for name in WHOLE
        if name != "by_position"
    ),
    (
        "evaluate.protocol=sliding evaluate.stride=17",
        "evaluate.stride=17 leaves tokens unscored .* of evaluate.lengths=.16, 32, 64.",
    ),
    (
        "evaluate.protocol=yarn_script evaluate.stride=16",
        "set evaluate.stride to 15 or less, or leave out the shorter lengths",
    ),
    ("evaluate.protocol=lceg_script evaluate.stride=17", "set evaluate.stride to 16 or less"),
    (
        "evaluate.protocol=repeat evaluate.targets=8",
        "evaluate.targets=8 must be below half of the training length 16",
    ),
    (
        "evaluate.protocol=repeat evaluate.max_length=15",
        "evaluate.max_length=15 is below the training length 16",
    ),
    (
        "evaluate.protocol=longppl evaluate.lengths=[16] evaluate.key_context=16",
        "must be below the training length 16",
    ),
    (
        "evaluate.protocol=longppl evaluate.lengths=[16] evaluate.max_length=16",
        "set it to 17 or more",
    ),
]


@pytest.mark.parametrize(("typed", "message"), SETTINGS, ids=[typed for typed, _ in SETTINGS])
def test_what_a_protocol_cannot_do_is_refused_without_text_or_model(typed, message):
    name, config, values = settings(typed)
    with pytest.raises(ConfigError, match=message):
        protocol(name).check(make_method(values["extension"]), config, values["train"]["length"])


def settings(typed: str) -> tuple[str, EvaluateConfig, dict]:
    """Name of the protocol, its configuration, and all values of a typed line."""
    values = configured(f"{USUAL} {typed}")
    name = values["evaluate"].pop("protocol")
    return name, EvaluateConfig(**values["evaluate"]), values


TO_100 = "evaluate.lengths=[16,100] evaluate.max_length=100"
TEXTS = [
    *(
        (
            f"evaluate.protocol={name} {TO_100}",
            {"a/one": 90, "b/two": 30},
            "the longest has 90: lower evaluate.lengths and evaluate.max_length to 89",
        )
        for name in NAMES
    ),
    (
        "evaluate.protocol=lceg_script evaluate.lengths=[64] evaluate.windows=1",
        {"a/one": 90, "b/two": 30},
        "has only 64 tokens: raise evaluate.windows=1",
    ),
    (
        "evaluate.documents=b/*",
        {"test/a/one": 300, "test/b/two": 300},
        r"evaluate.documents=b/\* matches none of the 2 documents, the first of which is"
        " test/a/one",
    ),
    (
        "evaluate.documents=b/* evaluate.unit=project",
        {"a/one": 300, "b/two": 900, "b/four": 2000, "c/five": 40},
        r"all documents with 65 tokens are of one \(b\): leave evaluate.unit out",
    ),
]


@pytest.mark.parametrize(
    ("typed", "documents", "message"), TEXTS, ids=[typed for typed, _, _ in TEXTS]
)
def test_texts_without_room_for_the_windows_are_refused(typed, documents, message):
    """`documents` is {name: tokens}."""
    name, config, values = settings(typed)
    file = replace(text(list(documents.values())), names=list(documents))
    with pytest.raises(ConfigError, match=message):
        protocol(name).place_windows(file, config, values["train"]["length"])


@pytest.mark.parametrize(
    ("task", "changed", "length", "message"),
    [
        (
            "passkey",
            {},
            100,
            "evaluate.tasks=passkey needs .* tokens with this tokenizer, and evaluate.lengths"
            " holds 100",
        ),
        ("niah_single_2", {}, 400_000, "takes its haystack from a document"),
        ("passkey", {"haystack": "hay"}, 3000, "haystack=hay"),
        ("passkey", {"depths": 1}, 3000, "depths=1"),
        ("passkey", {"nonsense": 1}, 3000, "nonsense"),
        ("niah_single_1", {"queries": 2}, 3000, "queries=2 of keys=1"),
    ],
    ids=str,
)
def test_questions_that_do_not_fit_are_refused(task, changed, length, message):
    with pytest.raises(ConfigError, match=message):
        questions(task, ByteTokenizer(), **changed).draw(length, 1, [0], depth=0.5)
