"""Choice of what a first look at a model reads, so that it ends in a given time: the length, the extensions and the number of texts.

A text is as long as can be, up to twice the training length, with the model as it is and at least one extension; then come the other
extensions, then more texts. Within the training length the model is read as it is alone, since extensions change nothing there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

AS_IT_IS = "none"
EXTENSIONS = ("yarn", "pi", "rerope", "streaming")  # those of experiment=pretrained; the first are kept where time is short
BEYOND = (2, 1.75, 1.5, 1.25)  # lengths as multiples of the training length
WITHIN = tuple(2.0**-n for n in range(40))
SHORTEST = 32  # tokens
MOST_TEXTS = 256

Seconds = Callable[[str, int], float]  # of one text: extension and length


@dataclass(frozen=True)
class Look:
    """Reading of `texts` of `length` tokens by each of the methods, the model as it is first."""

    length: int
    methods: tuple[str, ...] = (AS_IT_IS,)
    texts: int = 1

    def seconds(self, each: Seconds) -> float:
        return self.texts * sum(each(method, self.length) for method in self.methods)

    def and_extensions(self, names: Sequence[str], each: Seconds, budget: float) -> "Look":
        """With every further one of the extensions that fits into the budget, in their order."""
        look = self
        for name in names:
            more = replace(look, methods=(*look.methods, name))
            if name not in look.methods and more.seconds(each) <= budget:
                look = more
        return look

    def and_texts(self, each: Seconds, budget: float) -> "Look":
        """With as many texts, a power of two, as fit into the budget."""
        look = self
        while 2 * look.texts <= MOST_TEXTS and 2 * look.seconds(each) <= budget:
            look = replace(look, texts=2 * look.texts)
        return look


def choose_look(each: Seconds, train_len: int, longest: int, extensions: Sequence[str], budget: float) -> Look | None:
    """The longest text of up to `longest` tokens that fits into `budget` seconds, with the extensions that fit; None if nothing does.

    `extensions`: those that act on the model.
    """
    beyond = dict.fromkeys(min(longest, round(part * train_len)) for part in BEYOND)
    within = dict.fromkeys(min(longest, int(part * train_len)) for part in WITHIN)
    tried = [Look(length, (AS_IT_IS, *extensions[:1])) for length in beyond if length > train_len]
    tried += [Look(length) for length in within if length >= min(SHORTEST, train_len, longest)]
    found = next((look for look in tried if look.seconds(each) <= budget), None)
    return found and found.and_extensions(extensions if found.length > train_len else (), each, budget)
