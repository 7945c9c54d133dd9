"""Token ids of a piece that continues a text, where a tokenizer writes a word's mark before every text that it is given.

So do those that were SentencePiece's (Llama 2, Mistral, TinyLlama): alone, " 7" would begin with two marks, and no model writes that.
"""

import json
from collections.abc import Callable

import numpy as np

from posbench.data.tokenizers import PretrainedTokenizer, Tokenizer, foreign

Encode = Callable[[str], np.ndarray]


def whole(tokenizer: Tokenizer) -> Encode:
    """Function from a text to its ids."""

    def encode(text: str) -> np.ndarray:
        ((ids, _),) = tokenizer.encode([text])
        return ids.astype(np.int64)

    return encode


def continued(tokenizer: Tokenizer) -> Encode:
    """Function from a piece that stands behind others to its ids: those of `whole` for any tokenizer that adds nothing to a text."""
    plain = whole(tokenizer)
    if not isinstance(tokenizer, PretrainedTokenizer):
        return plain
    described = json.loads(tokenizer.model.to_str())
    bare = {**described, **{part: _bare(described[part]) for part in ("normalizer", "pre_tokenizer")}}
    if bare == described:
        return plain
    with foreign(tokenizer.name):
        inside = whole(PretrainedTokenizer(type(tokenizer.model).from_str(json.dumps(bare)), tokenizer.name))
    special = list(tokenizer.model.get_added_tokens_decoder())

    def encode(text: str) -> np.ndarray:
        """Behind a token such as <|user|>, which cuts a text, the tokenizer's own mark stands in running text too."""
        first, marked = inside(text), plain(text)
        cuts = [np.flatnonzero(np.isin(ids, special)) for ids in (first, marked)]
        return np.r_[first[: cuts[0][0]], marked[cuts[1][0] :]] if all(map(len, cuts)) else first

    return encode


def _bare(part: dict | None) -> dict | None:
    """A normalizer or pre-tokenizer as tokenizer.json describes it, without what it writes before a text."""
    if part is None or part["type"] == "Prepend":
        return None
    if part["type"] == "Metaspace":
        return {**part, "prepend_scheme": "never"}
    if part["type"] != "Sequence":
        return part
    return {key: [_bare(one) for one in value if _bare(one)] if isinstance(value, list) else value for key, value in part.items()}
