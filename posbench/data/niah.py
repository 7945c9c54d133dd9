"""NIAH, needles in a haystack, in RULER's eight forms (Hsieh et al. 2024, arXiv 2404.06654;
NVIDIA/RULER, niah.py and synthetic.yaml).

A needle says: one of the special magic TYPE for KEY is: VALUE. Of `keys` keys with `values` values
each, `queries` keys are asked for, all their values in the order of the text. With haystack `items`
the haystack is made of needles with other keys. Keys and values are two words, numbers of seven
digits, or uuids of version 4.

Deviations: corpus text for Paul Graham's essays; two words of 48 x 64 instead of a package of
words; the asked needle at even depths, where there is one, others anywhere (40 depths, drawn,
there); each value is an answer of its own that follows the right ones, so that accuracy is the
share of values, as there the share of references contained in 128 written tokens."""

import uuid
from collections.abc import Iterator
from typing import Literal

import numpy as np

from posbench.common.errors import ConfigError
from posbench.data.task import Question, TextTask

Kind = Literal["words", "numbers", "uuids"]
FIRST_WORDS = (
    "amber ancient autumn bitter black blue bold brave bright broad calm clever cold crimson"
    " curious dark deep distant dry early eager empty fair famous fresh gentle golden grand green"
    " hidden hollow humble icy kind late lively lonely loud lucky mellow narrow noble old pale"
    " patient proud quick quiet"
).split()
SECOND_WORDS = (
    "anchor apple arrow badge barn basket beacon bell bird boat bridge brook butter cabin candle"
    " canyon castle cedar cherry cloud coast copper corner cottage crown desert dragon eagle engine"
    " feather field fire flower forest fountain garden glacier hammer harbor hill island jacket"
    " kettle ladder lake lantern leaf lemon market meadow mirror moon mountain needle ocean orchard"
    " paper pebble pillow pine planet river stone window"
).split()


class Niah(TextTask):
    """Needles of `keys` keys with `values` values each, `queries` of the keys asked for."""

    def __init__(
        self,
        haystack: str,
        key: Kind = "words",
        value: Kind = "numbers",
        keys: int = 1,
        values: int = 1,
        queries: int = 1,
        depths: int = 5,
    ):
        if not 1 <= queries <= keys or values < 1:
            raise ConfigError(
                f"queries={queries} of keys={keys} with values={values} of a text task must be 1 or"
                " more each, and no more queries than keys."
            )
        # several asked needles stand anywhere, since one depth says nothing of them
        super().__init__(haystack, depths if queries == values == 1 else 0)
        self.key = key
        self.value = value
        self.keys = keys
        self.values = values
        self.queries = queries

    def ask(self, random: np.random.Generator, depth: float | None) -> Question:
        """Question whose answers are all values of the asked keys, in the order of the text."""
        keys = draw_names(self.key, random, self.keys)
        needles = []  # (key, value), the asked ones first
        for key in keys:
            needles += [(key, value) for value in draw_names(self.value, random, self.values)]
        places = random.random(len(needles))
        if depth is not None:
            places[0] = depth  # with depths one needle alone is asked for
        asked_keys = keys[: self.queries]
        needles_by_place = [needles[at] for at in np.argsort(places, kind="stable")]
        asked_needles = [needle for needle in needles_by_place if needle[0] in asked_keys]
        asked_needles.sort(key=lambda needle: keys.index(needle[0]))  # stable: by key, then place
        answer = []
        for number, (_, value) in enumerate(asked_needles):
            if number > 0:
                answer.append((",", -1))  # between answers, and part of none
            answer.append((f" {value}", number))
        kind = self.value
        verb = "are"
        if len(asked_needles) == 1:
            kind = kind.removesuffix("s")
            verb = "is"
        about = " and ".join(asked_keys)
        sentences = [self.needle(key, value) for key, value in needles]
        return Question(
            head=f"Some special magic {self.value} are hidden in the following text. Memorize them:"
            " they will be asked for afterwards.\n",
            items=list(zip(places.tolist(), sentences, strict=True)),
            tail=f"\nWhat {verb} the special magic {kind} for {about} mentioned in the text?",
            start=f" The special magic {kind} for {about} mentioned in the text {verb}",
            answer=answer,
            others=self.other_needles(random, keys),
            value=_value_in_answer,
        )

    def needle(self, key: str, value: str) -> str:
        """Sentence of one needle."""
        return f"One of the special magic {self.value} for {key} is: {value}."

    def other_needles(self, random: np.random.Generator, keys: list[str]) -> Iterator[str]:
        """Needles with other keys than `keys`; no two of 1,024 in a row have the same key."""
        while True:
            for key in draw_names(self.key, random, 1024):
                if key not in keys:
                    yield self.needle(key, draw_names(self.value, random, 1)[0])


def _value_in_answer(sentence: str) -> str:
    """Value of a needle as an answer writes it.

    >>> _value_in_answer("One of the special magic numbers for old-bell is: 1234567.")
    ' 1234567'
    """
    return " " + sentence.rpartition(": ")[2].removesuffix(".")


def draw_names(kind: Kind, random: np.random.Generator, count: int) -> list[str]:
    """`count` words, numbers or uuids, all different."""
    if kind == "words":
        n_pairs = len(FIRST_WORDS) * len(SECOND_WORDS)
        first_and_second = [
            divmod(pair, len(SECOND_WORDS))
            for pair in random.choice(n_pairs, count, replace=False).tolist()
        ]
        return [
            f"{FIRST_WORDS[first]}-{SECOND_WORDS[second]}" for first, second in first_and_second
        ]
    if kind == "uuids":
        return [str(uuid.UUID(bytes=random.bytes(16), version=4)) for _ in range(count)]
    # of seven digits
    numbers = random.choice(9_000_000, count, replace=False).tolist()
    return [str(1_000_000 + number) for number in numbers]
