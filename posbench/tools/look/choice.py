"""Choice of the texts and extensions that fit into a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

AS_IT_IS = "none"
LENGTHS_BEYOND = (2, 1.75, 1.5, 1.25)  # lengths as multiples of the training length
LENGTHS_WITHIN = tuple(2.0**-n for n in range(40))
SHORTEST_TEXT = 32  # tokens
MOST_TEXTS = 256

Seconds = Callable[[str, int], float]  # of one text: extension and length


@dataclass(frozen=True)
class Look:
    """Reading of `n_texts` of `length` tokens by each of the methods, the model as it is first."""

    length: int
    methods: tuple[str, ...] = (AS_IT_IS,)
    n_texts: int = 1

    def seconds(self, seconds_of_text: Seconds) -> float:
        """Time of all texts."""
        return self.n_texts * sum(seconds_of_text(name, self.length) for name in self.methods)

    def and_extensions(
        self, names: Sequence[str], seconds_of_text: Seconds, budget: float
    ) -> "Look":
        """This look with every further extension that fits into the budget, in their order."""
        look = self
        for name in names:
            if name in look.methods:
                continue
            longer = replace(look, methods=(*look.methods, name))
            if longer.seconds(seconds_of_text) <= budget:
                look = longer
        return look

    def and_texts(self, seconds_of_text: Seconds, budget: float) -> "Look":
        """This look with as many texts, a power of two, as fit into the budget."""
        look = self
        while 2 * look.n_texts <= MOST_TEXTS and 2 * look.seconds(seconds_of_text) <= budget:
            look = replace(look, n_texts=2 * look.n_texts)
        return look


def choose_look(
    seconds_of_text: Seconds,
    train_len: int,
    longest: int,
    extensions: Sequence[str],
    budget: float,
) -> Look | None:
    """Longest text of up to `longest` tokens that fits into `budget` seconds; None if none does.

    A text beyond the training length is read by at least one of the `extensions`, and by all that
    fit.
    """
    for part in LENGTHS_BEYOND:
        look = Look(min(longest, round(part * train_len)), (AS_IT_IS, *extensions[:1]))
        if look.length > train_len and look.seconds(seconds_of_text) <= budget:
            return look.and_extensions(extensions, seconds_of_text, budget)
    for part in LENGTHS_WITHIN:
        look = Look(min(longest, int(part * train_len)))  # a whole number, rounded down
        if look.length < min(SHORTEST_TEXT, train_len, longest):  # it would show too little
            return None  # later ones are shorter still
        if look.seconds(seconds_of_text) <= budget:
            return look
    return None
