"""Sort: a string of random symbols, a separator and its symbols in ascending order (Kazemnejad et
al. 2023, arXiv 2305.19466, McGill-NLP).

As `copy` in everything else. Symbols are ordered by their number in the vocabulary, which is
learned. Where symbols repeat, the answer repeats them as often, so each must be counted; with
`distinct` the next symbol is the least one of the string above the last.

Deviation: single symbols, not numbers of several digits.
"""

import numpy as np

from posbench.data.copy import Copy


class Sort(Copy):
    """Sorting of strings of up to (length - 2) // 2 symbols."""

    def answer(self, symbols: np.ndarray) -> np.ndarray:
        return np.sort(symbols)
