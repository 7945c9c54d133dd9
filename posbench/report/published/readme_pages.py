"""Pages of results from their templates, filled with the numbers of results/reported: python -m
posbench.report.published.readme_pages

Each README.template.md makes the README.md beside it. {expressions} are numbers
(readme_numbers.py). Between the marks `<!-- table: FILE n -->` and `<!-- end of table -->` comes
the n-th table of a file: all of it, or the lines that begin as those there. At the end of a
template `<!-- let name = words -->` defines what $name stands for in expressions."""

import re
import sys
from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.common.files import write_atomic
from posbench.report.published.leaderboard import evidence_folders, leaderboard
from posbench.report.published.readme_numbers import filled_expression
from posbench.report.seed_marks import MARK_PATTERN
from posbench.report.table_formats import METHOD_COLUMNS
from posbench.report.write_report import rewrite_hashes

ROOT = Path(__file__).parents[3]
PAGES = {
    template: template.with_name("README.md")
    for template in sorted((ROOT / "results" / "reported").rglob("README.template.md"))
}
LEADERBOARD = ROOT / "results" / "reported" / "leaderboard.md"
EXPRESSION = re.compile(r"\{(\w[\w/. ]*): ((?:[^{}]|\{[^{}]*\})+)\}")
TABLE = re.compile(r"(<!-- table: (\S+) (\d+) -->\n)(.*?)(<!-- end of table -->)", re.S)
LET = re.compile(r"<!-- let (\w+) = (.*) -->\n")


def filled_page(template: Path) -> str:
    """Text of the page. Raises ConfigError, with file and line, for what the results do not
    hold.
    """
    text = template.read_text(encoding="utf-8")
    words = dict(LET.findall(text))  # {name: text} that $name stands for in an expression

    def expand(match: re.Match) -> str:
        """Text in place of a table or an expression. Raises ConfigError with the line it is in."""
        try:
            if match.re is TABLE:
                return filled_table(match)
            source, expression = match.groups()
            named = re.sub(r"\$(\w+)", lambda name: words[name[1]], expression)
            return filled_expression(source, named)
        except (ConfigError, KeyError, ValueError, TypeError, IndexError, OSError) as error:
            line = match.string.count("\n", 0, match.start()) + 1
            first_line = match[0].splitlines()[0]
            reason = error if isinstance(error, ConfigError) else repr(error)
            raise ConfigError(
                f"{template.parent.name}/{template.name}, line {line}: {first_line} cannot be"
                f" filled in: {reason}."
            ) from error

    filled = TABLE.sub(expand, EXPRESSION.sub(expand, text))
    return f"<!-- made of {template.name} by `make pages` -->\n{LET.sub('', filled).rstrip()}\n"


def filled_table(match: re.Match) -> str:
    """A table of a file between its marks: the lines that begin as those there, or all."""
    opening, path, number, content, closing = match.groups()
    tables = re.findall(r"(?:^\|.*\n)+", (ROOT / path).read_text(encoding="utf-8"), re.M)
    header, rule, *lines = tables[int(number) - 1].splitlines()
    # columns of the method
    n_names = sum(cell.strip() in METHOD_COLUMNS for cell in header.split("|"))
    beginnings = [
        _beginning(line, n_names) for line in content.splitlines() if line not in (header, rule)
    ]
    if beginnings:
        # Reversed, so that the first of lines that begin alike stays.
        by_beginning = {_beginning(line, n_names): line for line in reversed(lines)}
        for beginning in beginnings:
            if beginning not in by_beginning:
                raise ConfigError(f"table {number} of {path} has no line that begins `{beginning}`")
        lines = [by_beginning[beginning] for beginning in beginnings]
    return "\n".join([opening.strip(), header, rule, *lines, closing])


def _beginning(line: str, n_names: int) -> str:
    """The cells that name the method of a line, without marks of seeds.

    >>> _beginning("| rope | ntk [seed 0] | 2.31 |", 2)
    '| rope | ntk |'
    """
    cells = MARK_PATTERN.sub("", line).split("|")
    return "|".join(cells[: 1 + n_names]) + "|"  # the first is empty: a line begins with |


def main() -> None:
    """Write all pages, and the list of hashes of each folder of evidence."""
    for template, path in PAGES.items():
        write_atomic(path, filled_page(template))
    write_atomic(LEADERBOARD, leaderboard(LEADERBOARD.parent))
    for folder in evidence_folders(LEADERBOARD.parent):
        rewrite_hashes(folder)


if __name__ == "__main__":
    try:
        main()
    except ConfigError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
