"""Refusals of pages, each with a part of the message, and of command lines on altered evidence."""

import pytest
from alterations import ALTERATIONS
from script_calls import call
from test_alterations import folder  # noqa: F401
from test_pages import results  # noqa: F401

from posbench.common.errors import ConfigError
from posbench.report.published import readme_pages as pages

EXPRESSIONS = [
    ("{nowhere: rope @2x .2f}", "results/reported has no nowhere/curve.csv"),
    ("{small: rope|pi @4x .2f}", "no lines fit"),
    ("{small: rope|pi @1x,2x .2f}", "2 lines fit"),
    ("{small: rope|pi @1x width .2f}", "Invalid literal for Fraction: '1x width'"),
    ("{small: rope|pi @1x .2q}", "Unknown format code"),
    ("{small: rope|pi @1x nll +- .2f}", "it has no interval"),
    ("<!-- table: results/README.md 99 -->", "IndexError"),
    ("<!-- table: results/reported/demo/table.md 1 -->", "no line that begins `| a |"),
    ("{small like: rope|pi @1x .2f}", "like is not a comparison"),
    ("{small: $what @1x .2f}", "KeyError('what')"),
]


@pytest.mark.parametrize(
    ("expression", "message"), EXPRESSIONS, ids=[expression for expression, _ in EXPRESSIONS]
)
def test_what_is_no_number_is_refused_with_its_place(
    results,  # noqa: F811
    tmp_path,
    expression,
    message,
):
    template = tmp_path / "small" / "README.template.md"
    template.write_text(f"One.\n{expression}\n| a | b | c |\n<!-- end of table -->\n")
    with pytest.raises(ConfigError) as refused:
        pages.filled_page(template)
    assert str(refused.value).startswith(
        f"small/README.template.md, line 2: {expression}"
    ) and message in str(refused.value)


LINES = [
    "report runs=demo",
    "plot ./demo",
    "explore ./demo",
    "claims runs=demo",
    "bundle ./demo check=true",
]


@pytest.mark.parametrize("line", LINES)
def test_a_line_on_altered_rows_is_refused_in_one_sentence_and_writes_nothing(
    folder,  # noqa: F811
    tmp_path,
    capfd,
    line,
):
    ALTERATIONS["rows: nll of a method"](folder)
    done = call(capfd, tmp_path, *line.split())
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "rows.csv is not the file that hashes.json lists" in done.stderr
    assert list(tmp_path.iterdir()) == [folder]
