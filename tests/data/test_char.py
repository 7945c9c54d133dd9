"""data.tokenizer=char: a token a character of the training split, any other in its bytes."""

import numpy as np
import pytest
from conftest import node
from test_data import write

from posbench.data import prepare
from posbench.data.corpus import known_tokenizer
from posbench.data.tokenizers import collect_characters

TRAIN = ["to be, or not", "na\u00efve \u6f22\U0001f600\n"]
CHARACTERS = sorted(set("".join(TRAIN)))


@pytest.mark.parametrize(
    "text", ["", "not to be", "na\u00efve\U0001f600", "z\u00fc \u4e2d\U0001f60e<0x0A>"]
)
def test_ids_are_those_of_the_tokenizers_library_and_bytes_sum_to_the_text(text):
    tokenizer = collect_characters(TRAIN)
    ((ids, n_bytes),) = tokenizer.encode([text])
    assert ids.tolist() == tokenizer.model.encode(text).ids
    assert n_bytes.sum() == len(text.encode())
    assert tokenizer.decode(ids) == text
    in_vocabulary = [character for character in text if character in CHARACTERS]
    others = [character.encode() for character in text if character not in CHARACTERS]
    assert len(ids) == len(in_vocabulary) + len(b"".join(others))
    assert [CHARACTERS[index] for index in ids if index < len(CHARACTERS)] == in_vocabulary


@pytest.mark.parametrize("n_characters", [40, 300])
def test_bytes_of_other_characters_stand_behind_many_characters(n_characters):
    """U+4E2D is E4 B8 AD in UTF-8."""
    tokenizer = collect_characters([chr(0x100 + index) for index in range(n_characters)])
    expected = [n_characters + 0xE4, n_characters + 0xB8, n_characters + 0xAD]
    assert tokenizer.encode("\u4e2d") == expected
    assert tokenizer.model.encode("\u4e2d").ids == expected


def test_a_text_is_prepared_in_its_own_characters(tmp_path):
    texts = {f"train/{i}.txt": text for i, text in enumerate(TRAIN)}
    texts |= {"validation/a.txt": "be", "test/a.txt": "to z"}
    config = {
        **node("data", "local"),
        "name": "mine",
        "path": str(write(tmp_path / "mine", texts)),
        "tokenizer": "char",
        "vocab_size": 1024,
        "bos": False,
        "mix": None,
    }
    corpus = prepare(config, tmp_path / "cache")
    assert (corpus.tokenizer, corpus.vocab_size) == ("char", len(CHARACTERS) + 256)
    assert np.asarray(corpus.test.tokens).tolist() == [
        *(CHARACTERS.index(character) for character in "to "),
        len(CHARACTERS) + ord("z"),
    ]
    tokenizer = known_tokenizer(config, tmp_path / "cache")
    assert tokenizer.encode("be") == [CHARACTERS.index("b"), CHARACTERS.index("e")]
    assert known_tokenizer(config, tmp_path / "elsewhere") is None
