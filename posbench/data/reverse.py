"""Reverse: a string of random symbols, a separator and the reversed string (Kazemnejad et al. 2023,
arXiv 2305.19466, McGill-NLP).

As `copy` in everything else. The first symbol of the answer is the last one read, and the distance
grows by two with each."""

import numpy as np

from posbench.data.copy import Copy


class Reverse(Copy):
    """Reversal of strings of up to (length - 2) // 2 symbols."""

    def answer(self, symbols: np.ndarray) -> np.ndarray:
        return symbols[::-1]
