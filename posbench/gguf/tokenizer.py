"""The tokenizer inside a GGUF file, as the content of a tokenizer.json made from the file's own vocabulary.

A byte-level BPE (kind gpt2) has merges in the file; of a BPE of SentencePiece (kind llama) see sentencepiece.py.
"""

import json
from array import array
from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.config.typed_args import shown
from posbench.gguf.header import read_gguf
from posbench.gguf.sentencepiece import sentencepiece
from posbench.gguf.vocabulary import CONTROL, NORMAL, USER_DEFINED, Vocabulary, tokenizer_content

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
DIGITS = {"type": "Digits", "individual_digits": True}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
GPT2 = [{**BYTES, "use_regex": True}]


def _split_at(pattern: str) -> list[dict]:
    return [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}, BYTES]


# {tokenizer.ggml.pre: how the text is cut before merging}, each as in the tokenizer.json that these models were published with.
# transformers builds smollm without its cut at digits, which changes white space before a numeral (two lines, then 1).
CUTS = {
    "gpt-2": GPT2,
    "smollm": [DIGITS, *GPT2],
    **dict.fromkeys(("llama-bpe", "llama3", "smaug-bpe"), _split_at(LLAMA3)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _split_at(QWEN2)),
}
WHOLE_FIRST = ("llama-bpe", "llama3")  # a piece that is a token itself is taken without merging


def tokenizer_json(path: str | Path) -> bytes:
    """Content of the tokenizer.json that a GGUF file's vocabulary stands for. The same file gives the same bytes.

    Raises ConfigError for a vocabulary of another kind, and for lists that contradict each other.
    """
    metadata = read_gguf(path).metadata
    kind, cut = (metadata.get(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
    if kind == "llama" and cut in (None, "default"):
        made = sentencepiece(Vocabulary(path, metadata))
    elif kind == "gpt2" and isinstance(cut, str) and cut in CUTS:
        made = _byte_level(Vocabulary(path, metadata), cut)
    else:
        raise ConfigError(
            f"{path} holds a tokenizer of kind {shown(kind)}, {shown(cut)}, and llama (SentencePiece) and gpt2 with "
            f"{', '.join(CUTS)} are built from such a file: give data.tokenizer=FOLDER, or a hub name, that holds the tokenizer.json of "
            "this model."
        )
    return json.dumps(made, ensure_ascii=False).encode()


def _byte_level(given: Vocabulary, cut: str) -> dict:
    tokens, merges = given.strings("tokens"), given.strings("merges")
    types = given.numbers("token_type", len(tokens), usual=array("i", [NORMAL] * len(tokens)))
    alphabet = _alphabet()
    spelled = {token for token in tokens if set(token) <= set(alphabet.values())}
    written = [token if token in spelled else "".join(alphabet[byte] for byte in token.encode()) for token in tokens]
    vocab = {token: index for index, token in enumerate(written)}
    if len(vocab) != len(tokens):
        raise given.damaged("holds a token twice")
    pairs = [merge.split(" ") for merge in merges]
    if wrong := next((pair for pair in pairs if len(pair) != 2 or not {*pair, "".join(pair)} <= vocab.keys()), None):
        raise given.damaged(f"has the merge {shown(' '.join(wrong))}, which does not make a token of two")
    added = {index: token for index, token in enumerate(tokens) if types[index] in (CONTROL, USER_DEFINED) and token in spelled}
    model = {"type": "BPE", "vocab": vocab, "merges": pairs, "byte_fallback": False, "ignore_merges": cut in WHOLE_FIRST}
    cuts = {"pre_tokenizer": {"type": "Sequence", "pretokenizers": CUTS[cut]}, "decoder": GPT2[0]}
    return tokenizer_content(model, added, types, normalizer={"type": "NFC"} if "qwen" in cut else None, **cuts)


def _alphabet() -> dict[int, str]:
    """{byte: the character that GPT-2 writes for it}. Bytes that print stand for themselves, the others follow from 256 on."""
    printed = [*range(ord("!"), ord("~") + 1), *range(ord("\u00a1"), ord("\u00ac") + 1), *range(ord("\u00ae"), ord("\u00ff") + 1)]
    other = [byte for byte in range(256) if byte not in printed]
    return {byte: chr(byte) for byte in printed} | {byte: chr(256 + index) for index, byte in enumerate(other)}
