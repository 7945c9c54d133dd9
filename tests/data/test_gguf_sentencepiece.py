"""SentencePiece's BPE from the vocabulary of a GGUF file: the library sentencepiece, which trained
the vocabulary, is the judge.
"""

import io
import json
from pathlib import Path

import pytest
import sentencepiece
from gguf_models import write_gguf
from hf_models import checkpoint
from test_gguf_tokenizer import TEXTS, varied
from tokenizers import Tokenizer

from posbench.common.errors import ConfigError
from posbench.data.tokenizers import PretrainedTokenizer, continuation_encoder
from posbench.gguf.tokenizer import tokenizer_json

SIZE = 1000
PROSE = (Path(__file__).parents[2] / "README.md").read_text().splitlines()
SAMPLES = [
    "  two  spaces",
    "def f(x):\n    return x\n\n\n",
    "a length <mask>",
    "aaaaaaa eeeee",
    " lead",
    "trail ",
    "\u2581mark\u2581",
    "a",
]


@pytest.fixture(scope="module")
def spm() -> sentencepiece.SentencePieceProcessor:
    """A BPE trained as Llama's was: no normalisation, bytes for what it does not know, and one
    user-defined piece.
    """
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(PROSE),
        model_writer=written,
        model_type="bpe",
        vocab_size=SIZE,
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        user_defined_symbols=["<mask>"],
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())


def written(spm: sentencepiece.SentencePieceProcessor, **changed) -> dict:
    """The keys of a GGUF file that llama.cpp's converter makes of the vocabulary."""
    kinds = [(spm.is_unknown, 2), (spm.is_control, 3), (spm.is_unused, 5), (spm.is_byte, 6)]
    types = [
        next(
            (kind for is_kind, kind in kinds if is_kind(i)),
            4 if spm.id_to_piece(i) == "<mask>" else 1,
        )
        for i in range(SIZE)
    ]
    metadata = {"model": "llama", "pre": "default", "merges": None, "token_type": types}
    metadata |= {
        "tokens": [spm.id_to_piece(i) for i in range(SIZE)],
        "scores": [float(spm.get_score(i)) for i in range(SIZE)],
    }
    return {f"tokenizer.ggml.{key}": value for key, value in {**metadata, **changed}.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return checkpoint(tmp_path_factory.mktemp("sentencepiece"), vocab_size=SIZE)


@pytest.mark.parametrize("pre", ["default", None])
def test_ids_are_those_of_sentencepiece(folder, spm, pre):
    ours = Tokenizer.from_buffer(tokenizer_json(write_gguf(folder, metadata=written(spm, pre=pre))))
    used = set()
    for text in filter(None, (*TEXTS, *SAMPLES, *PROSE, *varied())):
        ids = spm.encode(text)
        assert ours.encode(text).ids == ids
        assert ours.decode(ids, skip_special_tokens=False) == text.replace("\u2581", " ")
        used.update(ids)
    assert len([i for i in used if not spm.is_byte(i)]) > 400 and spm.piece_to_id("<mask>") in used


def test_special_tokens_are_found_whole_and_bytes_sum_to_the_text(folder, spm):
    model = Tokenizer.from_buffer(tokenizer_json(write_gguf(folder, metadata=written(spm))))
    added = {token.content: token.special for token in model.get_added_tokens_decoder().values()}
    assert added == {"<unk>": True, "<s>": True, "</s>": True, "<mask>": False}
    assert model.encode("<s>the").ids == [spm.bos_id(), *spm.encode("the")]
    tokenizer = PretrainedTokenizer(model, "t")
    for text in ("h\u00e9\u65e5 \U0001f600 the\n", "  def"):
        ((ids, widths),) = tokenizer.encode([text])
        assert len(ids) == len(widths) and widths.sum() == len(text.encode())
    inside = continuation_encoder(tokenizer)(" the")
    assert [tokenizer.decode(ids) for ids in (inside, tokenizer.ids("the"))] == [
        "the",
        "the",
    ] and len(inside) == 1


def test_a_file_may_say_that_no_space_stands_before_a_text(folder, spm):
    with_space, without = (
        Tokenizer.from_buffer(tokenizer_json(write_gguf(folder, metadata=written(spm, **changed))))
        for changed in ({}, {"add_space_prefix": False})
    )
    assert (
        without.encode(" the").ids == with_space.encode("the").ids
        and without.encode("the").ids != with_space.encode("the").ids
    )
    assert without.decode(without.encode(" the").ids) == " the"


def swapped(spm: sentencepiece.SentencePieceProcessor, key: str, at: int, value: object) -> list:
    values = list(written(spm)[f"tokenizer.ggml.{key}"])
    values[at] = value
    return values


def test_a_vocabulary_that_contradicts_itself_is_refused(folder, spm):
    first = next(i for i in range(SIZE) if spm.is_byte(i))
    cases = [
        ({"pre": "spm-of-others"}, "a tokenizer of kind llama, spm-of-others, and llama"),
        ({"tokens": None}, "has no tokenizer.ggml.tokens"),
        ({"scores": None}, "another number of token scores"),
        (
            {"scores": swapped(spm, "scores", 5, float("nan"))},
            "a token whose score is not a number",
        ),
        ({"token_type": swapped(spm, "token_type", first, 1)}, "255 tokens for bytes"),
        ({"token_type": swapped(spm, "token_type", SIZE - 1, 2)}, "2 unknown tokens"),
        (
            {"tokens": swapped(spm, "tokens", SIZE - 1, spm.id_to_piece(SIZE - 2))},
            "holds a token twice",
        ),
        ({"add_space_prefix": 1}, "an add_space_prefix"),
    ]
    for changed, message in cases:
        with pytest.raises(ConfigError, match=message) as error:
            tokenizer_json(write_gguf(folder, metadata=written(spm, **changed)))
        assert "\n" not in str(error.value)


def test_the_same_file_gives_the_same_bytes(folder, spm):
    file = write_gguf(folder, metadata=written(spm))
    assert (
        tokenizer_json(file) == tokenizer_json(file)
        and json.loads(tokenizer_json(file))["model"]["byte_fallback"]
    )
