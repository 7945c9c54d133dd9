"""Llama 3.1's scaling: fast pairs are kept, slow ones divided by s, between them mixed.

Pairs with a wavelength below train_len / beta are kept, above train_len / alpha divided. Meta 2024,
arXiv 2407.21783; rope type `llama3` of transformers, with alpha = 1, beta = 4 (`low_freq_factor`,
`high_freq_factor`) and s = 8. Exactly NTK-by-parts in the paper's form with beta = 4 (see
ntk_by_parts), without a temperature; here s = target_len / train_len."""

from posbench.extensions.ntk_by_parts import NtkByParts
from posbench.position.geometry import Mode


class Llama3(NtkByParts):
    """By parts, from one turn to four."""

    def __init__(
        self,
        alpha: float = 1.0,
        beta: float = 4.0,
        mode: Mode = "dynamic",
        target_len: float | None = None,
    ):
        # Llama 3.1's low_freq_factor and high_freq_factor are the turns alpha and beta.
        super().__init__(alpha, beta, ramp="turns", mode=mode, target_len=target_len)
