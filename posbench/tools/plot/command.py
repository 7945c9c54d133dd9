"""Command of scripts/plot.py: words to a figure in files."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from posbench.common.errors import ConfigError, did_you_mean
from posbench.config.command_line import print_files
from posbench.report.figures.style import FORMATS, write_figure
from posbench.report.frame import frame_by_source
from posbench.report.plot import Options, checked_choice, draw_figure, split_words
from posbench.results.sweep_names import runs_of_sweeps
from posbench.tools.explore.command import REPORTED_FOLDER, USUAL_RESULTS

if TYPE_CHECKING:
    import pandas

OPTION_NAMES = [field.name for field in fields(Options) if field.name != "labels"]
PIXELS_PER_INCH = {"column": 400, "page": 300, "slide": 320}  # an inch of a png


def plot_words(words: list[str]) -> None:
    """Draw the figure that the words describe, and print its files and its caption."""
    named = [word for word in words if "=" not in word]
    paths = [path for word in named for path in _paths_named(word)]
    if not paths:
        raise ConfigError(
            "Nothing to draw is named: give folders of runs or of reports, CSVs, names of sweeps,"
            " or reported experiments such as demo."
        )
    request = _request([word for word in words if "=" in word])
    options = request.options
    table = _table(paths, options)
    without_rows = table.attrs.get("empty")  # names of results
    table = _rows_with(table, request.columns)
    name = f"{Path(named[0]).resolve().stem}-{options.y or 'curve'}"
    stem, formats = _stem_and_formats(request.out, request.formats, name)
    figure, caption = draw_figure(table, options)
    print_files(
        # fonts="none": the text of an svg stays text
        write_figure(figure, stem, formats, {"dpi": PIXELS_PER_INCH[options.size]}, fonts="none")
    )
    print(*caption(), sep="\n")
    if without_rows:
        print(f"Left out, since it holds nothing of this kind: {', '.join(without_rows)}.")


class PlotRequest(NamedTuple):
    """Figure that words ask for: its options, the rows {column: values} and the files."""

    options: Options
    columns: dict[str, str]
    out: str | None
    formats: str | None


def _request(words: Iterable[str]) -> PlotRequest:
    """Figure of words such as y=ppl, train_len=64, labels.rope=RoPE or out=a.pdf."""
    labels = {}
    values = {}
    for word in words:
        if word.startswith("labels."):
            # Arguments in a name have a = too, so the last one divides.
            name, _, label = word.removeprefix("labels.").rpartition("=")
            labels[name] = label
        else:
            name, _, value = word.partition("=")
            values[name] = value
    out = values.pop("out", None)
    formats = values.pop("format", None)
    limits = {
        name: _axis_ends(name, values.pop(name)) for name in ("xlim", "ylim") if name in values
    }
    settings = {name: values.pop(name) for name in OPTION_NAMES if name in values}
    columns = values  # what is left names columns of the table
    return PlotRequest(Options(**settings, **limits, labels=labels), columns, out, formats)


def _paths_named(word: str) -> list[str]:
    """The path that a word is, the folder of the reported experiment, or the runs of the sweep of
    that name."""
    if Path(word).exists():
        return [word]
    if (REPORTED_FOLDER / word).is_dir():
        return [str(REPORTED_FOLDER / word)]
    runs = runs_of_sweeps(Path(USUAL_RESULTS)).get(word)
    return list(map(str, runs)) if runs else [word]  # a glob, or what the reader refuses


def _table(paths: Sequence[str], options: Options) -> "pandas.DataFrame":
    """Frame of losses, or of tasks for y=accuracy; the other one where that has no rows.

    For x=step it is that of validations. Raises ConfigError where no training has any.
    """
    if options.x == "step":
        table = frame_by_source(paths, "validation")
        if table.empty:
            raise ConfigError(
                "x=step draws losses by length that trainings logged, and none here has any: train"
                " with train.validate_lengths=[64,256], such as these."
            )
        return table
    kinds = ("accuracy", "curve") if options.y == "accuracy" else ("curve", "accuracy")
    table = frame_by_source(paths, kinds[0])
    return table if len(table) else frame_by_source(paths, kinds[1])


def _rows_with(table: "pandas.DataFrame", values: dict[str, str]) -> "pandas.DataFrame":
    """Rows that have one of the listed values in each column: {column: values}."""
    for name, text in values.items():
        if name not in table:
            words = [*OPTION_NAMES, "labels.NAME", "format", "out", *table.columns]
            raise ConfigError(
                f"{name} is no word of a figure{did_you_mean(name, words)}: choose from"
                f" {', '.join(words)}."
            )
        texts = table[name].map(_typed_cell)
        table = table[
            texts.isin([checked_choice(name, value, texts) for value in split_words(text)])
        ]
    return table


def _typed_cell(value: object) -> str:
    """Value of a cell as a user types it, such as "none" or "64"."""
    if value is None or value != value:  # nan
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _axis_ends(name: str, text: str) -> tuple[float | None, float | None]:
    """Two ends of an axis; None for an empty one.

    >>> _axis_ends("xlim", "64,")
    (64.0, None)
    """
    try:
        # Brackets as of a tuple or a list in Python are left out.
        low, high = (float(end) if end.strip() else None for end in text.strip("()[]").split(","))
        in_order = low is None or high is None or low < high
    except ValueError:
        in_order = False
    if not in_order:
        raise ConfigError(
            f"{name}={text} must be two numbers, the smaller first, such as {name}=0,4; {name}=0,"
            " sets one end."
        )
    return low, high


def _stem_and_formats(out: str | None, formats: str | None, name: str) -> tuple[Path, list[str]]:
    """Path of the files without their ending, and their formats.

    `out` is a folder, or a file whose ending is the first of the formats."""
    path = Path(out or "results/plot")
    is_folder = not out or out.endswith("/") or path.is_dir()
    ending = "" if is_folder else path.suffix.lstrip(".")
    endings = [checked_choice("format", word, FORMATS) for word in split_words(formats or "")]
    if not ending:
        return path / name, endings or ["pdf", "png"]
    # Beside formats= another ending is a part of the name, as of fig1.2.
    if not endings or ending in FORMATS:
        checked_choice("format", ending, FORMATS)
        return path.with_suffix(""), list(dict.fromkeys([ending, *endings]))
    return path, endings
