"""Words of tasks: 3,072 names of two common words, such as quiet-harbor, and words of random letters."""

import numpy as np

FIRST = (
    "amber ancient autumn bitter black blue bold brave bright broad calm clever cold crimson curious dark deep distant dry early "
    "eager empty fair famous fresh gentle golden grand green hidden hollow humble icy kind late lively lonely loud lucky mellow "
    "narrow noble old pale patient proud quick quiet"
).split()
SECOND = (
    "anchor apple arrow badge barn basket beacon bell bird boat bridge brook butter cabin candle canyon castle cedar cherry cloud "
    "coast copper corner cottage crown desert dragon eagle engine feather field fire flower forest fountain garden glacier hammer "
    "harbor hill island jacket kettle ladder lake lantern leaf lemon market meadow mirror moon mountain needle ocean orchard paper "
    "pebble pillow pine planet river stone window"
).split()


def two_word_names(random: np.random.Generator, count: int) -> list[str]:
    """`count` different names. Raises ValueError for more than there are."""
    chosen = random.choice(len(FIRST) * len(SECOND), count, replace=False)
    return [f"{FIRST[one // len(SECOND)]}-{SECOND[one % len(SECOND)]}" for one in chosen.tolist()]


def random_words(random: np.random.Generator, count: int, size: int, letters: str) -> list[str]:
    """`count` different words of `size` random letters."""
    drawn: dict[str, None] = {}
    while len(drawn) < count:
        drawn["".join(letters[one] for one in random.integers(len(letters), size=size))] = None
    return list(drawn)
