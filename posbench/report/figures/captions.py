"""Names of lines, and the lines of a caption: what was measured, on what text, and what bars and
marks mean.
"""

from collections.abc import Iterable, Sequence

from posbench.report.footnotes import targets_of, unstated_lines
from posbench.report.method_words import source_suffix
from posbench.report.records import (
    ContextPoint,
    CurvePoint,
    as_stated,
    interval_units,
    span,
    two_seeds,
)

LONGEST = 60  # characters of a name


def extension_name(method: tuple, points: Iterable[CurvePoint]) -> str:
    """Name of a `CurvePoint.method` without its encoding: extension and scale; * marks an untested
    pair.
    """
    _, extension, scale, source = method
    parts = ["no extension" if extension == "none" else extension, *([scale] * (scale != "none"))]
    return shortened(
        " + ".join(parts) + source_suffix(source) + "*" * any(point.untested for point in points)
    )


def line_name(encoding: str, *others: str) -> str:
    """Name of a line of several encodings: the encoding (or nothing), then extension and scale
    where there are any.
    """
    return shortened(
        " + ".join([encoding] * bool(encoding) + [other for other in others if other != "none"])
    )


def shortened(text: str) -> str:
    """Name of at most LONGEST characters: both ends of a longer one."""
    return (
        text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[5 - LONGEST // 2 :]}"
    )


def sentences(notes: Iterable[str]) -> list[str]:
    """Notes as sentences of a caption."""
    return [f"{note[0].upper()}{note[1:]}." for note in notes]


def caption(curve: list[CurvePoint], relative: bool) -> list[str]:
    """Lines of a caption: what was measured, on what text, and the meaning of bars and marks."""
    first, bars = curve[0], of_intervals(curve)
    lines = [data_line(curve, targets_of(first))]
    if relative:
        lines.append(
            "Scale: linear to 0.1, logarithmic beyond." + (f" Bars: {bars}." if bars else "")
        )
    known = {
        point.encoding + source_suffix(point.source): point
        for point in curve
        if point.floor is not None and not point.foreign
    }
    if known:
        said = []
        for encoding, point in known.items():
            passed = point.gain_lower is not None and point.gain_lower > 0
            gain = (
                ""
                if point.gain is None
                else f" (G {point.gain:.3f}{'' if passed else ', gate failed'})"
            )
            said.append(f"{encoding} {point.floor:.3f}{gain}")
        lines.append(
            f"Loss with exactly {first.train_len} tokens, and G, the gain from their second half"
            f" (nats/token): {'; '.join(said)}."
        )
    lines += sentences(two_seeds(curve))
    if any(point.untested for point in curve):
        lines.append("* a pair its authors have not tested")
    return lines + of_files(curve, relative)


def data_line(section: "Sequence[CurvePoint | ContextPoint]", targets: str) -> str:
    """Line on the data, the protocol and its targets, and the number of seeds."""
    first, seeds = section[0], span(one.n_seeds for one in section)
    data, tokenizer, protocol = (
        as_stated(first, column) for column in ("data", "tokenizer", "protocol")
    )
    return (
        f"{data}, {tokenizer} | {protocol}: {targets} | {seeds} seed{'s' if seeds != '1' else ''}"
    )


def of_intervals(points: Iterable[CurvePoint]) -> str:
    """Text that explains the intervals of differences by their units; "" without intervals."""
    over = interval_units(point.over for point in points if point.half_width is not None)
    return f"95 % t interval of the paired difference, {over}" if over else ""


def of_files(curve: list[CurvePoint], relative: bool) -> list[str]:
    """Lines on losses that were read from CSVs."""
    read = sorted({point.source for point in curve if point.source and not point.foreign})
    stated = sorted({point.source for point in curve if point.source and point.foreign})
    lines = [f"Rows read from {', '.join(read)}."] if read else []
    if stated:
        lines.append(
            f"Thin lines and their bars: as {' and '.join(stated)} states them, or over its seeds;"
            " not paired."
        )
    lines += sentences(unstated_lines(curve))
    lacking = sorted(
        {point.source for point in curve if point.foreign and point.source and point.floor is None}
    )
    others = [point for point in curve if point.source not in lacking]
    if (
        lacking
        and not relative
        and all(point.difference is not None or point.nll is None for point in others)
        and others
    ):
        lines.append(f"Losses, not differences: {', '.join(lacking)} states no floor.")
    return lines
