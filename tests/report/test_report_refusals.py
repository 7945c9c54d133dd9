"""Refusals of reports: command lines, tables to draw, CSVs of losses and comparisons, each with a
part of the message.
"""

import shlex
from collections.abc import Callable

import pandas
import pytest
from conftest import CONFIGS
from script_calls import call
from test_comparison import reports_of

import posbench
from posbench.common.errors import ConfigError
from posbench.report.comparison_request import Request, requested_comparisons
from posbench.report.report import collect_report

REPORTED = CONFIGS.parent / "results" / "reported"
DEMO = f"plot {REPORTED}/demo"
TYPED = [
    (f"{DEMO} y=pplx", "did you mean ppl?"),
    (f"{DEMO} x=position", "choose x=length"),
    (f"{DEMO} 'lines=rope|ntkk'", "did you mean rope|ntk?"),
    (f"{DEMO} pane=encoding", "did you mean panel?"),
    (f"{DEMO} encoding=rop", "did you mean rope?"),
    (f"{DEMO} labels.rop=RoPE", "did you mean rope?"),
    (f"{DEMO} reference=floors", "or floor, change, none"),
    (f"{DEMO} y=difference reference=rope", "type y=nats reference=rope"),
    (f"{DEMO} y=accuracy reference=floor", "name a line"),
    (f"{DEMO} size=colunm", "choose from column, page, slide"),
    (f"{DEMO} bars=intervals", "did you mean interval?"),
    (f"{DEMO} log=z", "choose from x, y"),
    (f"{DEMO} y=nats log=y ylim=-1,2", "choose ylim above 0"),
    (f"{DEMO} xlim=0,100", "choose xlim above 0"),
    (f"{DEMO} xlim=2000,3000", "no value of those at 64 to 1024"),
    (f"{DEMO} ylim=4,1", "two numbers, the smaller first"),
    (f"{DEMO} out=a.jpg", "choose from png, svg, pdf"),
    (f"{DEMO} size=slide panel=encoding,extension,scale_attention", "has no room for 12 panels"),
    (
        f"{DEMO} size=column 'labels.rope|ntk=a_name_that_is_much_too_long_for_it'",
        "has no room for a line beside",
    ),
    (f"report runs=[{REPORTED}/demo] report_dir=out bars=seed", "did you mean seeds?"),
    ("report -m seed=0,1 bars=none", "seed=0,1' first"),
    ("bundle", "0 are named"),
    ("bundle demo out=x.tar", "out=x.tar is no bundle"),
    ("bundle demo chek=true", "did you mean check?"),
    (f"bundle {REPORTED}/demo/rows.csv", "is a CSV of losses without sums"),
    ("explore headlne", "did you mean headline?"),
    ("explore out=x.txt demo", "give it the ending .html"),
    ("explore", "name folders of runs or reports, CSVs, or experiments"),
    ("explore none.csv", "is no folder of runs or of a report, no CSV, no experiment"),
    ("explore paper.csv out=gone/page.html", "paper.csv has no column nll or ppl"),
]


@pytest.mark.parametrize(
    ("line", "message"), TYPED, ids=[line.replace(str(REPORTED), "") for line, _ in TYPED]
)
def test_a_line_is_refused_in_one_sentence_and_writes_nothing(tmp_path, capfd, line, message):
    (tmp_path / "paper.csv").write_text("method,length\nx,64\n")
    done = call(capfd, tmp_path, *shlex.split(line))
    assert done.returncode == 2 and done.stderr.startswith("refused: "), done
    assert message in done.stderr and done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["paper.csv"]


def twice() -> pandas.DataFrame:
    """The same points under the same names."""
    return pandas.concat([posbench.frame(REPORTED / "demo")] * 2, ignore_index=True)


