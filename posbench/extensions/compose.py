"""Several extensions at once, such as DCA with YaRN in Qwen2 (Yang et al. 2024, arXiv 2407.10671).

Each part gets its own target_len. Frequencies and tables are changed in the order of the parts;
temperatures multiply. At most one part may define the bands. Parts that only move coordinates (pi,
table_linear) act after it on its coordinates, as the DCA code divides the positions it has mapped.
At most one part may crop. The pieces of dynamic_ntk with `fed` are counted by positions as they are
and have frequencies each, so no part may move positions beside it, or change frequencies after it.
"""

import math
import operator
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

from torch import Tensor

from posbench.common.errors import ConfigError
from posbench.position.geometry import Band, IndexMap, Span, Spectrum, Trait, first_token, identity
from posbench.position.instantiate import make_method
from posbench.position.interfaces import TESTED_WITH_ALL, Extension

# Span used to look at the form of a part's bands: one token, and a training length above any
# window.
PROBE_SPAN = Span(2**40, 1, 1)


class Compose(Extension):
    """Extensions (yaml nodes or None, listed or named) acting together. Raises ConfigError for no
    parts, two maps of bands, two crops, and a part that the pieces of dynamic_ntk do not allow.
    """

    def __init__(self, parts: dict[str, dict | None] | list[dict]):
        listed = parts.values() if isinstance(parts, dict) else parts
        nodes = [node for node in listed if node]
        if not nodes:
            raise ConfigError(
                "extension.parts is empty: name at least one extension, or choose extension=none."
            )
        self.parts: list[Extension] = [make_method(node, kind=Extension) for node in nodes]
        # Parts with bands of their own, and parts that crop: at most one each.
        banding = [part for part in self.parts if not _only_moves_coordinates(part)]
        cropping = [
            part for part in self.parts if part.crop(_part_span(part, PROBE_SPAN)) is not None
        ]
        _check_at_most_one(banding, "says which keys a query sees")
        _check_at_most_one(cropping, "crops the text")
        _check_beside_pieces(self.parts)
        self.part_with_bands = banding[0] if banding else None
        self.needs = reduce(operator.or_, (part.needs for part in self.parts), Trait(0))
        self.tested_with = _tested_with_of_all([part.tested_with for part in self.parts])

    @property
    def follows_length(self) -> bool:
        return any(part.follows_length for part in self.parts)

    @property
    def fed(self) -> int | None:
        """Tokens of each piece of a text, of the part that has pieces; None without one."""
        return next((part.fed for part in self.parts if part.fed), None)

    def target_len(self, length: int) -> float:
        return max(part.target_len(length) for part in self.parts)

    def spectrum(self, spectrum: Spectrum, span: Span) -> Spectrum:
        for part in self.parts:
            spectrum = part.spectrum(spectrum, _part_span(part, span))
        return spectrum

    def rows(self, rows_NC: Tensor, span: Span) -> Tensor:
        for part in self.parts:
            rows_NC = part.rows(rows_NC, _part_span(part, span))
        return rows_NC

    def bands(self, span: Span) -> tuple[Band, ...]:
        """Bands of the one part that defines them, whose coordinates the other parts move."""
        bands = (Band(),)
        if self.part_with_bands is not None:
            bands = self.part_with_bands.bands(_part_span(self.part_with_bands, span))
        for part in self.parts:
            if part is not self.part_with_bands:
                (move,) = part.bands(_part_span(part, span))
                bands = tuple(_with_moved_coordinates(band, move) for band in bands)
        return bands

    def temperature(self, span: Span) -> float:
        return math.prod(part.temperature(_part_span(part, span)) for part in self.parts)

    def crop(self, span: Span) -> int | None:
        crops = [part.crop(_part_span(part, span)) for part in self.parts]
        return next((crop for crop in crops if crop is not None), None)


def _check_at_most_one(parts: list[Extension], role: str) -> None:
    """Raise ConfigError for several parts of which one alone may do what `role` says."""
    if len(parts) > 1:
        names = " and ".join(type(part).__name__ for part in parts)
        raise ConfigError(f"extension.parts names {names}, and each of them {role}: keep one.")


def _check_beside_pieces(parts: list[Extension]) -> None:
    """Raise ConfigError for a part that changes what the pieces of dynamic_ntk with `fed` are."""
    number = next((number for number, part in enumerate(parts) if part.fed), None)
    if number is None:
        return
    in_pieces = parts[number]
    later = parts[number + 1 :]  # a second part with pieces is among them, and changes frequencies
    pieces = f"extension.parts names {type(in_pieces).__name__} with fed={in_pieces.fed}"
    for other in [*parts[:number], *later]:
        name = type(other).__name__
        if Trait.COORDINATE in other.needs:
            raise ConfigError(
                f"{pieces} and {name}, which moves the positions that its pieces are counted by:"
                f" leave out fed, or {name}."
            )
    for other in later:
        name = type(other).__name__
        if Trait.SPECTRUM in other.needs:
            raise ConfigError(
                f"{pieces} before {name}, which cannot change the frequencies of each piece: leave"
                f" out fed, or name {name} first."
            )


def _only_moves_coordinates(part: Extension) -> bool:
    """True if a part leaves all keys visible in one band, so that its moves may follow those of
    another part.
    """
    bands = part.bands(PROBE_SPAN)
    return len(bands) == 1 and bands[0].first is first_token and bands[0].last is identity


def _part_span(part: Extension, span: Span) -> Span:
    """The span with the part's own target_len."""
    return replace(span, target_len=part.target_len(span.length))


def _with_moved_coordinates(band: Band, move: Band) -> Band:
    """A band whose coordinates another one moves further."""
    return replace(band, q=_composed_maps(move.q, band.q), k=_composed_maps(move.k, band.k))


def _composed_maps(outer: IndexMap, inner: IndexMap) -> IndexMap:
    """Map of coordinates by `inner`, then by `outer`."""
    return lambda pos_T: outer(inner(pos_T))


def _tested_with_of_all(sets: list[Mapping[str, str]]) -> Mapping[str, str]:
    """Names that every part was tested with, and the sources of all parts."""
    restricted = [tested_with for tested_with in sets if tested_with != TESTED_WITH_ALL]
    if not restricted:
        return TESTED_WITH_ALL
    shared = {}
    for name in restricted[0]:
        if all(name in tested_with for tested_with in restricted):
            sources = dict.fromkeys(tested_with[name] for tested_with in restricted)
            shared[name] = "; ".join(sources)
    return shared
