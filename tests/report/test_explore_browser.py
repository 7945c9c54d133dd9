"""The explore page in a real browser: each control once, from the file alone."""

import csv
import io
import json
import re
from xml.etree import ElementTree

import pytest
from browser import CHROMIUM, Browser
from conftest import CONFIGS

from posbench.report.comparison import ONLY_MEANS
from posbench.report.comparison_request import Request, requested_comparisons
from posbench.report.comparison_words import MARK_OF_VERDICT, Scale, how_compared, result_sentences
from posbench.report.explore import explore_page
from posbench.report.figures.palette import BLUE, shades
from posbench.report.figures.style import OKABE_ITO
from posbench.report.report import collect_report

REPORTED = CONFIGS.parent / "results" / "reported"
FORMULA, MARKUP = "=HYPERLINK(1)", "<img src=x onerror=document.title=1>"
PAPER = (
    "method,length,nll,low,high,train_len\n"
    f"{FORMULA},64,2.9,2.8,3.0,64\n{FORMULA},96,3.1,3.0,3.2,64\n{MARKUP},128,1e8,,,64\n"
)

ROPE = ("rope", "rope|pi", "rope|ntk", "rope|rerope", "rope|leaky_rerope")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """(address, report) of a page of the demo beside somebody's CSV."""
    folder = tmp_path_factory.mktemp("explore")
    (folder / "paper.csv").write_text(PAPER)
    report = collect_report([], "Demo", "x", [folder / "paper.csv"], evidence=[REPORTED / "demo"])
    (folder / "page.html").write_text(explore_page("Demo", {"": report}), encoding="utf-8")
    return f"file://{folder}/page.html", report


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    chromium = Browser(tmp_path_factory.mktemp("browser"))
    yield chromium
    chromium.close()


@pytest.fixture
def page(browser, site):
    browser.open("about:blank")
    browser.open(site[0])
    yield browser
    assert browser.requests == [site[0]] and not browser.problems


def lines(page):
    return page.run("[...document.querySelectorAll('#plot [aria-label=line] path')].length")


def text(page, selector):
    return page.run(f"document.querySelector({json.dumps(selector)}).textContent")


def state(page):
    return page.run("Object.fromEntries(new URLSearchParams(location.hash.slice(1)))")


def drawn(page):
    return re.sub(
        r"plot-clip-\d+", "", page.run("document.getElementById('plot').innerHTML")
    )  # these are counted up


def cells(page, where):
    return page.run(
        f"[...document.querySelectorAll('{where} tbody tr')].map(row => [...row.cells].map(cell =>"
        " cell.textContent))"
    )


def identity(page, name):
    return page.run(
        "[...document.querySelectorAll('#legend button')].find(one => one.textContent.trim() ==="
        f" {json.dumps(name)}).dataset.line"
    )


