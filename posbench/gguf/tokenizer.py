"""The tokenizer inside a GGUF file, as the content of a tokenizer.json made from the file's own
vocabulary.

A byte-level BPE (kind gpt2) has merges in the file, a BPE of SentencePiece (kind llama: Llama 1 and
2, Mistral 7B, TinyLlama) scores."""

import json
import math
from array import array
from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.config.typed_args import shown
from posbench.gguf.header import GgufFile, read_gguf

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
SPACE = "\u2581"
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
DIGITS = {"type": "Digits", "individual_digits": True}
BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": False,
}
GPT2 = [{**BYTE_LEVEL, "use_regex": True}]


def _split_at(pattern: str) -> list[dict]:
    return [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
        BYTE_LEVEL,
    ]


# {tokenizer.ggml.pre: how the text is cut before merging}, each as in the tokenizer.json that these
# models were published with. transformers builds smollm without its cut at digits, which changes
# white space before a numeral (two lines, then 1).
CUTS = {
    "gpt-2": GPT2,
    "smollm": [DIGITS, *GPT2],
    **dict.fromkeys(("llama-bpe", "llama3", "smaug-bpe"), _split_at(LLAMA3)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _split_at(QWEN2)),
}
WHOLE_FIRST = ("llama-bpe", "llama3")  # a piece that is a token itself is taken without merging


