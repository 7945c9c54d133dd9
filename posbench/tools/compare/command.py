"""Command of scripts/compare.py: rank lines, or compare some of them at each length."""

import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from posbench.common.errors import ConfigError, did_you_mean
from posbench.config.command_line import print_files
from posbench.config.names import CONFIGS_FOLDER
from posbench.report.comparison import CORRECTIONS, MEASURES, Comparison
from posbench.report.comparison_request import (
    BY_CHOICES,
    EACH,
    Request,
    by_section,
    groups_by_column,
    requested_comparisons,
)
from posbench.report.comparison_tables import (
    Block,
    blocks_text,
    check_unit,
    column_heading,
    csv_rows,
    ranking_table,
    ranking_title,
    table_by_column,
    table_of_all_pairs,
)
from posbench.report.comparison_words import (
    NATS,
    UNITS,
    Scale,
    how_compared,
    result_sentences,
)
from posbench.report.records import grouped
from posbench.report.table_formats import printable_line
from posbench.results.sweep_names import runs_of_sweeps
from posbench.tools.explore.command import (
    REPORTED_FOLDER,
    USUAL_RESULTS,
    collected_reports,
    named_results,
)

DEFAULTS = {
    "length": None,
    "against": None,
    "by": None,
    "measure": None,
    "unit": None,
    "correction": "holm",
    "out": None,
    "title": None,
}
CHOICES = {"by": BY_CHOICES, "measure": MEASURES, "unit": UNITS, "correction": CORRECTIONS}
FILE_ENDINGS = (".csv", ".md", ".tex", ".png", ".svg", ".pdf")


def compare_words(words: list[str]) -> None:
    """Compare what the words name, print the result, and write files if out= is given."""
    options = _checked_options([word for word in words if _is_option(word)])
    names = [word for word in words if not _is_option(word)]
    paths = [name for name in names if _is_result(name)]
    lines = tuple(name for name in names if name not in paths)
    if not paths:
        if not Path(USUAL_RESULTS).is_dir():
            beginning = "There are no results to compare"
            if names:
                beginning = f"{names[0]} names no results"
            raise ConfigError(
                f"{beginning}: give a folder of runs or of a report, such as results/runs, or a"
                " reported experiment such as headline."
            )
        paths = [USUAL_RESULTS]
    request = Request(
        lines=lines,
        length=options["length"],
        against=options["against"],
        measure=options["measure"],
        by=options["by"],
        correction=options["correction"],
    ).completed()
    if options["out"] and Path(options["out"]).suffix in FILE_ENDINGS:
        raise ConfigError(
            f"out={options['out']} is the name of a file: give a folder, into which a CSV,"
            " Markdown, LaTeX and a figure are written."
        )
    title = options["title"] or ", ".join(Path(path).name for path in paths)
    reports, notes = collected_reports(
        {path: named_results(path) for path in dict.fromkeys(paths)}, title
    )
    all_comparisons, left_out = requested_comparisons(reports, request)
    check_unit(options["unit"], all_comparisons)
    unit = options["unit"] or NATS
    blocks = _blocks(all_comparisons, request, unit)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print(blocks_text(blocks, width))
    for note in [*left_out, *notes]:
        print(note)
    if options["out"]:
        print_files(_write(Path(options["out"]), all_comparisons, blocks, title, unit))


def _is_option(word: str) -> bool:
    """True for key=value; a line such as "rope step=300" has a space before its =."""
    return bool(re.match(r"\w*=", word)) and not Path(word).exists()


def _is_result(word: str) -> bool:
    """True for a path, a glob, an experiment or a sweep's name; "none" is an encoding."""
    is_experiment = word != "none" and (CONFIGS_FOLDER / "experiment" / f"{word}.yaml").is_file()
    if Path(word).exists() or (REPORTED_FOLDER / word).is_dir() or is_experiment or "*" in word:
        return True
    return word in runs_of_sweeps(Path(USUAL_RESULTS))


