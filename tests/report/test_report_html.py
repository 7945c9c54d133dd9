"""The page, the LaTeX and the choice of runs: from results folders that may be anybody's."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import yaml
from browser import CHROMIUM, Browser
from conftest import CONFIGS
from script_calls import call
from synthetic import LENGTHS, TARGETS, Built, write_eval, write_run

from posbench.common.errors import ConfigError
from posbench.report.report import collect_report
from posbench.report.table_formats import latex_escaped
from posbench.results.distinguish import values_of_differing_keys
from posbench.results.run_metadata import ABSENT_WORD, flatten
from posbench.results.search import Results, find_results

VOID = {"meta", "br", "img", "link"}
EVIL = "<img src=x onerror=alert(1)>\"'&|$\\frac{\x1b[31m\x00\ud800--!>"


class Page(HTMLParser):
    """What a browser would find: tags with their attributes, and the text outside figures, style
    and script. Refuses crossed tags.
    """

    def __init__(self, path):
        super().__init__()
        self.source, self.open, self.tags, self.text = path.read_text(encoding="utf-8"), [], [], ""
        self.feed(self.source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"svg", "style", "script"} & set(self.open):
            self.text += data + "\n"

    def values(self, name):
        return [attributes[name] for _, attributes in self.tags if name in attributes]


def describe(run, steps=1000, provenance=None, **changed):
    """The config.yaml and provenance.json of a run that write_eval made."""
    train = "".join(
        f"\n  {key}: {value}"
        for key, value in {"length": 64, "steps": steps, "lr": 0.01, **changed}.items()
    )
    (run / "config.yaml").write_text(
        f"seed: 0\ndevice: auto\nresults_dir: {run}\nmodel:\n  d_model: 128\ntrain:{train}\n"
    )
    usual = {
        "commit": "f" * 40,
        "device": "NVIDIA H200",
        "platform": "Linux-6",
        "processor": "Xeon, amx_bf16",
        "threads": 4,
        "versions": {"torch": "2.13.0"},
        "data_fingerprint": "18273dee" * 8,
        "n_parameters": 1016960,
        "started": "2026-01-01T00:00:00+00:00",
    }
    (run / "provenance.json").write_text(json.dumps({**usual, **(provenance or {})}))
    return run


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A report over three encodings and two seeds; returns its folder."""
    root = tmp_path_factory.mktemp("page")
    paths = [
        path
        for encoding in ("rope", "alibi")
        for seed in (0, 1)
        for path in write_run(root, encoding, seed)
    ]
    for run in {path.parents[2] for path in paths}:
        describe(run, lr=0.02 if run.name.startswith("alibi") else 0.01)
    Built(paths, root / "out", "Title & more", "x", pictures="drawn")
    return root / "out"


def test_the_page_needs_nothing_but_itself(written):
    page = Page(written / "report.html")
    ids, links = page.values("id"), page.values("href") + re.findall(r"url\((.*?)\)", page.source)
    assert (written / links.pop(0)).is_file()  # explore.html, the only link to another file
    assert len(ids) == len(set(ids)) and links and {link[1:] for link in links} <= set(ids)
    assert "//" not in page.source.replace("// ", "") and not page.values("src")
    assert {tag for tag, _ in page.tags} & {"script", "iframe", "object", "link", "img"} == {
        "script"
    }
    assert "default-src 'none'" in page.values("content")[0]
    assert [tag for tag, _ in page.tags].count("svg") == 3


def test_the_page_shows_every_number_and_where_it_comes_from(written):
    page, markdown = Page(written / "report.html"), (written / "table.md").read_text()
    cells = [
        cell
        for line in markdown.splitlines()
        if line.startswith("| rope")
        for cell in line.strip("| ").split(" | ")
    ]
    assert len(cells) > 80 and all(cell.replace("+-", "\u00b1") in page.text for cell in cells)
    for part in (
        "rope-64-s0-0123456789",
        "ffffffffffff",
        "NVIDIA H200, Xeon, amx_bf16, Linux-6",
        "18273dee",
        "gate: ok",
        "train.lr",
    ):
        assert part in page.text
    assert (
        "train.steps" not in page.text and "results_dir" not in page.text
    )  # the same in all; where files lie


