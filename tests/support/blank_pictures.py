"""Figures that are built but not drawn: a blank picture is written in place of each.

Drawing takes most of a report's time, and few tests look at what is drawn."""

import contextlib
import functools
import io
from collections.abc import Iterator
from pathlib import Path
from unittest import mock


@contextlib.contextmanager
def blank_pictures(*formats: str) -> Iterator[None]:
    """Context in which files of these formats are blank pictures, as png, svg or pdf."""
    if not formats:
        yield
        return
    from matplotlib.figure import Figure

    draw = Figure.savefig

    def write(figure: Figure, file: Path | str, **options: object) -> None:
        file_format = Path(file).suffix.removeprefix(".")
        if file_format in formats:
            Path(file).write_bytes(_blank(file_format))
        else:
            draw(figure, file, **options)

    with mock.patch.object(Figure, "savefig", write):
        yield


@functools.cache
def _blank(file_format: str) -> bytes:
    from matplotlib.figure import Figure

    picture = io.BytesIO()
    Figure(figsize=(1, 1)).canvas.print_figure(picture, format=file_format)
    return picture.getvalue()
