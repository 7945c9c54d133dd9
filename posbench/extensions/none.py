"""Direct extrapolation: the trained rule, applied beyond its training length.

The baseline of every curve.
"""

from posbench.position.interfaces import ANY, Extension


class NoExtension(Extension):
    """Extension that changes nothing."""

    tested_with = ANY