def test_equal_reports_are_equal_files(written, tmp_path):
    paths = sorted(written.parent.glob("alibi*/evals/*/*.json"))  # the other figures: test_figures
    for name in ("one", "two"):
        Built(paths, tmp_path / name, "Title", "x", pictures="drawn")
    for name in ("report.html", "table.tex", "table.md"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_what_a_results_folder_says_is_text(tmp_path):
    path = write_eval(tmp_path, "rope", "none", "none", [np.full(TARGETS, 3.0)] * 4, LENGTHS)
    content = json.loads(path.read_text())
    for row in content["rows"]:
        row.update(
            encoding=EVIL,
            data=EVIL,
            extension_args={EVIL: EVIL},
            run_id=EVIL,
            commit=EVIL,
            scale_attention="a\nb",
        )
    path.write_text(json.dumps(content))
    run = describe(
        path.parents[2],
        provenance={"commit": EVIL, "device": [EVIL], "versions": EVIL, "n_parameters": {EVIL: 1}},
    )
    (run / "config.yaml").write_text(
        f"model: {{_target_: os.system, x: {json.dumps(EVIL[:20])}, y: '${{oc.env:HOME}}'}}\n"
    )
    run = run.rename(tmp_path / "<b onclick=x>&'\x1b[0m")
    assert find_results([str(tmp_path)]) == Results([run], [], [])
    report = Built(
        sorted((run / "evals").glob("*/*.json")), tmp_path / "out", EVIL, "x", pictures="drawn"
    )
    page = Page(tmp_path / "out" / "report.html")
    assert not {tag for tag, _ in page.tags} & {"img", "b"} and not any(
        name.startswith("on") for _, has in page.tags for name in has
    )
    assert "<img src=x onerror=alert(1)>" in page.text and "<b onclick=x>&'" in page.text
    for text in (
        page.source,
        report.markdown(),
        report.table_text(),
        (tmp_path / "out" / "table.tex").read_text(),
    ):
        assert not {"\x1b", "\x00"} & set(text)
    assert (tmp_path / "out" / "curve.svg").stat().st_size > 0


def test_a_run_that_lies_in_two_folders_counts_once(tmp_path):
    for name in ("a", "b"):
        write_run(tmp_path / name, "alibi")
    files = [sorted((tmp_path / name).glob("*/evals/*/*.json")) for name in ("a", "b")]
    once, twice = (collect_report(paths, "t", "x") for paths in (files[0], files[0] + files[1]))
    assert once.rows == twice.rows and [
        line for line in twice.notes if "10 rows are in more than one folder, with the same" in line
    ]
    changed = json.loads(files[1][0].read_text())
    changed["rows"][0]["dtype"] = "bf16"
    files[1][0].write_text(json.dumps(changed))
    assert (
        "1 of them with other numbers" in collect_report(files[0] + files[1], "t", "x").markdown()
    )


def test_runs_are_found_by_name_glob_and_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("one/rope-1", "one/alibi-1", "two/rope-[2]"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.yaml").write_text("seed: 0\n")
    for patterns, expected_names in (
        (["one/rope-*"], ["rope-1"]),
        (["one"], ["alibi-1", "rope-1"]),
        (["*"], ["alibi-1", "rope-1", "rope-[2]"]),
        (["two/rope-[2]", "one/*", f"{tmp_path}/one/rope-1"], ["rope-[2]", "alibi-1", "rope-1"]),
    ):
        assert [path.name for path in find_results(patterns).runs] == expected_names
    for wrong in (["three"], [""], [], ["one", "four/*"]):
        with pytest.raises(ConfigError, match="a quoted glob"):
            find_results(wrong)


def test_the_script_reports_any_runs(tmp_path, capfd):
    for folder, encoding in (("one", "rope"), ("two", "alibi")):
        describe(write_run(tmp_path / folder, encoding)[0].parents[2])
    (tmp_path / "one" / "rope-bare").mkdir()
    (tmp_path / "one" / "rope-bare" / "config.yaml").write_text("seed: 0\n")
    done = call(capfd, tmp_path, "report", "runs=[one/rope-*,two]", "report_dir=out")
    assert (
        done.returncode == 0
        and "report.html" in done.stdout
        and "1 of 3 runs have no evaluation: rope-bare" in done.stdout
    )
    page = Page(tmp_path / "out" / "report.html")
    assert (
        "Runs of one/rope-*, two" in page.text
        and "rope-64-s0" in page.text
        and "alibi-64-s0" in page.text
    )
    pooled = call(capfd, tmp_path, "report", "experiment=demo", "runs=[one/rope-*,two]")
    assert pooled.returncode == 0 and "next:" not in pooled.stdout
    page = Page(tmp_path / "results" / "report" / "demo" / "report.html")
    assert (
        "rope-64-s0" in page.text
        and yaml.safe_load((CONFIGS / "experiment" / "demo.yaml").read_text())["title"] in page.text
    )
    for wrong, message in (
        ("runs=three/*", "matches neither a training"),
        ("runs=one run=one/rope-bare", "give one of them"),
        ("-m runs=one", "give one of them"),
        ("runs=one encoding=rope", "encoding=rope has no effect beside runs="),
        ("experiment=demo runs=one seed=0", "seed=0 has no effect beside runs="),
    ):
        refused = call(capfd, tmp_path, "report", *wrong.split())
        assert (
            refused.returncode == 2
            and message in refused.stderr
            and refused.stderr.count("\n") == 1
        )


def test_differences_of_configurations():
    configs = [
        flatten({"train": {"lr": 1.0, "length": [32, 64]}, "seed": 0}),
        flatten({"train": {"lr": 1, "length": [32]}, "seed": 0, "x": {}}),
    ]
    assert values_of_differing_keys(configs) == {
        "train.length": ["[32, 64]", "[32]"],
        "x": [ABSENT_WORD, "{}"],
    }
    later = [{"model.head_dim": None}, {}, {"model.head_dim": 64}]
    assert values_of_differing_keys(later[:2]) == {} and values_of_differing_keys(later) == {
        "model.head_dim": ["null", ABSENT_WORD, "64"]
    }


def test_latex_says_what_the_tables_say(written):
    text = (written / "table.tex").read_text()
    rows = re.findall(r"^(?!%)(.*) \\\\$", text, re.M)
    columns = {row.count("&") + 1 for row in rows}
    assert columns == {6, 7}
    assert (
        r"rope & leaky\_rerope & log\_n & " in text
        and r"$\pm$" in text
        and r"$>$" in text
        and "$-$0." in text
    )
    assert latex_escaped("a_b & 50% #1 {x} ~ ^ \\ $ < \n*[") == (
        r"a\_b \& 50\% \#1 \{x\} $\sim$ \textasciicircum{} \textbackslash{} \$ $<$  {*}{[}"
    )


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("width", [500, 1200])
def test_a_browser_shows_the_page_and_sorts(written, tmp_path, width):
    page, button = Browser(tmp_path, width), "document.querySelectorAll('th button')[6]"
    try:
        page.open(f"file://{written}/report.html")
        assert not page.problems and page.run("document.documentElement.scrollWidth <= innerWidth")
        for order in (1, -1):
            page.run(f"{button}.click()")
            shown = page.run(
                f"[...{button}.closest('table').tBodies[0].rows].map(row =>"
                " parseFloat(row.cells[6].textContent))"
            )
            assert len(shown) == 11 and shown == sorted(shown)[::order]
    finally:
        page.close()
