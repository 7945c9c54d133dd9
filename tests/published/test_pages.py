"""Pages are what their templates give."""

import csv
import json
import re

import pytest

from posbench.report.published import readme_numbers as page_numbers
from posbench.report.published import readme_pages as pages


@pytest.mark.parametrize(
    "template", pages.PAGES, ids=lambda path: path.relative_to(pages.ROOT).as_posix()
)
def test_pages_are_what_their_templates_give(template):
    assert pages.PAGES[template].read_text() == pages.filled_page(template), "run make pages"


def test_every_experiment_has_a_page_and_the_first_page_links_it():
    first = page_numbers.REPORTED / "README.md"
    experiments = {path.parent.name for path in first.parent.glob("*/rows.csv")}
    written = {path.parent.name for path in pages.PAGES.values() if path != first}
    assert experiments <= written == {*re.findall(r"\]\((\w+)/README\.md", first.read_text())}


def test_the_findings_are_all_that_the_ledger_decided_by_measurement():
    with open(page_numbers.REPORTED / "claims" / "claims.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["primary"] == "True" and row["effect"]]
    template = (page_numbers.REPORTED / "claims" / "README.template.md").read_text()
    text = template.partition("<!-- findings")[2].partition("<!-- end of findings")[0]
    shown = re.findall(r"\{ledger: ([^{}]*) verdict s\}", text)
    decided = [row for row in rows if row["verdict"] in ("confirmed", "refuted")]
    assert len({*shown}) == len(shown) == len(decided)
    assert all(
        page_numbers.filled_expression("ledger", f"{name} verdict s") in ("confirmed", "refuted")
        for name in shown
    )


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(page_numbers, "REPORTED", tmp_path)
    (tmp_path / "small").mkdir()
    lines = [
        f"fixed_targets,64,{name},pi,none,{n},{d},0.25,3.5"
        for name, n, d in [("rope", 64, -0.5), ("rope", 128, 1.5), ("fox", 128, 0.75)]
    ]
    header = (
        "protocol,train_len,encoding,extension,scale_attention,length,difference,half_width,nll"
    )
    (tmp_path / "small" / "curve.csv").write_text("\n".join([header, *lines]))
    entries = [{"name": "a b", "of": {"8": [1, 0.5, 1.5]}}, {"name": "c", "of": {"8": [3, 3, 3]}}]
    (tmp_path / "small" / "some.json").write_text(json.dumps({"found": entries}))


@pytest.mark.parametrize(
    "source, text, shown",
    [
        ("small", "rope|pi @2x .2f", "1.50"),
        ("small", "rope|pi @2x nll .1f", "3.5"),
        ("small", "rope|pi @2x +- +.2f", "+1.50 +- 0.25"),
        ("small", "rope|pi @1x [] .3f/+.1f", "-0.500 [-0.8, -0.2]"),
        ("small", "rope|pi @1x negated [] .2f", "0.50 [0.25, 0.75]"),
        ("small", "rope|pi & fox|pi @1x,2x lowest .2f", "-0.50"),
        ("small", "rope|pi & fox|pi @2x low highest .2f", "1.25"),
        ("small", "rope|pi minus fox|pi @2x .2f", "0.75"),
        ("small", "encoding=rope count .0f", "2"),
        ("small", "length!=64 encoding distinct .0f", "2"),
        ("small", "encoding=fox extension s", "pi"),
        ("small", "length total hours .3f", "0.089"),  # of 320 seconds
        ("small/some.json", "found, name=a b, of, 8 +- .1f", "1.0 +- 0.5"),
        ("small/some.json", "found, name=c, of, 8 minus found, name=a b, of, 8 .0f", "2"),
    ],
)
def test_expressions(results, source, text, shown):
    assert page_numbers.filled_expression(source, text) == shown


def test_a_sum_of_losses_of_several_protocols_is_that_of_its_rows():
    rope = "rope|yarn @16x, protocol={0} minus rope|yarn @1x, protocol={0}"
    gain = {
        name: fill_number(f"rope|yarn @16x, protocol={name} minus rope|yarn @1x, protocol={name}")
        for name in ("disjoint", "sliding")
    }
    both = (
        f"{rope.format('disjoint')} minus rope|yarn @16x, protocol=sliding plus rope|yarn @1x,"
        " protocol=sliding"
    )
    assert fill_number(both) == pytest.approx(gain["disjoint"] - gain["sliding"], abs=2e-5)
    with open(page_numbers.REPORTED / "protocols" / "rows.csv", newline="") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if (row["extension"], row["protocol"]) == ("yarn", "disjoint")
        ]
    nll = {row["length"]: float(row["nll"]) for row in rows}
    assert gain["disjoint"] == pytest.approx(nll["1024"] - nll["64"], abs=1e-5)


def fill_number(text):
    return float(page_numbers.filled_expression("protocols paired", f"{text} .5f"))