def tokenizer_json(path: str | Path) -> bytes:
    """Content of the tokenizer.json that a GGUF file's vocabulary stands for. The same file gives
    the same bytes.

    Raises ConfigError for a vocabulary of another kind, and for lists that contradict each other.
    """
    file = read_gguf(path)
    kind, cut = (file.metadata.get(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
    if kind == "llama" and cut in (None, "default"):
        made = _sentencepiece(file)
    elif kind == "gpt2" and isinstance(cut, str) and cut in CUTS:
        made = _byte_level(file, cut)
    else:
        what = (
            f"{shown(kind)}, {shown(cut)}, and llama (SentencePiece) and gpt2 with"
            f" {', '.join(CUTS)} are built from such a file"
        )
        raise ConfigError(
            f"{path} holds a tokenizer of kind {what}: give data.tokenizer=FOLDER, or a hub name,"
            " with its tokenizer.json."
        )
    return json.dumps(made, ensure_ascii=False).encode()


def _strings(file: GgufFile, key: str) -> list[str]:
    found = file.metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(found, list) or not found:
        raise ConfigError(
            f"{file.path} has no tokenizer.ggml.{key}: give data.tokenizer=FOLDER with the"
            " tokenizer.json of this model."
        )
    return found


def _numbers(file: GgufFile, key: str, count: int, usual: array | None = None) -> array:
    """A number for each of `count` tokens, or `usual` without any."""
    found = file.metadata.get(f"tokenizer.ggml.{key}", usual)
    if not isinstance(found, array) or len(found) != count:
        raise _damaged(
            file, f"has another number of token {key.removeprefix('token_')}s than of tokens"
        )
    return found


def _damaged(file: GgufFile, what: str) -> ConfigError:
    return ConfigError(
        f"{file.path} {what}, so it is not a tokenizer: download it again, or give"
        " data.tokenizer=FOLDER with another."
    )


def _byte_level(file: GgufFile, cut: str) -> dict:
    from tokenizers import pre_tokenizers

    tokens, merges = _strings(file, "tokens"), _strings(file, "merges")
    types = _numbers(file, "token_type", len(tokens), usual=array("i", [NORMAL] * len(tokens)))
    alphabet, spelling = (
        set(pre_tokenizers.ByteLevel.alphabet()),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    )
    spelled = {token for token in tokens if set(token) <= alphabet}
    written = [
        token if token in spelled else spelling.pre_tokenize_str(token)[0][0] for token in tokens
    ]
    vocab = {token: index for index, token in enumerate(written)}
    if len(vocab) != len(tokens):
        raise _damaged(file, "holds a token twice")
    pairs = [merge.split(" ") for merge in merges]
    if wrong := next(
        (pair for pair in pairs if len(pair) != 2 or not {*pair, "".join(pair)} <= vocab.keys()),
        None,
    ):
        raise _damaged(
            file, f"has the merge {shown(' '.join(wrong))}, which does not make a token of two"
        )
    added = {
        index: token
        for index, token in enumerate(tokens)
        if types[index] in (CONTROL, USER_DEFINED) and token in spelled
    }
    model = {
        "type": "BPE",
        "vocab": vocab,
        "merges": pairs,
        "byte_fallback": False,
        "ignore_merges": cut in WHOLE_FIRST,
    }
    cuts = {"pre_tokenizer": {"type": "Sequence", "pretokenizers": CUTS[cut]}, "decoder": GPT2[0]}
    return _content(
        model, added, types, normalizer={"type": "NFC"} if "qwen" in cut else None, **cuts
    )


def _sentencepiece(file: GgufFile) -> dict:
    """Content for a BPE of SentencePiece.

    It joins the two neighbours whose union has the best score, so every way to cut a token in two
    is a merge, in the order of the scores. A space is written as U+2581, and one stands before
    every text; characters outside the vocabulary become bytes. The parts are those of the
    tokenizer.json that Llama 2 was published with: as there and in llama.cpp, a space is written
    behind tokens that are found whole too, which SentencePiece does not behind those that a user
    defined."""
    tokens = _strings(file, "tokens")
    types, scores = _numbers(file, "token_type", len(tokens)), _numbers(file, "scores", len(tokens))
    vocab = {token: index for index, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise _damaged(file, "holds a token twice")
    if not all(map(math.isfinite, scores)):
        raise _damaged(file, "has a token whose score is not a number")
    bytewise = [token for token, kind in zip(tokens, types, strict=True) if kind == BYTE]
    if bytewise and sorted(bytewise) != BYTE_TOKENS:
        raise _damaged(file, f"holds {len(bytewise)} tokens for bytes, which are not the 256")
    unknown = [token for token, kind in zip(tokens, types, strict=True) if kind == UNKNOWN]
    if len(unknown) > 1 or not (unknown or bytewise):
        raise _damaged(file, f"holds {len(unknown)} unknown tokens")
    begun = file.metadata.get("tokenizer.ggml.add_space_prefix", True)
    if not isinstance(begun, bool):
        raise _damaged(file, "has an add_space_prefix that is neither true nor false")
    model = {
        "type": "BPE",
        "vocab": vocab,
        "merges": _merges(vocab, types, scores),
        "byte_fallback": bool(bytewise),
    }
    model |= {"unk_token": unknown[0] if unknown else None, "fuse_unk": True}
    added = {
        index: token
        for index, token in enumerate(tokens)
        if types[index] in (UNKNOWN, CONTROL, USER_DEFINED)
    }
    before, written = (
        {"type": "Prepend", "prepend": SPACE},
        {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
    )
    read = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    read += [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] * begun
    return _content(
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
    pairs = []
    for token, index in made.items():
        cuts = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        pairs += [
            (-scores[index], index, left, right)
            for left, right in cuts
            if left in made and right in made
        ]
    return [(left, right) for *_, left, right in sorted(pairs)]


def _content(
    model: dict, added: dict[int, str], types: array, normalizer: dict | None, **parts: object
) -> dict:
    """Content of a tokenizer.json. The tokens `added`, by id, are found whole in a text; those of
    type CONTROL and UNKNOWN are special.

    The order of the keys is hashed with the content into the ids of texts, so it stays.
    """
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokens = [
        {"id": index, "content": token, "special": types[index] in (CONTROL, UNKNOWN), **plain}
        for index, token in added.items()
    ]
    empty = dict.fromkeys(("truncation", "padding", "post_processor"))
    return {
        "version": "1.0",
        **empty,
        "normalizer": normalizer,
        "added_tokens": tokens,
        **parts,
        "model": model,
    }
