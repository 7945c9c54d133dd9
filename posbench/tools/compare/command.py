"""Command of scripts/compare.py: rank lines, or compare some of them at each length."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from posbench.common.errors import ConfigError, did_you_mean
from posbench.config.command_line import list_files
from posbench.config.names import CONFIGS
from posbench.report.comparison import MEASURES, Comparison, Request, by_section, comparisons
from posbench.report.comparison_tables import (
    NATS,
    UNITS,
    Scale,
    how_compared,
    ranking_table,
    rows_of,
    sentences,
    table_by,
    terminal_text,
)
from posbench.report.table_formats import Table
from posbench.tools.explore.command import COMMITTED, collected, named

DEFAULTS = {
    "length": None,
    "against": None,
    "by": None,
    "measure": None,
    "unit": NATS,
    "correction": "holm",
    "out": None,
    "title": None,
}
CHOICES = {
    "by": ("length", "train_len", "data"),
    "measure": MEASURES,
    "unit": UNITS,
    "correction": ("holm", "none"),
}
USUAL = "results/runs"


def compare_words(words: list[str]) -> None:
    """Compare what the words name, print the result, and write files if out= is given."""
    options = _options([word for word in words if "=" in word and not Path(word).exists()])
    names = [word for word in words if "=" not in word or Path(word).exists()]
    paths = [name for name in names if _is_result(name)]
    lines = tuple(name for name in names if name not in paths)
    if not paths:
        if not Path(USUAL).is_dir():
            raise ConfigError(
                f"{names[0] if names else 'Nothing'} names no results: give a folder of runs or of"
                " a report, such as results/runs, or a reported experiment such as headline."
            )
        paths = [USUAL]
    request = Request(
        lines=lines,
        length=options["length"],
        against=options["against"]
        or (lines[0] if len(lines) > 1 and not options["length"] else None),
        measure=options["measure"],
        by=options["by"] or ("length" if len(lines) > 1 and not options["length"] else None),
        correction=options["correction"],
    )
    title = options["title"] or ", ".join(Path(path).name for path in paths)
    reports, notes = collected({path: named(path) for path in dict.fromkeys(paths)}, title)
    compared = comparisons(reports, request)
    tables, text = _shown(compared, request, options["unit"])
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print(terminal_text(tables, text, width))
    for note in notes:
        print(note)
    if options["out"]:
        list_files(_write(Path(options["out"]), compared, tables, text, title, options["unit"]))


def _is_result(word: str) -> bool:
    is_experiment = (CONFIGS / "experiment" / f"{word}.yaml").is_file()
    return Path(word).exists() or (COMMITTED / word).is_dir() or is_experiment or "*" in word


def _options(words: Sequence[str]) -> dict[str, str | None]:
    """Defaults overridden by key=value words. Raises ConfigError for another key or value."""
    options = dict(DEFAULTS)
    for word in words:
        key, _, value = word.partition("=")
        if key not in DEFAULTS:
            raise ConfigError(
                f"{key} is not an option{did_you_mean(key, DEFAULTS)}: choose from"
                f" {', '.join(DEFAULTS)}."
            )
        if key in CHOICES and value not in CHOICES[key]:
            near = did_you_mean(value, CHOICES[key])
            raise ConfigError(f"{word} must be one of {', '.join(CHOICES[key])}{near}.")
        options[key] = value
    return options


def _shown(
    compared: list[Comparison], request: Request, unit: str
) -> tuple[list[Table], list[str]]:
    """Tables of comparisons, and the lines of text below them."""
    tables = []
    text = []
    if request.by is None:
        for comparison in compared:
            scale = Scale(unit, comparison.measure)
            tables.append(ranking_table(comparison, scale))
            text += sentences(comparison, scale)
        return tables, list(dict.fromkeys(text))
    groups = [compared] if request.by != "length" else list(by_section(compared).values())
    for group in groups:
        scale = Scale(unit, group[0].measure)
        tables.append(table_by(group, request.by, scale))
        text += how_compared(group[-1])
    return tables, list(dict.fromkeys(text))


def _write(
    out: Path,
    compared: list[Comparison],
    tables: list[Table],
    text: list[str],
    title: str,
    unit: str,
) -> list[Path]:
    """Write compare.csv, compare.md, compare.tex and the figure into a folder."""
    import pandas

    from posbench.common import defuse
    from posbench.common.files import write_atomic
    from posbench.report.figures.ranking import ranking_figure
    from posbench.report.figures.style import save

    rows = []
    for comparison in compared:
        rows += rows_of([comparison], Scale(unit, comparison.measure))
    markdown = [
        f"# {title}",
        *(table.markdown() for table in tables),
        "\n".join(f"- {line}" for line in text),
    ]
    texts = {
        "compare.csv": pandas.DataFrame(rows).to_csv(index=False),
        "compare.md": defuse.markdown("\n\n".join(markdown) + "\n"),
        "compare.tex": "\n\n".join(table.latex() for table in tables) + "\n",
    }
    for name, content in texts.items():
        write_atomic(out / name, content)
    figure = ranking_figure(compared, f"{title}: lines compared", unit)
    return [*(out / name for name in texts), *save(figure, out / "compare")]
