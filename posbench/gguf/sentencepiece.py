"""A SentencePiece BPE in a GGUF file (kind llama: Llama 1 and 2, Mistral 7B, TinyLlama), as the content of a tokenizer.json.

SentencePiece joins the two neighbours whose union has the best score, and the file holds scores in place of merges. So every way to cut
a token in two is a merge, in the order of the scores. A space is written as U+2581, and one stands before every text; characters
outside the vocabulary become bytes. The parts are those of the tokenizer.json that Llama 2 was published with: as there and in
llama.cpp, a space is written behind tokens that are found whole too, which SentencePiece does not behind those that a user defined.
"""

import math
from collections.abc import Iterator

from posbench.gguf.vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, Vocabulary, tokenizer_content

SPACE = "\u2581"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def sentencepiece(given: Vocabulary) -> dict:
    """Content of the tokenizer.json. Raises ConfigError for lists that contradict each other."""
    tokens = given.strings("tokens")
    types, scores = given.numbers("token_type", len(tokens)), given.numbers("scores", len(tokens))
    vocab = {token: index for index, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise given.damaged("holds a token twice")
    if not all(map(math.isfinite, scores)):
        raise given.damaged("has a token whose score is not a number")
    bytewise = [token for token, kind in zip(tokens, types, strict=True) if kind == BYTE]
    if bytewise and sorted(bytewise) != BYTES:
        raise given.damaged(f"holds {len(bytewise)} tokens for bytes, which are not the 256")
    unknown = [token for token, kind in zip(tokens, types, strict=True) if kind == UNKNOWN]
    if len(unknown) > 1 or not (unknown or bytewise):
        raise given.damaged(f"holds {len(unknown)} unknown tokens")
    begun = given.metadata.get("tokenizer.ggml.add_space_prefix", True)
    if not isinstance(begun, bool):
        raise given.damaged("has an add_space_prefix that is neither true nor false")
    model = {"type": "BPE", "vocab": vocab, "merges": _merges(vocab, types, scores), "byte_fallback": bool(bytewise)}
    model |= {"unk_token": unknown[0] if unknown else None, "fuse_unk": True}
    added = {index: token for index, token in enumerate(tokens) if types[index] in (UNKNOWN, CONTROL, USER_DEFINED)}
    before, written = {"type": "Prepend", "prepend": SPACE}, {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    read = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    read += [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] * begun
    return tokenizer_content(
        model,
        added,
        types,
        normalizer={"type": "Sequence", "normalizers": [before, written] if begun else [written]},
        pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": read},
    )


def _merges(vocab: dict[str, int], types: list[int], scores: list[float]) -> list[tuple[str, str]]:
    """Pairs of tokens that make a token, those of the best score first."""
    made = {token: index for token, index in vocab.items() if types[index] == NORMAL}

    def pairs() -> Iterator[tuple[float, int, str, str]]:
        for token, index in made.items():
            for cut in range(1, len(token)):
                if token[:cut] in made and token[cut:] in made:
                    yield -scores[index], index, token[:cut], token[cut:]

    return [(left, right) for *_, left, right in sorted(pairs())]