def test_each_choice_changes_the_figure_and_the_address(page):
    choices = [
        ("y", "nll"),
        ("y", "ppl"),
        ("y", "bpb"),
        ("y", "accuracy"),
        ("y", "change"),
        ("y", "difference"),
        ("x", "multiple"),
        # fmt: skip
        ("xscale", "linear"),
        ("yscale", "linear"),
        ("bars", "none"),
        ("panel", ""),
        ("best", "encoding"),
        ("theme", "dark"),
    ]
    assert page.run("[...document.querySelectorAll('#kind option')].map(one => one.value)") == [
        "length"
    ]
    before = drawn(page)
    for name, value in choices:
        page.choose(name, value)
        after = drawn(page)
        assert after != before and "<svg" in after, (name, value)
        before = after
    assert state(page) == {
        "x": "multiple",
        "xscale": "linear",
        "yscale": "linear",
        "bars": "none",
        "panel": "",
        "best": "encoding",
        "theme": "dark",
    }
    assert (
        lines(page) == 3
        and page.run("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 28)"
    )
    assert "multiple of the training length" in before
    page.click("#reset")
    assert state(page) == {} and lines(page) == 12


def test_a_link_shows_the_same(page, site):
    page.choose("y", "ppl")
    page.choose("filter", "encoding=rope -log_n")
    page.click("#legend button")
    shown, address = drawn(page), page.run("location.href")
    assert lines(page) == 4
    page.open("about:blank")
    page.open(address)
    assert drawn(page) == shown
    page.events = [
        event for event in page.events if event["params"].get("documentURL", site[0]) != address
    ]
    page.open(site[0])


def test_the_legend_the_filter_and_the_table_say_the_same(page):
    page.choose("y", "nll")
    assert lines(page) == 13 and len(cells(page, "#table")) == 13
    assert "Left out: 1 loss above 1000 nats/token" in text(page, "#notes")
    page.click("#legend button")
    assert (
        lines(page) == 12
        and page.run("document.querySelector('#legend button').getAttribute('aria-pressed')")
        == "false"
    )
    page.click("#none")
    assert lines(page) == 0 and "Nothing is left to draw" in text(page, "#notes")
    page.click("#all")
    page.choose("filter", "extension=ntk length>128")
    assert [row[0] for row in cells(page, "#table")] == ["rope ntk", "rope ntk log_n"] and len(
        cells(page, "#table")[0]
    ) == 4
    page.choose("filter", "colour=red")
    assert "no column of this page: colour" in text(page, "#notes") and lines(page) == 13
    page.choose("filter", "")
    assert page.run("document.querySelectorAll('#legend img, #table img').length") == 0


def test_ticks_are_lengths_and_round_values(page):
    def ticks(axis):
        return page.run(
            f'[...document.querySelectorAll(\'#plot [aria-label="{axis}-axis tick label"]'
            " text')].map(one => one.textContent)"
        )

    for chosen in ("encoding=rope", "encoding=alibi"):  # of alibi all values are near 0
        page.choose("filter", chosen)
        assert ticks("x") == ["64", "128", "256", "512", "1,024"]
        shown = [float(text) for text in ticks("y")]
        assert "0" in ticks("y") and len(shown) > 4 and shown == sorted({*shown})


def test_bars_are_intervals_seeds_or_none_and_the_figure_says_which(page):
    bars = "document.querySelectorAll('#plot [aria-label=rule] line').length"
    page.choose("y", "ppl")
    page.choose("filter", "encoding=rope")
    with_intervals = text(page, "#table")
    assert page.run(bars) > 30 and "[" in with_intervals
    assert text(page, "#scales").startswith(
        "Scales: both logarithmic. Bars: 95 % t interval of the loss, over 203 documents (one"
        " seed). Lines share their texts"
    )
    page.choose("bars", "seeds")
    assert "No lines of seeds: one seed" in text(page, "#scales")
    page.choose("bars", "none")
    assert text(page, "#scales") == "Scales: both logarithmic."
    assert "[" not in text(page, "#table") and state(page)["bars"] == "none"
    page.choose("bars", "interval")
    assert text(page, "#table") == with_intervals
    page.choose("y", "difference")
    assert "y linear to 0.1, logarithmic beyond. Bars: 95 % t interval of the paired" in text(
        page, "#scales"
    )


def test_lines_of_one_encoding_have_shades_of_its_colour(page):
    page.choose("panel", "")
    page.choose("filter", "-log_n")
    strokes = page.run(
        "[...document.querySelectorAll('#legend button')].map(one =>"
        " [one.textContent.trim(), one.querySelector('path').getAttribute('stroke')])"
    )
    rope = [stroke for name, stroke in strokes if name.startswith("rope")]
    assert len(rope) == len(set(rope)) == 5 and rope[0] == OKABE_ITO[BLUE]
    assert set(rope) <= set(shades(BLUE))


def test_a_link_of_an_earlier_version_has_no_bars(page, site):
    page.open("about:blank")
    page.open(f"{site[0]}#intervals=")
    assert page.run("state.bars") == "none"
    page.events = []
    page.open(site[0])


def test_single_seeds_are_thin_lines_of_their_values(browser, tmp_path):
    report = collect_report([], "Seeds", "x", evidence=[REPORTED / "headline"])
    (tmp_path / "page.html").write_text(explore_page("Seeds", {"": report}), encoding="utf-8")
    browser.open(f"file://{tmp_path}/page.html#bars=seeds&y=nll&filter=encoding%3Dfox+-log_n")
    assert "Thin lines: the 3 seeds of each mean." in text(browser, "#scales")
    drawn_lines = "document.querySelectorAll('#plot .seeds path, #plot .seeds line').length"
    assert browser.run(drawn_lines) >= 3
    fox = next(
        point
        for point in report.sections[0]
        if (point.encoding, point.extension, point.length) == ("fox", "none", 512)
        and point.scale_attention == "none"
    )
    script = """
    seedLines(chosen().on.find(one => one.line.extension === "none"), "nll")
      .map(one => one.points.find(at => at.x === 512).v)"""
    assert sorted(browser.run(script)) == pytest.approx(
        sorted(seed.row["nll"] for seed in fox.seeds), abs=1e-6
    )


def test_a_point_says_what_it_is(page):
    page.choose("filter", "extension=ntk -log_n")
    third_dot = "document.querySelectorAll('#plot .dots [aria-label]')[2]"
    x, y = page.run(
        "(dot => (dot.scrollIntoView({block: 'center'}),"
        " (b => [b.x + b.width / 2, b.y + 3])(dot.getBoundingClientRect())))"
        f"({third_dot})"
    )
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    tooltip = text(page, "#said")
    assert re.match(
        r"rope ntk; 256 tokens fed; loss minus the floor \(nats/token\): -?\d\.\d{3} \[95 %: .* to"
        r" .*over document\]; seed 0$",
        tooltip,
    )
    assert "256 tokens fed" in text(page, "#plot [aria-label=tip]")
    assert "encoding=rope extension=ntk" in text(
        page, "#command"
    ) and "evaluate.lengths=[256]" in text(page, "#command")
    assert "reported/demo" in text(page, "#from") and re.search(
        "commit [0-9a-f]{12};", text(page, "#from")
    )
    page.run("document.getElementById('figure').focus()")
    page.press("ArrowRight")
    assert "512 tokens fed" in text(page, "#said")
    page.choose("filter", "extension=ntk")
    page.run("document.getElementById('figure').focus()")
    page.press("ArrowDown")
    assert text(page, "#said").startswith("rope ntk log_n; 512")
    assert page.run("document.querySelector('#plot svg').getAttribute('role')") == "img"


def how(page):
    return page.run("[...document.querySelectorAll('#how li')].map(one => one.textContent)")


def test_two_lines_are_compared_as_posbench_does(page, site):
    report = site[1]
    page.choose("filter", "encoding=rope")
    page.choose("y", "nll")
    page.choose("a", identity(page, "rope ntk"))
    page.choose("b", identity(page, "rope pi"))
    request = Request(lines=("rope|ntk", "rope|pi"), against="rope|pi", by="length")
    cells_by_line = {row[0]: row[1:] for row in cells(page, "#compared")}
    for i, comparison in enumerate(requested_comparisons({"": report}, request).comparisons):
        for row in comparison.lines:
            shown = Scale("nats", "loss").difference(row)
            cell = f"({row.value:.3f})"
            if shown is not None:
                half = (shown.high - shown.low) / 2
                cell = f"{shown.value:+z.3f} +- {half:.3f}{MARK_OF_VERDICT[row.verdict]}"
            assert cells_by_line[row.line.name.replace("|", " ")][i] == cell
    page.choose("y", "ppl")
    assert "perplexity over that of rope pi" in text(page, "#compared")
    assert cells(page, "#compared")[1][1].startswith("1.000 [1.000, 1.000]")
    page.choose("filter", "")
    page.choose("y", "nll")
    page.choose("b", identity(page, f"{FORMULA} (paper.csv)"))
    assert ONLY_MEANS in " ".join(how(page))
    page.choose("filter", "length!=64")
    assert "has no place in common with another line" in " ".join(how(page))
    page.choose("filter", "")
    page.choose("y", "change")
    assert f"{FORMULA} (paper.csv): left out by the choices above" in " ".join(how(page))


def test_all_drawn_lines_are_ranked_and_compared_with_each_other(page, site):
    page.choose("y", "nll")
    page.choose("filter", "encoding=rope -log_n")
    (comparison,) = requested_comparisons(
        {"": site[1]}, Request(lines=ROPE, length="16x")
    ).comparisons
    names = [row.line.name.replace("|", " ") for row in comparison.lines]
    ranked = cells(page, "#compared")
    assert [row[0] for row in ranked] == names
    assert [row[5] for row in ranked] == ["passed"] * 5
    assert how(page)[0] == result_sentences(comparison, Scale("nats", "loss")).replace("|", " ")
    assert how(page)[1:] == [line.replace("|", " ") for line in how_compared(comparison)]
    page.choose("b", "each")
    assert [row[0] for row in cells(page, "#compared")] == names
    assert "p is Holm's for 10 differences" in " ".join(how(page))
    page.choose("p", "none")
    assert "p is not corrected for 10 differences." in how(page)
    page.choose("b", "")
    page.choose("at", "128")
    assert "at 2x (128 tokens)" in text(page, "#compared")
    page.choose("at", "each")
    assert len(cells(page, "#compared")[0]) == 6
    assert state(page)["at"] == "each"
    page.run("document.getElementById('figure').focus()")
    page.press("ArrowRight")
    page.click("#as-a")
    assert state(page)["a"] == identity(page, "rope")
    assert "minus that of rope;" in text(page, "#compared")


def test_files_hold_what_is_shown(page):
    page.choose("y", "nll")
    page.choose("filter", "length<=128")
    page.click("#csv")
    table = list(csv.DictReader(io.StringIO(page.downloaded("explore.csv").decode())))
    assert {line["line"] for line in table} >= {f"'{FORMULA} (paper.csv)", "rope pi"} and {
        line["length"] for line in table
    } == {
        "64",
        "96",
        "128",
    }
    shown = {(line["line"], line["length"]): line["shown"] for line in table}
    assert float(shown[f"'{FORMULA} (paper.csv)", "96"]) == 3.1
    page.click("#svg")
    drawing = ElementTree.fromstring(page.downloaded("explore.svg"))
    assert "rope pi" in {
        element.text for element in drawing.iter("{http://www.w3.org/2000/svg}text")
    }
    page.click("#png")
    assert page.downloaded("explore.png")[:8] == b"\x89PNG\r\n\x1a\n"


def test_dark_follows_the_system_and_positions_have_their_page(tmp_path):
    report = collect_report([], "Positions", "x", evidence=[REPORTED / "pretrained"])
    (tmp_path / "page.html").write_text(explore_page("Positions", {"": report}), encoding="utf-8")
    dark = Browser(tmp_path, dark=True)
    try:
        dark.open(f"file://{tmp_path}/page.html")
        assert (
            dark.run("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 28)"
            and not dark.problems
        )
        assert "position in the window" in drawn(dark) and "12 of 52 places" in text(dark, "#notes")
    finally:
        dark.close()