def _checked_options(words: Sequence[str]) -> dict[str, str | None]:
    """Defaults overridden by key=value words. Raises ConfigError for another key or value."""
    options = dict(DEFAULTS)
    for word in words:
        key, _, value = word.partition("=")
        if key not in DEFAULTS:
            raise ConfigError(
                f"{key} is not an option{did_you_mean(key, DEFAULTS)}: choose from"
                f" {', '.join(DEFAULTS)}."
            )
        if not value:
            raise ConfigError(f"{word} has no value: give one, or leave {word} out.")
        if key in CHOICES and value not in CHOICES[key]:
            near = did_you_mean(value, CHOICES[key])
            raise ConfigError(f"{word} must be one of {', '.join(CHOICES[key])}{near}.")
        options[key] = value
    return options


def _blocks(all_comparisons: list[Comparison], request: Request, unit: str) -> list[Block]:
    """Tables of comparisons, each with its text."""
    blocks = []
    if request.against == EACH:
        for group in grouped(all_comparisons, _section_and_length).values():
            scale = Scale(unit, group[0].measure)
            blocks.append(Block(table_of_all_pairs(group, scale), [], how_compared(group[0])))
        return blocks
    if request.by is None:
        titles = _titles(all_comparisons)
        for comparison, title in zip(all_comparisons, titles, strict=True):
            scale = Scale(unit, comparison.measure)
            table = ranking_table(comparison, scale, title)
            blocks.append(
                Block(table, [result_sentences(comparison, scale)], how_compared(comparison))
            )
        return blocks
    groups = list(by_section(all_comparisons).values())
    if request.by != "length":
        groups = groups_by_column(all_comparisons, request.by)
    for group in groups:
        scale = Scale(unit, group[0].measure)
        how = _lines_by_columns(group, request.by)
        if request.by == "length":
            # Sentences are about the longest length alone; the table has the others.
            results = [result_sentences(group[-1], scale)]
        else:
            results = [
                f"{column_heading(comparison, request.by)}: {result_sentences(comparison, scale)}"
                for comparison in group
            ]
        blocks.append(Block(table_by_column(group, request.by, scale), results, how))
    return blocks


def _lines_by_columns(group: Sequence[Comparison], column: str) -> list[str]:
    """Lines on all columns of a table, then those on some, with the columns in front."""
    headings: dict[str, list[str]] = {}  # {line: columns}
    for comparison in group:
        for line in how_compared(comparison):
            headings.setdefault(line, []).append(column_heading(comparison, column))
    shared = [line for line, columns in headings.items() if len(columns) == len(group)]
    others = [
        f"{', '.join(columns)}: {line}"
        for line, columns in headings.items()
        if len(columns) < len(group)
    ]
    return shared + others


def _section_and_length(comparison: Comparison) -> tuple:
    """Key of comparisons that are shown in one table: those of each line with each other."""
    return comparison.section, comparison.length


def _titles(all_comparisons: Sequence[Comparison]) -> list[str]:
    """Titles of rankings; those that are alike say the setting as well."""
    titles = [ranking_title(comparison) for comparison in all_comparisons]
    return [
        f"{title}; {comparison.section.setting}" if titles.count(title) > 1 else title
        for comparison, title in zip(all_comparisons, titles, strict=True)
    ]


def _write(
    out: Path, all_comparisons: list[Comparison], blocks: Sequence[Block], title: str, unit: str
) -> list[Path]:
    """Write compare.csv, compare.md, compare.tex and the figure into a folder."""
    import pandas

    from posbench.common import defuse
    from posbench.common.files import write_atomic
    from posbench.report.figures.ranking import ranking_figure
    from posbench.report.figures.style import write_figure

    rows = []
    for comparison in all_comparisons:
        rows += csv_rows([comparison], Scale(unit, comparison.measure))
    markdown = [f"# {title}"]
    latex = []
    for block in blocks:
        lines = [*block.result, *block.how]
        markdown += [block.table.markdown(), "\n".join(f"- {line}" for line in lines)]
        latex += [block.table.latex(), "\n".join(f"% {printable_line(line)}" for line in lines)]
    texts = {
        "compare.csv": pandas.DataFrame(rows).to_csv(index=False),
        "compare.md": defuse.markdown("\n\n".join(markdown) + "\n"),
        "compare.tex": "\n\n".join(latex) + "\n",
    }
    for name, content in texts.items():
        write_atomic(out / name, content)
    figure = ranking_figure(all_comparisons, f"{title}: lines compared", unit)
    return [*(out / name for name in texts), *write_figure(figure, out / "compare")]
