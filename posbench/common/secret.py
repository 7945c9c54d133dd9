"""The key of a server, which is read from the environment and written nowhere."""

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

KEY_VARIABLE = "POSBENCH_API_KEY"
MASK = "..."
PIECE_LETTERS = 8  # letters of the key that are hidden wherever they stand together: texts are cut
LETTER_OR_ESCAPE = re.compile(
    r"\\+u00(?P<json>[0-9a-fA-F]{2})|\\+x(?P<python>[0-9a-fA-F]{2})|%(?P<url>[0-9a-fA-F]{2})"
    r"|&\#0*(?P<decimal>\d{1,3});|&\#[xX]0*(?P<hex>[0-9a-fA-F]{1,2});"
    r"|&(?P<name>amp|lt|gt|quot|apos);"
    r"|\\*(?P<plain>[^\\])|\\+$",
    re.DOTALL,
)
LETTER_OF_HTML_NAME = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}


class Letter(NamedTuple):
    """A letter of a text, and the part of the text that writes it."""

    letter: str
    begin: int
    end: int


def secret_key() -> str:
    """The key of POSBENCH_API_KEY without space around it; "" if there is none."""
    return os.environ.get(KEY_VARIABLE, "").strip()


def masked(text: str) -> str:
    """Text with "..." for the key, however it is escaped, and for each PIECE_LETTERS of it.

    With the key sk-12345678 the text 'no key sk-1234567' becomes 'no key ...'.
    """
    key = secret_key()
    if not key:
        return text
    letters = list(_unescaped_letters(text))
    spans = _spans_of_pieces("".join(letter.letter for letter in letters), _pieces(key))
    parts = []
    end = 0
    for first, last in spans:
        parts += [text[end : letters[first].begin], MASK]
        end = letters[last].end
    return "".join([*parts, text[end:]])


def masked_all(value: object) -> object:
    """`value` with all its strings and keys `masked`."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, dict):
        return {masked_all(key): masked_all(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked_all(item) for item in value]
    return value


def _pieces(key: str) -> set[str]:
    """All runs of PIECE_LETTERS letters of a key, which texts without escapes are searched for.

    Of a shorter key that is the key itself."""
    # A key that has %41 itself is A in a text that quotes it, and %41 in one that escapes its %.
    without_escapes = "".join(unescaped.letter for unescaped in _unescaped_letters(key))
    pieces = set()
    # Texts are searched without their backslashes, so the key loses its own in both forms.
    for letters in (key.replace("\\", ""), without_escapes):
        size = min(PIECE_LETTERS, len(letters))
        pieces |= {letters[at : at + size] for at in range(len(letters) - size + 1)}
    return pieces - {""}


def _spans_of_pieces(letters: str, pieces: set[str]) -> list[tuple[int, int]]:
    """(first, last) of each stretch of letters that pieces of the key cover. They do not touch."""
    spans: list[tuple[int, int]] = []
    for size in {len(piece) for piece in pieces}:
        for first in range(len(letters) - size + 1):
            last = first + size - 1
            if letters[first : last + 1] not in pieces:
                continue
            # A key that is shorter than PIECE_LETTERS is hidden as a word of its own alone.
            if size == PIECE_LETTERS or _is_word(letters, first, last):
                spans.append((first, last))
    merged: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def _is_word(letters: str, first: int, last: int) -> bool:
    """True if no letter or digit adjoins. A key as short as `no` would hide parts of words."""
    before = letters[max(first - 1, 0) : first]
    after = letters[last + 1 : last + 2]
    return not before.isalnum() and not after.isalnum()


def _unescaped_letters(text: str) -> Iterator[Letter]:
    """Letters of a text without escapes of JSON, Python, addresses, HTML, and without backslashes.

    >>> "".join(letter.letter for letter in _unescaped_letters("a%62&lt;&#99;"))
    'ab<c'
    """
    for match in LETTER_OR_ESCAPE.finditer(text):
        code = match["json"] or match["python"] or match["url"] or match["hex"]
        if code:
            letter = chr(int(code, 16))
        elif match["decimal"]:
            letter = chr(int(match["decimal"]))
        elif match["name"]:
            letter = LETTER_OF_HTML_NAME[match["name"]]
        else:
            letter = match["plain"]  # None for backslashes at the end of the text
        # A backslash that was escaped is left out as well: it may escape in turn.
        if letter not in (None, "\\"):
            yield Letter(letter, match.start(), match.end())
