"""Several extensions at once, such as DCA with YaRN in Qwen2 (Yang et al. 2024, arXiv 2407.10671).

Each part gets its own target_len. Frequencies and tables are changed in the order of the parts;
temperatures multiply. At most one part may define the bands. Parts that only move coordinates (pi,
table_linear) act after it on its coordinates, as the DCA code divides the positions it has mapped.
At most one part may crop."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

from torch import Tensor

from posbench.common.errors import ConfigError
from posbench.position.geometry import Band, IndexMap, Span, Spectrum, Trait, identity, start
from posbench.position.instantiate import make
from posbench.position.interfaces import ANY, Extension

# Span used to look at the form of a part's bands: one token, and a training length above any
# window.
PROBE = Span(2**40, 1, 1)


class Compose(Extension):
    """Extensions (yaml nodes or None, listed or named) acting together. Raises ConfigError for no
    parts, two maps of bands or two crops.
    """

    def __init__(self, parts: dict[str, dict | None] | list[dict]):
        nodes = [node for node in (parts.values() if isinstance(parts, dict) else parts) if node]
        if not nodes:
            raise ConfigError(
                "extension.parts is empty: name at least one extension, or choose extension=none."
            )
        self.parts: list[Extension] = [make(node, kind=Extension) for node in nodes]
        mapping = [part for part in self.parts if not _moves_only(part)]
        cropping = [part for part in self.parts if part.crop(_own(part, PROBE)) is not None]
        for found, what in (
            (mapping, "says which keys a query sees"),
            (cropping, "crops the text"),
        ):
            if len(found) > 1:
                names = " and ".join(type(part).__name__ for part in found)
                raise ConfigError(
                    f"extension.parts names {names}, and each of them {what}: keep one."
                )
        self.mapping = mapping[0] if mapping else None
        self.needs = reduce(lambda a, b: a | b, (part.needs for part in self.parts), Trait(0))
        self.tested_with = _shared([part.tested_with for part in self.parts])

    def target_len(self, length: int) -> float:
        return max(part.target_len(length) for part in self.parts)

    def spectrum(self, spectrum: Spectrum, span: Span) -> Spectrum:
        return reduce(
            lambda found, part: part.spectrum(found, _own(part, span)), self.parts, spectrum
        )

    def rows(self, rows_NC: Tensor, span: Span) -> Tensor:
        return reduce(lambda found, part: part.rows(found, _own(part, span)), self.parts, rows_NC)

    def bands(self, span: Span) -> tuple[Band, ...]:
        bands = self.mapping.bands(_own(self.mapping, span)) if self.mapping else (Band(),)
        for part in self.parts:
            if part is not self.mapping:
                (moved,) = part.bands(_own(part, span))
                bands = tuple(
                    replace(band, q=_after(moved.q, band.q), k=_after(moved.k, band.k))
                    for band in bands
                )
        return bands

    def temperature(self, span: Span) -> float:
        return math.prod(part.temperature(_own(part, span)) for part in self.parts)

    def crop(self, span: Span) -> int | None:
        return next(
            (crop for part in self.parts if (crop := part.crop(_own(part, span))) is not None), None
        )


def _moves_only(part: Extension) -> bool:
    """True if a part leaves all keys visible in one band, so that its moves may follow those of
    another part.
    """
    bands = part.bands(PROBE)
    return len(bands) == 1 and bands[0].first is start and bands[0].last is identity


def _own(part: Extension, span: Span) -> Span:
    return replace(span, target_len=part.target_len(span.length))


def _after(outer: IndexMap, inner: IndexMap) -> IndexMap:
    return lambda pos_T: outer(inner(pos_T))


def _shared(sets: list[Mapping[str, str]]) -> Mapping[str, str]:
    """Names that every part was tested with, and the sources of all parts."""
    named = [one for one in sets if one != ANY]
    shared = [name for name in named[0] if all(name in one for one in named)] if named else []
    return (
        {name: "; ".join(dict.fromkeys(one[name] for one in named)) for name in shared}
        if named
        else ANY
    )
