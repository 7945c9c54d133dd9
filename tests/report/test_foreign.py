"""Somebody else's CSV beside our runs: what it does not state is not stated, and its lines have
colours of their own.
"""

import pytest
from synthetic import CURVES, write_run

from posbench.report.explore import page_content
from posbench.report.figures.captions import curve_caption
from posbench.report.figures.lines import Mark
from posbench.report.figures.method_lines import lines_of_methods
from posbench.report.figures.palette import foreign_pens
from posbench.report.figures.style import FOREIGN_COLOURS, OKABE_ITO
from posbench.report.frame import record_frame, records_of_frame
from posbench.report.plot import Options, draw_figure
from posbench.report.records import CurvePoint, read_points
from posbench.report.report import collect_report
from posbench.report.write_report import write_report

FEW = {cell: CURVES[cell] for cell in (("rope", "none", "none"), ("rope", "pi", "none"))}
LINES = "".join(
    f"{method},{length},{ppl},64\n"
    for method, ppl in (("rope", 20), ("pi", 25), ("theirs", 30))
    for length in (64, 512)
)


@pytest.fixture
def csv(tmp_path):
    path = tmp_path / "paper.csv"
    path.write_text(f"method,length,ppl,train_len\n{LINES}")
    return path


@pytest.fixture
def curve(tmp_path, csv):
    (section,) = collect_report(
        write_run(tmp_path / "runs", "rope", curves=FEW), "t", "x", [csv]
    ).sections
    return section


def mark(point):
    return None if point.nll is None else Mark(point.length, point.nll)


def test_a_caption_gives_nothing_of_ours_to_somebody_elses_numbers(curve):
    figure, lines = draw_figure(record_frame(curve, CurvePoint), Options(y="ppl"))
    theirs = [line for line in lines() if line.startswith("paper.csv: ")]
    assert theirs == [
        "paper.csv: data not stated, tokenizer not stated | protocol not stated: which targets were"
        " scored is not stated | 1 seed."
    ]
    ours = [
        line for line in lines() if line.startswith("pysource, bpe-1024 | protocol fixed_targets")
    ]
    assert len(ours) == 1
    assert figure


def test_a_report_says_what_a_csv_beside_it_does_not_state(tmp_path, curve, csv):
    sentence = (
        "paper.csv: protocol, data, tokenizer not stated, so its lines may be of another text or"
        " protocol"
    )
    report = collect_report(write_run(tmp_path / "runs", "rope", curves=FEW), "t", "x", [csv])
    assert f"- {sentence}\n" in report.markdown() and sentence in report.table_text()
    assert f"P{sentence[1:]}." in curve_caption(curve, relative=False)
    write_report(report, tmp_path / "out")
    *_, last = read_points(tmp_path / "out" / "curve.csv")
    assert (last.source, last.unstated) == ("paper.csv", "protocol data tokenizer")


def test_what_a_csv_states_is_said_as_stated(tmp_path):
    csv = tmp_path / "paper.csv"
    csv.write_text(
        "method,length,ppl,train_len,data,protocol\ntheirs,64,20,64,pysource,fixed_targets\n"
    )
    (curve,) = collect_report(
        write_run(tmp_path / "runs", "rope", curves=FEW), "t", "x", [csv]
    ).sections
    assert curve[-1].unstated == "tokenizer"
    _, lines = draw_figure(record_frame(curve, CurvePoint), Options(y="ppl"))
    assert any(
        line.startswith("paper.csv: pysource, tokenizer not stated | protocol fixed_targets: ")
        for line in lines()
    )


def test_a_csv_alone_states_nothing_more(csv):
    (curve,) = collect_report([], "t", "x", [csv]).sections
    assert curve_caption(curve, relative=False)[0].startswith(
        "data not stated, tokenizer not stated | protocol not stated: "
    )
    assert (
        "- data not stated, tokenizer not stated, trained at 64 tokens"
        in collect_report([], "t", "x", [csv]).markdown()
    )


def test_no_line_of_others_has_a_colour_of_ours(curve):
    pens = {(line.name, line.pen.thin): line.pen for line in lines_of_methods(curve, curve, mark)}
    ours, theirs = (
        [pen for (_, thin), pen in pens.items() if thin == of_others] for of_others in (False, True)
    )
    assert len(ours) == 2 and {pen.colour for pen in ours} <= set(OKABE_ITO)
    assert len(theirs) == 3 == len({pen.colour for pen in theirs}) and {
        pen.colour for pen in theirs
    } <= set(FOREIGN_COLOURS)
    assert not set(FOREIGN_COLOURS) & set(OKABE_ITO) and {pen.marker for pen in theirs} == {"x"}
    again = records_of_frame(record_frame(curve, CurvePoint))
    assert [line.pen for line in lines_of_methods(again, again, mark)] == [
        line.pen for line in lines_of_methods(curve, curve, mark)
    ]


def test_lines_of_others_do_not_change_the_looks_of_ours(curve):
    alone = [point for point in curve if not point.foreign]
    assert [line.pen for line in lines_of_methods(alone, alone, mark)] == [
        line.pen for line in lines_of_methods(curve, curve, mark)
    ][: len(FEW)]


def test_many_lines_of_others_differ_by_dashes():
    pens = foreign_pens((f"method {number}", "none") for number in range(30))
    looks = {(pen.colour, str(pen.dash)) for pen in pens.values()}
    assert len(looks) == 30 and {pen.colour for pen in pens.values()} == set(FOREIGN_COLOURS)


def test_the_explore_page_has_the_same_rules(tmp_path, csv):
    report = collect_report(write_run(tmp_path / "runs", "rope", curves=FEW), "t", "x", [csv])
    lines = [line for line in page_content("t", {"": report})["lines"] if line["kind"] == "length"]
    for line in lines:
        is_theirs = line["source"] == "paper.csv"
        assert line["unstated"] == ("protocol data tokenizer" if is_theirs else None)
        assert all((colour >= len(OKABE_ITO)) == is_theirs for colour in line["colours"])
    assert sum(line["source"] == "paper.csv" for line in lines) == 3
