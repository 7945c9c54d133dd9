"""What a reader of an advice sees: sentences, table, figure and page, from the content of
advice.json alone.
"""

import json

import numpy as np
from markupsafe import Markup
from test_decide import OPTIONS, PLAN, TRUTH, made_up
from test_report_html import Page

from posbench.report.figures.style import write_figure
from posbench.tools.advice.decide import Losses, advice_content, rankings_by_use
from posbench.tools.advice.plan import CUT
from posbench.tools.advice.show import (
    advice_figure,
    advice_page,
    advice_text,
    all_answers,
    answer_sentences,
    factor_lines,
    introduction,
    option_table,
    usable_in_words,
    with_half_width,
)

ABOUT = {
    "model": "small <b>&",
    "run": "x",
    "command": "advise",
    "data": "made up, fp32",
    "probe": 128,
    "windows": {},
    "left_out": {"string": "refused for a reason"},
}
SETTINGS = {
    "rerope": {"rope_parameters": None, "reason": "Needs own attention."},
    "yarn x4": {
        "rope_parameters": {"rope_type": "yarn"},
        "json": '{"rope_type": "yarn"}',
        "engines": {
            "vLLM": {"serves": True, "words": "--hf-overrides '{}'"},
            "llama.cpp": {"serves": False, "words": "it has no such type"},
        },
        "files": ["config.json with it: DIR"],
    },
}


def content_of(test: Losses, validation: Losses | None = None) -> dict:
    """Content as it is written: no number of it is nan."""
    validation = validation or made_up(0)
    content = advice_content(
        ABOUT, PLAN, OPTIONS, validation, test, rankings_by_use(validation, PLAN)
    )
    return json.loads(json.dumps({**content, "settings": SETTINGS}, allow_nan=False))


def test_the_sentences_say_what_was_found_and_what_to_do():
    content = content_of(made_up(1))
    short, long, both = all_answers(content)
    assert short.startswith(
        "Short texts (to 64 tokens): leave the model as it is. Confirmed by the test documents:"
        " -0.013 ["
    )
    assert short.endswith("] to rerope.")
    assert "Long texts (256 tokens): rerope. Confirmed by the test documents: -3.2" in long
    assert " to the cut text." in long and "Better than the next best, yarn x4: -0.1" in long
    assert "The best that engines serve is yarn x4: -3.1" in long
    assert both.startswith("Both: yarn by length.") and "It costs nothing up to 64 tokens." in both
    content["answers"]["long"]["near"] = {
        name: [0.001, -0.1, 0.1] for name in ("dca", "streaming", CUT, "yarn x4")
    }
    assert (
        "Validation documents do not tell rerope apart from dca (+0.001), streaming (+0.001)."
        in answer_sentences(content, "long")
    )
    refuted = answer_sentences(content_of(made_up(1, rerope=(3.4, 3.0, 3.3))), "long")
    assert refuted.startswith(
        "Long texts (256 tokens): leave the model as it is and cut the text to its last 64 tokens."
    )
    assert (
        "Validation documents chose: rerope. Refuted by the test documents" in refuted
        and "+0.3" in refuted
    )
    without = {
        name: TRUTH[name] for name in TRUTH if name not in ("yarn by length", "rerope", "yarn x4")
    }
    assert (
        all_answers(content_of(made_up(1, without), made_up(0, without)))[2]
        == "Both: the same as for long texts."
    )


def test_the_table_fits_a_terminal_and_leaves_the_reference_out():
    lines = option_table(content_of(made_up(1))).splitlines()
    assert max(map(len, lines)) <= 80 and len({len(line) for line in lines[1:]}) == 1
    assert [line.split("  ")[0] for line in lines[1:]] == [
        "as it is",
        "yarn x4",
        "yarn by length",
        "rerope",
    ]
    assert lines[1].split()[-1] == "64" and lines[2].endswith("below 16")


def test_one_document_and_losses_that_are_not_finite_are_words():
    content = content_of(made_up(1, documents=1, rerope=(3.4, 3.0, np.inf)))
    text = advice_text(content)
    assert (
        "So few documents as 2 leave wide intervals"
        in introduction(content_of(made_up(1, documents=2)))[-1]
    )
    assert (
        "  vLLM: --hf-overrides '{}'\n  llama.cpp: cannot: it has no such type" in text
        and text.endswith("refused for a reason")
    )
    assert "not finite" in advice_text(content_of(made_up(1, rerope=(3.4, 3.0, np.inf))))
    assert "(one document: no interval)" in text and "not finite" in text and "nan" not in text
    assert (
        with_half_width([0.1, None, None]) == "+0.100"
        and with_half_width(None) == "-"
        and with_half_width([-1e-5, 0, 1]) == "+0.000 +-0.500"
    )
    assert (
        usable_in_words({"surely": None, "perhaps": 64}, content) == "?-64"
        and usable_in_words({"surely": 16, "perhaps": 64}, content) == "16-64"
    )


def test_the_figure_and_the_page_hold_the_same_numbers(tmp_path):
    content = content_of(made_up(1))
    content["factors"] = [option for option in content["options"] if option["name"] == "yarn x4"]
    assert factor_lines(content)[1] == (
        "yarn at 64",
        [(1.0, [0.0, 0.0, 0.0]), (4.0, content["factors"][0]["points"][1]["difference"])],
    )
    png, _ = write_figure(advice_figure(content), tmp_path / "advice")
    assert png.stat().st_size > 1000
    (tmp_path / "advice.html").write_text(advice_page(content, Markup("<p></p>")))
    read = Page(tmp_path / "advice.html")
    assert "small <b>&" in read.text and "b" not in {tag for tag, _ in read.tags}
    long = next(option for option in content["options"] if option["name"] == "rerope")["points"][-1]
    assert (
        f"{long['nll']:.3f} ({with_half_width(long['difference'])})".replace("+-", "\u00b1")
        in read.text
    )
    assert CUT in read.text and "cannot, since it has no such type" in read.text
