"""Names of lines, and lines of a caption: what was measured, on what text, and what marks mean."""

from collections.abc import Iterable, Sequence

from posbench.report.figures.uncertainty import INTERVAL, bars_line
from posbench.report.footnotes import targets_words, unstated_lines
from posbench.report.method_words import parts_joined, source_suffix
from posbench.report.records import ContextPoint, CurvePoint, as_stated, range_text, two_seeds_note

LONGEST_NAME = 60  # characters of a name
LINEAR = "linear"
LOG = "logarithmic"
LINEAR_THEN_LOG = "linear to 0.1, logarithmic beyond"  # of differences


def extension_name(method: tuple, points: Iterable[CurvePoint]) -> str:
    """Name of a `CurvePoint.method` without its encoding; * marks an untested pair.

    It is the extension and the scale, such as "yarn + log_n*"."""
    _, extension, scale, source = method
    name = "no extension" if extension == "none" else extension
    name = parts_joined(name, scale) + source_suffix(source)
    if any(point.untested for point in points):
        name += "*"
    return shortened(name)


def line_name(encoding: str, *others: str) -> str:
    """Name of a line of several encodings: the encoding (or nothing), and others but none."""
    return shortened(parts_joined(encoding, *others))


def shortened(text: str) -> str:
    """Name of at most LONGEST_NAME characters: both ends of a longer one."""
    if len(text) <= LONGEST_NAME:
        return text
    half = LONGEST_NAME // 2
    return f"{text[:half]} ... {text[5 - half :]}"  # 5: the characters of " ... "


def joined_sentences(*sentences: str) -> str:
    """Sentences as one line of a caption, without empty ones."""
    return " ".join(filter(None, sentences))


def as_sentences(notes: Iterable[str]) -> list[str]:
    """Notes as sentences of a caption."""
    return [f"{note[0].upper()}{note[1:]}." for note in notes]


def scales_line(x: str, y: str) -> str:
    """Sentence on the scales of both axes.

    >>> scales_line(LOG, LINEAR)
    'Scales: x logarithmic; y linear.'
    """
    if x == y:
        return f"Scales: both {x}."
    return f"Scales: x {x}; y {y}."


def curve_caption(
    curve: list[CurvePoint], relative: bool, scales: str = "", bars: str = INTERVAL
) -> list[str]:
    """Lines of a caption: what was measured, on what text, and the meaning of bars and marks.

    With `scales`, a sentence on the axes, the bars are those of the loss, or of the difference if
    `relative`."""
    first = curve[0]
    lines = [data_line(curve, targets_words(first))]
    if scales:
        of_bars = bars_line(curve, "difference" if relative else "nll", bars)
        lines.append(joined_sentences(scales, of_bars))
    floors = _floor_of_each_encoding(curve)
    if floors:
        lines.append(
            f"Loss with exactly {first.train_len} tokens, and G, the gain from their second half"
            f" (nats/token): {'; '.join(floors)}."
        )
    lines += as_sentences(two_seeds_note(curve))
    if any(point.untested for point in curve):
        lines.append("* a pair its authors have not tested")
    return lines + csv_lines(curve, relative)


def _floor_of_each_encoding(curve: list[CurvePoint]) -> list[str]:
    """Floor and G of each encoding, such as "rope 2.345 (G 0.012, gate failed)"."""
    encodings = {
        point.encoding + source_suffix(point.source): point
        for point in curve
        if point.floor is not None and not point.foreign
    }
    texts = []
    for encoding, point in encodings.items():
        text = f"{encoding} {point.floor:.3f}"
        if point.gain is not None:
            passed = point.passes_gate
            text += f" (G {point.gain:.3f})" if passed else f" (G {point.gain:.3f}, gate failed)"
        texts.append(text)
    return texts


def data_line(section: "Sequence[CurvePoint | ContextPoint]", targets: str) -> str:
    """Line on the data, the protocol and its targets, and the number of seeds."""
    first = section[0]
    data = as_stated(first, "data")
    tokenizer = as_stated(first, "tokenizer")
    protocol = as_stated(first, "protocol")
    seeds = range_text(point.n_seeds for point in section)
    noun = "seed" if seeds == "1" else "seeds"
    return f"{data}, {tokenizer} | {protocol}: {targets} | {seeds} {noun}"


def csv_lines(curve: list[CurvePoint], relative: bool) -> list[str]:
    """Lines on losses that were read from CSVs."""
    from_csv = [point for point in curve if point.source]
    of_runs = sorted({point.source for point in from_csv if not point.foreign})
    of_others = sorted({point.source for point in from_csv if point.foreign})
    lines = []
    if of_runs:
        lines.append(f"Rows read from {', '.join(of_runs)}.")
    if of_others:
        lines.append(
            f"Thin lines and their bars: as {' and '.join(of_others)} states them, or over its"
            " seeds; not paired."
        )
    lines += as_sentences(unstated_lines(curve))
    sources_without_floor = sorted(
        {point.source for point in from_csv if point.foreign and point.floor is None}
    )
    others = [point for point in curve if point.source not in sources_without_floor]
    # A finite loss without a difference has no floor.
    all_others_have_floors = bool(others) and all(
        point.difference is not None or point.nll is None for point in others
    )
    # For their sake alone the figure shows losses.
    if sources_without_floor and not relative and all_others_have_floors:
        lines.append(
            f"Losses, not differences: {', '.join(sources_without_floor)} states no floor."
        )
    return lines
