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
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")
DIGIT_PRE_TOKENIZER = {"type": "Digits", "individual_digits": True}
BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": False,
}
GPT2_PRE_TOKENIZERS = [{**BYTE_LEVEL, "use_regex": True}]
BYTE_DECODER = GPT2_PRE_TOKENIZERS[0]  # as published; decoding has no use for the regex


def _split_at(pattern: str) -> list[dict]:
    """Pre-tokenizers that cut a text where a pattern matches, and spell it in bytes."""
    return [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
        BYTE_LEVEL,
    ]


# {tokenizer.ggml.pre: how the text is cut before merging}, each as in the tokenizer.json that these
# models were published with. transformers builds smollm without its cut at digits, which changes
# white space before a numeral (two lines, then 1).
PRE_TOKENIZERS = {
    "gpt-2": GPT2_PRE_TOKENIZERS,
    "smollm": [DIGIT_PRE_TOKENIZER, *GPT2_PRE_TOKENIZERS],
    **dict.fromkeys(("llama-bpe", "llama3", "smaug-bpe"), _split_at(LLAMA3_PATTERN)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _split_at(QWEN2_PATTERN)),
}
# Of these a piece that is a token itself is taken without merging.
UNMERGED_TOKENS = ("llama-bpe", "llama3")


def tokenizer_json(path: str | Path) -> bytes:
    """Content of the tokenizer.json that a GGUF file's vocabulary stands for.

    The same file gives the same bytes. Raises ConfigError for a vocabulary of another kind, and for
    lists that contradict each other."""
    file = read_gguf(path)
    model = file.metadata.get("tokenizer.ggml.model")
    pre_tokenizer = file.metadata.get("tokenizer.ggml.pre")
    # SentencePiece merges across the whole text; its files name no pre-tokenizer, or "default"
    if model == "llama" and pre_tokenizer in (None, "default"):
        content = _sentencepiece_content(file)
    elif model == "gpt2" and isinstance(pre_tokenizer, str) and pre_tokenizer in PRE_TOKENIZERS:
        content = _byte_level_content(file, pre_tokenizer)
    else:
        raise ConfigError(
            f"{path} holds a tokenizer of kind {shown(model)}, {shown(pre_tokenizer)}, and llama"
            f" (SentencePiece) and gpt2 with {', '.join(PRE_TOKENIZERS)} are built from such a"
            " file: give data.tokenizer=FOLDER, or a hub name, with its tokenizer.json."
        )
    return json.dumps(content, ensure_ascii=False).encode()


def _listed_strings(file: GgufFile, key: str) -> list[str]:
    """List of texts in a file's vocabulary, such as "tokens". Raises ConfigError without any."""
    strings = file.metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(strings, list) or not strings:
        raise ConfigError(
            f"{file.path} has no tokenizer.ggml.{key}: give data.tokenizer=FOLDER with the"
            " tokenizer.json of this model."
        )
    return strings


def _number_of_each_token(
    file: GgufFile, key: str, count: int, usual: array | None = None
) -> array:
    """A number for each of `count` tokens, or `usual` without any."""
    numbers = file.metadata.get(f"tokenizer.ggml.{key}", usual)
    if not isinstance(numbers, array) or len(numbers) != count:
        name = key.removeprefix("token_")
        raise _damage_error(file, f"has another number of token {name}s than of tokens")
    return numbers


def _vocabulary(file: GgufFile, tokens: list[str]) -> dict[str, int]:
    """{token: id}. Raises ConfigError where a token stands twice."""
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise _damage_error(file, "holds a token twice")
    return vocabulary


def _damage_error(file: GgufFile, fault: str) -> ConfigError:
    return ConfigError(
        f"{file.path} {fault}, so it is not a tokenizer: download it again, or give"
        " data.tokenizer=FOLDER with another."
    )


def _byte_level_content(file: GgufFile, pre_tokenizer: str) -> dict:
    """Content for a byte-level BPE, whose tokens are spelled in the 256 letters of bytes.

    Tokens outside that alphabet stand in the file as they read; the vocabulary spells them too."""
    from tokenizers import pre_tokenizers

    tokens = _listed_strings(file, "tokens")
    merges = _listed_strings(file, "merges")
    types = _number_of_each_token(
        file, "token_type", len(tokens), usual=array("i", [NORMAL] * len(tokens))
    )
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    speller = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    spelled_tokens = {token for token in tokens if set(token) <= alphabet}
    spellings = []
    for token in tokens:
        if token not in spelled_tokens:
            token, _span = speller.pre_tokenize_str(token)[0]  # one piece, whose letters are bytes
        spellings.append(token)
    vocabulary = _vocabulary(file, spellings)
    pairs = [merge.split(" ") for merge in merges]
    for pair in pairs:
        if len(pair) != 2 or not {*pair, "".join(pair)} <= vocabulary.keys():
            merge = shown(" ".join(pair))
            raise _damage_error(file, f"has the merge {merge}, which does not make a token of two")
    # The tokenizers library looks an added token up as it reads: one that is spelled otherwise in
    # the vocabulary would get a new id.
    added = {
        index: token
        for index, token in enumerate(tokens)
        if types[index] in (CONTROL, USER_DEFINED) and token in spelled_tokens
    }
    model = {
        "type": "BPE",
        "vocab": vocabulary,
        "merges": pairs,
        "byte_fallback": False,
        "ignore_merges": pre_tokenizer in UNMERGED_TOKENS,
    }
    return _tokenizer_content(
        model,
        added,
        types,
        normalizer={"type": "NFC"} if "qwen" in pre_tokenizer else None,  # as Qwen published it
        pre_tokenizer={"type": "Sequence", "pretokenizers": PRE_TOKENIZERS[pre_tokenizer]},
        decoder=BYTE_DECODER,
    )


