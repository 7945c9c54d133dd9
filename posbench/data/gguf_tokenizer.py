"""The tokenizer inside a GGUF file, as the content of a tokenizer.json: a byte-level BPE from the file's own vocabulary and merges."""

import json
from array import array
from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.common.gguf_file import read_gguf, shortened

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
DIGITS = {"type": "Digits", "individual_digits": True}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
GPT2 = [{**BYTES, "use_regex": True}]


def _cut(pattern: str) -> list[dict]:
    return [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}, BYTES]


# {tokenizer.ggml.pre: how the text is cut before merging}, each as in the tokenizer.json that these models were published with.
# transformers builds smollm without its cut at digits, which changes white space before a numeral (two lines, then 1).
CUTS = {
    "gpt-2": GPT2,
    "smollm": [DIGITS, *GPT2],
    **dict.fromkeys(("llama-bpe", "llama3", "smaug-bpe"), _cut(LLAMA3)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _cut(QWEN2)),
}
WHOLE_FIRST = ("llama-bpe", "llama3")  # a piece that is a token itself is taken without merging
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4  # the last two are found whole in the text


def tokenizer_json(path: str | Path) -> bytes:
    """Content of the tokenizer.json that a GGUF file's vocabulary stands for. The same file gives the same bytes.

    Raises ConfigError for a vocabulary of another kind, and for lists that contradict each other.
    """
    metadata = read_gguf(path).metadata
    kind, cut = (metadata.get(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
    tokens, merges = (_strings(path, metadata, key) for key in ("tokens", "merges"))
    if kind != "gpt2" or not isinstance(cut, str) or cut not in CUTS:
        raise ConfigError(
            f"{path} holds a tokenizer of kind {shortened(kind)}, {shortened(cut)}, and gpt2 with {', '.join(CUTS)} is built from such a "
            "file: give data.tokenizer=FOLDER, or a hub name, that holds the tokenizer.json of this model."
        )
    types = metadata.get("tokenizer.ggml.token_type", array("i", [NORMAL] * len(tokens)))
    if not isinstance(types, array) or len(types) != len(tokens):
        raise _damaged(path, "has another number of token types than of tokens")
    alphabet = _alphabet()
    spelled = {token for token in tokens if set(token) <= set(alphabet.values())}
    written = [token if token in spelled else "".join(alphabet[byte] for byte in token.encode()) for token in tokens]
    vocab = {token: index for index, token in enumerate(written)}
    if len(vocab) != len(tokens):
        raise _damaged(path, "holds a token twice")
    pairs = [merge.split(" ") for merge in merges]
    if wrong := next((pair for pair in pairs if len(pair) != 2 or not {*pair, "".join(pair)} <= vocab.keys()), None):
        raise _damaged(path, f"has the merge {shortened(' '.join(wrong))}, which does not make a token of two")
    added = [
        {"id": index, "content": token, "special": bool(types[index] == CONTROL)}
        for index, token in enumerate(tokens)
        if types[index] in (CONTROL, USER_DEFINED) and token in spelled
    ]
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return json.dumps(
        {
            "version": "1.0",
            **dict.fromkeys(("truncation", "padding", "post_processor")),
            "normalizer": {"type": "NFC"} if "qwen" in cut else None,
            "added_tokens": [{**token, **plain} for token in added],
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": CUTS[cut]},
            "decoder": GPT2[0],
            "model": {"type": "BPE", "vocab": vocab, "merges": pairs, "byte_fallback": False, "ignore_merges": cut in WHOLE_FIRST},
        },
        ensure_ascii=False,
    ).encode()


def _strings(path: str | Path, metadata: dict, key: str) -> list[str]:
    found = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(found, list) or not found:
        raise ConfigError(f"{path} holds no tokenizer.ggml.{key}: give data.tokenizer=FOLDER with the tokenizer.json of this model.")
    return found


def _damaged(path: str | Path, what: str) -> ConfigError:
    return ConfigError(f"{path} {what}, so it is no tokenizer: download it again, or give data.tokenizer=FOLDER with a tokenizer.json.")


def _alphabet() -> dict[int, str]:
    """{byte: the character that GPT-2 writes for it}. Bytes that print stand for themselves, the others follow from 256 on."""
    printed = [*range(ord("!"), ord("~") + 1), *range(ord("\u00a1"), ord("\u00ac") + 1), *range(ord("\u00ae"), ord("\u00ff") + 1)]
    other = [byte for byte in range(256) if byte not in printed]
    return {byte: chr(byte) for byte in printed} | {byte: chr(256 + index) for index, byte in enumerate(other)}
