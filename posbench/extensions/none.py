"""Direct extrapolation: the trained rule, applied beyond its training length.

The baseline of every curve.
"""

from posbench.position.interfaces import TESTED_WITH_ALL, Extension


class NoExtension(Extension):
    """Extension that changes nothing."""

    tested_with = TESTED_WITH_ALL