def _sentencepiece_content(file: GgufFile) -> dict:
    """Content for a BPE of SentencePiece.

    It joins the two neighbours whose union has the best score, so every way to cut a token in two
    is a merge, in the order of the scores. A space is written as U+2581, and one stands before
    every text; characters outside the vocabulary become bytes. The parts are those of the
    tokenizer.json that Llama 2 was published with."""
    tokens = _listed_strings(file, "tokens")
    types = _number_of_each_token(file, "token_type", len(tokens))
    scores = _number_of_each_token(file, "scores", len(tokens))
    vocabulary = _vocabulary(file, tokens)
    if not all(map(math.isfinite, scores)):
        raise _damage_error(file, "has a token whose score is not a number")
    model = {
        "type": "BPE",
        "vocab": vocabulary,
        "merges": _merges(vocabulary, types, scores),
        **_keys_for_unknown_characters(file, tokens, types),
    }
    space_before_text = file.metadata.get("tokenizer.ggml.add_space_prefix", True)
    if not isinstance(space_before_text, bool):
        raise _damage_error(file, "has an add_space_prefix that is neither true nor false")
    added = {
        index: token
        for index, token in enumerate(tokens)
        if types[index] in (UNKNOWN, CONTROL, USER_DEFINED)
    }
    normalizers = [{"type": "Replace", "pattern": {"String": " "}, "content": SPACE}]
    decoders = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if space_before_text:
        # As in Llama 2's file and llama.cpp, the text behind an added token begins with a space
        # too. SentencePiece writes none behind tokens that a user defined.
        normalizers.insert(0, {"type": "Prepend", "prepend": SPACE})
        # removes one space at the start, none at the end
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return _tokenizer_content(
        model,
        added,
        types,
        normalizer={"type": "Sequence", "normalizers": normalizers},
        pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": decoders},
    )


def _keys_for_unknown_characters(file: GgufFile, tokens: list[str], types: array) -> dict:
    """Keys of the model for characters outside the vocabulary: bytes, or an unknown token."""
    byte_tokens = _tokens_of_type(tokens, types, BYTE)
    if byte_tokens and sorted(byte_tokens) != BYTE_TOKENS:
        raise _damage_error(
            file, f"holds {len(byte_tokens)} tokens for bytes, which are not the 256"
        )
    unknown = _tokens_of_type(tokens, types, UNKNOWN)
    if len(unknown) > 1 or not (unknown or byte_tokens):
        raise _damage_error(file, f"holds {len(unknown)} unknown tokens")
    return {
        "byte_fallback": bool(byte_tokens),
        "unk_token": unknown[0] if unknown else None,
        "fuse_unk": True,  # unknown characters in a row are one token
    }


def _tokens_of_type(tokens: list[str], types: array, kind: int) -> list[str]:
    return [token for token, type_ in zip(tokens, types, strict=True) if type_ == kind]


def _merges(vocabulary: dict[str, int], types: array, scores: array) -> list[tuple[str, str]]:
    """Pairs of tokens that make a token, those of the best score first.

    >>> normal = [NORMAL] * 4
    >>> _merges({"a": 0, "b": 1, "ab": 2, "aba": 3}, normal, [0.0, 0.0, -2.0, -1.0])
    [('ab', 'a'), ('a', 'b')]
    """
    normal = {token: index for token, index in vocabulary.items() if types[index] == NORMAL}
    pairs = []
    for token, index in normal.items():
        for cut in range(1, len(token)):
            left = token[:cut]
            right = token[cut:]
            if left in normal and right in normal:
                pairs.append((-scores[index], index, left, right))  # sorted: the best score first
    return [(left, right) for *_, left, right in sorted(pairs)]


def _tokenizer_content(
    model: dict, added: dict[int, str], types: array, normalizer: dict | None, **parts: object
) -> dict:
    """Content of a tokenizer.json, which finds the tokens `added`, {id: token}, whole in a text.

    Those of type CONTROL and UNKNOWN are special. `parts` are pre_tokenizer and decoder. The order
    of the keys is hashed with the content into the ids of texts, so it stays."""
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokens = [
        {"id": index, "content": token, "special": types[index] in (CONTROL, UNKNOWN), **plain}
        for index, token in added.items()
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "post_processor": None,
        "normalizer": normalizer,
        "added_tokens": tokens,
        **parts,
        "model": model,
    }