FRAMES = {
    "another table": (
        lambda: posbench.frame(REPORTED / "demo", "curves"),
        "choose from curve, context, accuracy, position",
    ),
    "no lengths": (lambda: posbench.frame(REPORTED / "headline", "context"), "no column length"),
    "rows": (lambda: posbench.rows(REPORTED / "demo"), r"plot posbench.frame\(paths\)"),
    "twice": (twice, "several values at 64: tell them apart by a column source"),
}


@pytest.mark.parametrize(("table", "message"), FRAMES.values(), ids=FRAMES)
def test_a_table_is_not_drawn(table: Callable[[], pandas.DataFrame], message: str):
    with pytest.raises(ConfigError, match=message):
        posbench.plot(table())


CSVS = [
    (
        "method,length\na,64\n",
        "paper.csv has no column nll or ppl, but method, length: give a CSV with at least",
    ),
    ("nll\n3\n", "has no column length, and none method or label or encoding"),
    ("", "method or label or encoding, but none: give a CSV with at least the columns"),
    ("method,length,nll\na,64,3\nb,6", "paper.csv, line 3, has no column nll: complete the line"),
    ("method,length,nll\n", "holds no line below its header"),
    (
        "method,length,nll\na,64,3\na,64,4\n",
        "line 3: a none none at length 64 appears twice: distinguish the lines by",
    ),
    ('method;length;nll\na;64;"3,5"\n', "line 2: nll=3,5 is not a number: write it like 3.52"),
    ("method,length,nll\na,64.5,3\n", "length=64.5 is not a number of tokens"),
    ("method,length,nll\na,-1,3\n", "length=-1 is not a number of tokens"),
    ("method,length,nll\na,,3\n", "there is no length"),
    ("method,length,nll\n,64,3\n", "there is no method"),
    ("method,length,ppl\na,64,0\n", "ppl=0 is not a perplexity"),
    (
        "method,length,nll,low,high\na,64,3,3.2,3.1\n",
        "the loss lies outside of its interval, low=3.2 to high=3.1",
    ),
    ("method,length,nll,low,high\na,64,,3.2,3.1\n", "low=3.2 to high=3.1: correct one"),
    ("method,length,nll\na,64,3\n", "paper.csv does not state the training length"),
    ("method,length,nll\n\x1b[31m,64,x\n", "nll=x is not a number"),
    ("run_id,eval_id,schema\na,b,1\n", "columns that differ from schema"),
    (b"method,length,nll\n\xff\xfe,64,3\n", "cannot be read as CSV"),
]


@pytest.mark.parametrize(("content", "message"), CSVS)
def test_a_csv_is_refused_in_one_sentence(tmp_path, content: str | bytes, message: str):
    path = tmp_path / "paper.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as refused:
        collect_report([], "t", "x", [path])
    sentence = str(refused.value)
    assert message in sentence and "\n" not in sentence and "\x1b" not in sentence


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    return reports_of(tmp_path_factory.mktemp("runs"), seeds=(0,))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"lines": ("rop|yarn", "rope")}, "did you mean rope|yarn?"),
        ({"length": "7x"}, "choose from 1x (64), 2x (128), 4x (256), 8x (512)"),
        ({"length": "far"}, "such as length=512 or length=8x"),
        ({"lines": ("rope|pi",), "length": "8x"}, "name a second one, such as rope"),
        ({"lines": ("rope|pi", "rope + pi")}, "name a second one, such as rope"),
        ({"against": "fox"}, "fox is no line of these results"),
        ({"measure": "los"}, "must be one of loss, rise, change, accuracy (did you mean loss?)"),
        ({"correction": "bonferroni"}, "must be one of holm, none"),
        ({"by": "seed"}, "must be one of length, train_len, data"),
        ({"against": "each", "by": "length"}, "leave one out"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_what_can(reports, request_, message):
    with pytest.raises(ConfigError) as refused:
        requested_comparisons(reports, Request(**request_))
    assert message in str(refused.value) and "\n" not in str(refused.value)
