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
FIRST = (
    "amber ancient autumn bitter black blue bold brave bright broad calm clever cold crimson"
    " curious dark deep distant dry early eager empty fair famous fresh gentle golden grand green"
    " hidden hollow humble icy kind late lively lonely loud lucky mellow narrow noble old pale"
    " patient proud quick quiet"
).split()
SECOND = (
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
                " more each."
            )
        super().__init__(haystack, depths if queries == values == 1 else 0)
        self.key, self.value, self.keys, self.values, self.queries = (
            key,
            value,
            keys,
            values,
            queries,
        )

    def ask(self, random: np.random.Generator, depth: float | None) -> Question:
        keys = made(self.key, random, self.keys)
        needles = [(key, value) for key in keys for value in made(self.value, random, self.values)]
        places = random.random(len(needles))
        if depth is not None:
            places[0] = depth
        order = np.argsort(places, kind="stable")
        asked = [needles[at] for at in order if needles[at][0] in keys[: self.queries]]
        asked.sort(key=lambda needle: keys.index(needle[0]))
        about = " and ".join(keys[: self.queries])
        kind, verb = (
            (self.value.removesuffix("s"), "is") if len(asked) == 1 else (self.value, "are")
        )
        answer = [
            part
            for at, (_, value) in enumerate(asked)
            for part in ([(",", -1)] if at else []) + [(f" {value}", at)]
        ]
        return Question(
            f"Some special magic {self.value} are hidden in the following text. Memorize them: they"
            " will be asked for afterwards.\n",
            [
                (float(place), self.needle(*needle))
                for place, needle in zip(places, needles, strict=True)
            ],
            f"\nWhat {verb} the special magic {kind} for {about} mentioned in the text?",
            f" The special magic {kind} for {about} mentioned in the text {verb}",
            answer,
            self.others(random, keys),
            value=lambda sentence: " " + sentence.rpartition(": ")[2].removesuffix("."),
        )

    def needle(self, key: str, value: str) -> str:
        """Sentence of one needle."""
        return f"One of the special magic {self.value} for {key} is: {value}."

    def others(self, random: np.random.Generator, taken: list[str]) -> Iterator[str]:
        """Needles with other keys than `taken`; no two of 1,024 in a row have the same key."""
        while True:
            for key in made(self.key, random, 1024):
                if key not in taken:
                    yield self.needle(key, made(self.value, random, 1)[0])


def made(kind: Kind, random: np.random.Generator, count: int) -> list[str]:
    """`count` words, numbers or uuids, all different."""
    if kind == "words":
        chosen = random.choice(len(FIRST) * len(SECOND), count, replace=False)
        return [
            f"{FIRST[one // len(SECOND)]}-{SECOND[one % len(SECOND)]}" for one in chosen.tolist()
        ]
    if kind == "uuids":
        return [str(uuid.UUID(bytes=random.bytes(16), version=4)) for _ in range(count)]
    return [
        str(1_000_000 + number)
        for number in random.choice(9_000_000, count, replace=False).tolist()
    ]
