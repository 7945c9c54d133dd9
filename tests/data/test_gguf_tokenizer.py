"""Tokenizers from the vocabulary of a GGUF file: transformers' conversion of the same file is the
judge.
"""

import json
from hashlib import sha256

import numpy as np
import pytest
from gguf_models import write_gguf
from hf_models import checkpoint, transformers
from tokenizers import Tokenizer, pre_tokenizers

from posbench.common.errors import ConfigError
from posbench.data.tokenizers import (
    PretrainedTokenizer,
    pretrained_json,
    tokenizer_identity,
    tokenizer_name,
)
from posbench.gguf.tokenizer import PRE_TOKENIZERS, tokenizer_json

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
VOCABULARY = [
    *(f"<|{name}|>" for name in "abc"),
    *ALPHABET,
    "he",
    "Ġhe",
    "ll",
    "ĠĠ",
    "ĊĊ",
    "Ãī",
    "<think>",
]
MERGED = ["h e", "Ġ he", "l l", "Ġ Ġ", "Ċ Ċ", "Ã ī"]
TYPES = [3] * 3 + [1] * (len(VOCABULARY) - 4) + [4]
TEXTS = [
    "hello, he'll tell 12345 and 3.14 heLL",
    "  \t two  spaces\n\n\n and lines \r\n",
    "<|a|>he<|b|> <think>he</think> <|d|>",
    "na\u00efve caf\u00e9 cafe\u0301 \u65e5\u672c\u8a9e \U0001f600\U0001f469\u200d\U0001f469",
    "",
]


def vocabulary(pre: str = "smollm", **changed) -> dict:
    metadata = {"pre": pre, "tokens": VOCABULARY, "merges": MERGED, "token_type": TYPES, **changed}
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return checkpoint(tmp_path_factory.mktemp("tokenizers"), vocab_size=len(VOCABULARY))


def varied(number: int = 40, size: int = 200) -> list[str]:
    """Texts of random characters: letters, other scripts, symbols, white space and digits."""
    generator = np.random.default_rng(0)
    kinds = [(32, 127), (32, 127), (160, 0x3000), (0x10000, 0x1F900), (9, 14), (48, 58)]
    return [
        "".join(
            chr(generator.integers(*kinds[kind]))
            for kind in generator.integers(len(kinds), size=size)
        )
        for _ in range(number)
    ]


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_ids_are_those_of_transformers(folder, pre):
    file = write_gguf(folder, metadata=vocabulary(pre))
    ours = Tokenizer.from_buffer(tokenizer_json(file))
    theirs = transformers.AutoTokenizer.from_pretrained(
        file.parent, gguf_file=file.name
    ).backend_tokenizer
    if (
        pre == "smollm"
    ):  # transformers leaves out its cut at digits, which changes white space before a numeral
        assert all(ours.encode(text).ids == theirs.encode(text).ids for text in TEXTS)
        theirs.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), theirs.pre_tokenizer]
        )
    if "qwen" in pre:
        theirs.normalizer = ours.normalizer
    for text in (*TEXTS, *varied()):
        assert (
            ours.encode(text, add_special_tokens=False).ids
            == theirs.encode(text, add_special_tokens=False).ids
        )
        if "qwen" not in pre:
            assert ours.decode(ours.encode(text).ids, skip_special_tokens=False) == text


def test_the_content_stays_byte_for_byte(folder):
    """It is hashed into the ids of texts and runs, which stored results go by. The digests are
    those of November 2026.
    """
    digests = {"smollm": "ffc05f81a88849a1", "qwen2": "b3fd05c8d5bd19c3"}
    assert {
        pre: sha256(tokenizer_json(write_gguf(folder, metadata=vocabulary(pre)))).hexdigest()[:16]
        for pre in digests
    } == digests


def test_special_tokens_are_found_whole(folder):
    model = Tokenizer.from_buffer(tokenizer_json(write_gguf(folder, metadata=vocabulary())))
    assert model.encode("<|b|>he<think>").ids == [
        1,
        VOCABULARY.index("he"),
        VOCABULARY.index("<think>"),
    ]
    added = model.get_added_tokens_decoder()
    assert {index: token.special for index, token in added.items()} == {
        0: True,
        1: True,
        2: True,
        len(VOCABULARY) - 1: False,
    }


def test_a_corpus_reads_it_by_the_name_of_the_file(folder):
    file = write_gguf(folder, metadata=vocabulary())
    assert (
        tokenizer_name(str(file), 0).startswith("Llama.F32-")
        and tokenizer_identity(str(file), 0)[0] == "pretrained"
    )
    content = pretrained_json(str(file))
    assert content == tokenizer_json(file) and json.loads(content)["model"]["type"] == "BPE"
    # Made once by a process, and anew where another file lies there.
    assert pretrained_json(str(file)) is content
    write_gguf(folder, metadata=vocabulary("qwen2"))
    assert pretrained_json(str(file)) == tokenizer_json(file) != content
    ids, widths = PretrainedTokenizer(Tokenizer.from_buffer(content), "t").encode(["hé lle"])[0]
    assert len(ids) == len(widths) and widths.sum() == len("hé lle".encode())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": "llama"}, "a tokenizer of kind llama, smollm"),
        ({"pre": "chatglm-bpe"}, "give data.tokenizer=FOLDER"),
        ({"tokens": None}, "has no tokenizer.ggml.tokens"),
        ({"merges": [1, 2]}, "has no tokenizer.ggml.merges"),
        ({"merges": ["h e", "he l"]}, "has the merge he l"),
        ({"tokens": [*VOCABULARY[:-1], "he"]}, "holds a token twice"),
        ({"token_type": [1, 1]}, "another number of token types"),
    ],
)
def test_a_vocabulary_that_contradicts_itself_or_is_of_another_kind_is_refused(
    folder, changed, message
):
    file = write_gguf(folder, metadata=vocabulary(**changed))
    with pytest.raises(ConfigError, match=message):
        tokenizer_json(file)
