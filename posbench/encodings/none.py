"""NoPE: no positional input; the causal mask is the only order signal.

Haviv et al. 2022, arXiv 2203.16634; Kazemnejad et al. 2023, arXiv 2305.19466.
"""

from posbench.position.interfaces import Encoding


class NoEncoding(Encoding):
    """No position anywhere, so extensions that move positions provably change nothing."""
