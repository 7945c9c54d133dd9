"""The READMEs show what is true: their tables, their commands, their links, their examples."""

import csv
import functools
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CONFIGS, choices
from hydra import compose, initialize_config_dir

from posbench.cli.commands import COMMANDS
from posbench.config.compose import Composer
from posbench.runs.rows import COLUMNS
from posbench.tools.anatomy import command as anatomy
from posbench.tools.benchmark import command as benchmark
from posbench.tools.bundle import command as bundle
from posbench.tools.compare.command import DEFAULTS as compare_options
from posbench.tools.explanation.changes import read_changes
from posbench.tools.plot.command import OPTION_NAMES
from posbench.tools.runs import command as runs

ROOT = CONFIGS.parent
PAGES = sorted(
    {
        *ROOT.glob("*.md"),
        ROOT / "configs" / "compat.md",
        ROOT / "results" / "columns.md",
        *ROOT.glob("[a-z]*/README.md"),
        *ROOT.glob("results/**/README.md"),
        ROOT / "results" / "reported" / "leaderboard.md",
    }
)
TEXT = {path.relative_to(ROOT).as_posix(): path.read_text() for path in PAGES}
BENCHMARK = TEXT["results/reported/benchmark/README.md"]
METHODS = ("encoding", "extension", "scale_attention")
BY_HYDRA = (
    "run",
    "report",
    "look",
    "advise",
    "anatomy",
    "claims",
    "export_hf",
    "prepare_data",
    "reproduce",
    "search_factors",
    "harness",
    "identify",
)
OPTIONS = {
    "runs list": runs.LIST_OPTIONS,
    "compare": compare_options,
    "runs gc": runs.GC_OPTIONS,
    "compat": anatomy.COMPAT_OPTIONS,
    "benchmark": benchmark.DEFAULTS,
}


def named(page: str, heading: str, column: int = 0) -> set[str]:
    """Names in backticks (behind `group=`, where that is there) or brackets in one column of a
    page's tables below a heading.
    """
    section = f"\n{TEXT[page]}".partition(f"\n{heading}\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[column + 1] for line in section.splitlines() if line.startswith("|")]
    return {word for cell in cells for word in re.findall(r"[`\[](?:[a-z]+=)?([\w./]+)[`\]]", cell)}


def list_of_scripts() -> list[tuple[str, str]]:
    """(group, file) of each line of the table of scripts; a group stands in its first line."""
    scripts = []
    group = ""
    lines = re.findall(r"^\| ([\w ]*?) ?\| \[(\w+\.\w+)\]", TEXT["scripts/README.md"], re.M)
    for first_cell, file in lines:
        group = first_cell or group
        if file.endswith(".py"):
            scripts.append((group, file))
    return scripts


def test_the_table_of_what_goes_with_what_is_todays():
    from posbench.tools.anatomy.legality_table import judge_all, legality_markdown

    shown = (
        TEXT["configs/compat.md"]
        .split("<!-- end of compat -->")[0]
        .split("<!-- compat:")[1]
        .partition("\n")[2]
    )
    assert shown.strip() == legality_markdown(list(judge_all([CONFIGS], 64, [64, 1024]))).strip(), (
        "put the output of make compat there"
    )


def test_the_table_of_speeds_is_that_of_the_reported_benchmark():
    figures = json.loads((ROOT / "results/reported/benchmark/benchmark.json").read_text())[
        "figures"
    ]
    of = {(figure["kind"], figure["case"], figure["length"]): figure for figure in figures}
    table = (
        BENCHMARK.partition("| | training speed at 64 tokens |")[2]
        .partition("\n\n")[0]
        .splitlines()[2:]
    )
    assert len(table) > 10
    for line in table:
        names, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        cases = names.split("; ")
        far = [of["evaluation", case, 8192] for case in cases]
        speeds = [
            1 / of["training", case, 64]["ratio"] for case in cases if ("training", case, 64) in of
        ]
        times = (
            [of["evaluation", case, 1024]["ratio"] for case in cases],
            [figure["ratio"] for figure in far],
        )
        columns = [[f"{value:.2f}" for value in values] for values in (speeds, *times)] + [
            [f"{figure['mib']:.0f}" for figure in far]
        ]
        ends = [sorted(set(values), key=float) for values in columns]
        assert cells == [
            " to ".join(dict.fromkeys((distinct[0], distinct[-1]))) if distinct else ""
            for distinct in ends
        ], names


def test_the_table_of_trainings_beside_transformers_is_that_of_the_reported_benchmark():
    figures = json.loads((ROOT / "results/reported/benchmark/benchmark.json").read_text())[
        "figures"
    ]
    of = {
        (figure["kind"], figure["length"], figure["case"] == "rope"): figure for figure in figures
    }
    table = BENCHMARK.partition("| times as fast |")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(table) == 3
    for line in table:
        named, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        kind = f"trained {named.partition(' ')[0].replace(',', '')}"
        ratios = [f"{of[kind, length, False]['ratio']:.2f}" for length in (64, 256, 512)]
        assert cells == [
            *ratios,
            "; ".join(f"{of[kind, 512, is_ours]['mib']:.0f}" for is_ours in (True, False)),
        ]


def test_every_choice_script_room_and_folder_stands_in_its_table():
    methods = {name for group in METHODS for name in choices(group)}
    section = TEXT["configs/README.md"].partition("\n## Methods\n")[2].partition("\n### ")[0]
    assert methods <= set(re.findall(r"`(\w+)`", section))
    assert named("configs/README.md", "## Experiments") == set(choices("experiment")) - {"none"}
    assert named("configs/README.md", "## Model") == {*choices("model"), *choices("train")}
    assert named("configs/README.md", "## Fine-tuning") == set(choices("finetune"))
    assert named("configs/README.md", "## Data") >= set(choices("data"))
    assert named("configs/README.md", "## Launchers") >= set(choices("hydra/launcher"))
    scripts = {
        path.name for path in (ROOT / "scripts").iterdir() if path.suffix in (".py", ".ipynb")
    }
    assert scripts == named("scripts/README.md", "# scripts", column=1)
    assert list_of_scripts() == [(command.group, f"{command.name}.py") for command in COMMANDS], (
        "scripts/README.md lists commands as posbench --help does"
    )
    folders = {
        path.name
        for path in (ROOT / "tests").iterdir()
        if path.is_dir() and any(path.rglob("*.py"))
    }
    assert folders == named("tests/README.md", "## Folders")
    rooms = {
        path.parent.relative_to(ROOT / "posbench").as_posix()
        for path in (ROOT / "posbench").rglob("*.py")
    } - {".", "tools/request"}
    page = TEXT["posbench/README.md"]
    assert rooms <= set(re.findall(r"\[([\w/]+)\]\(\1\)", page))


def test_the_readme_is_one_page_and_counts_what_there_is():
    lines = TEXT["README.md"].splitlines()
    assert len(lines) <= 200 and max(map(len, lines)) <= 120
    counts = re.search(
        r"(\d+) encodings, (\d+) extensions and (\d+) attention scales", TEXT["README.md"]
    ).groups()
    assert [int(number) for number in counts] == [len(choices(group)) for group in METHODS]


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.S), re.M
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", TEXT)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", TEXT[page]):
        path, _, anchor = link.partition("#")
        if not path.startswith(("http:", "https:")):
            target = (ROOT / page).parent / path if path else ROOT / page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


SHOWN = {*re.findall(r"^python scripts/(.*)$", "\n".join(TEXT.values()), re.M)}
INLINE = {
    " ".join(words.split())
    for text in TEXT.values()
    for words in re.findall(r"`python\s+scripts/([^`.]+\.py\s[^`]*)`", text)
    if "..." not in words
}


@functools.cache
def composer_of(command: str) -> Composer:
    """The composer of configs/COMMAND.yaml, which composes part by part, as a sweep does."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return Composer(command)


@pytest.mark.parametrize("command", sorted(SHOWN | INLINE))
def test_every_command_composes(command):
    script, *words = shlex.split(command.replace("=NAME", "=demo").split(" && ")[0])
    name = script.removesuffix(".py")
    overrides = [word for word in words if "=" in word]
    if "--config-dir" in words:
        pytest.skip("the example of a user's own method, run by test_cli")
    if name in BY_HYDRA:
        if "-m" in words:
            overrides = [
                re.split(r",(?![^[]*\])", override)[0] for override in overrides
            ]  # not at the commas of a list
        composer_of(name).values([word for word in overrides if not word.startswith("hydra")])
    elif name == "explain":
        assert read_changes(words[1:]).typed_words or len(words) == 1
    elif name == "plot":
        folders = {word for word in words if "=" not in word} - {"results/runs"}
        assert all((ROOT / folder).exists() for folder in folders)
        assert {word.partition("=")[0] for word in overrides if "labels." not in word} <= {
            *OPTION_NAMES,
            "format",
            "out",
            *COLUMNS,
        }
    else:
        kind = f"{name} {words[0]}" if name == "runs" else name
        options = OPTIONS.get(kind, {"out": ""})
        # Other words of these are folders, CSVs, experiments and lines.
        named = overrides if name in ("explore", "bundle", "compare") else words
        assert {word.partition("=")[0] for word in named} <= {
            *options,
            *bundle.BUNDLE_OPTIONS,
            "list",
            "gc",
        }


def test_tab_completes_choices():
    assert 'eval "$(python scripts/run.py -sc install=bash)"' in TEXT["scripts/README.md"]
    typed = {**os.environ, "COMP_LINE": "python scripts/run.py encoding=ro", "COMP_POINT": "33"}
    query = [sys.executable, str(ROOT / "scripts" / "run.py"), "-sc", "query=bash"]
    assert subprocess.run(
        query, env=typed, capture_output=True, text=True, check=True
    ).stdout.split() == ["encoding=rope"]


def test_the_lines_for_a_notebook_run():
    """Those without a run; tests/cli/test_notebook.py has the rest."""
    section = TEXT["README.md"].partition("\n## In a notebook\n")[2]
    lines = (
        re.search(r"```python\n(.*?)run = posbench.load", section, re.S)[1]
        .replace('"results/', f'"{ROOT}/results/')
        .strip()
    )
    *statements, last = lines.splitlines()
    scope: dict = {}
    exec("\n".join(statements), scope)
    table = eval(last, scope)
    with (ROOT / "results" / "reported" / "demo" / "curve.csv").open() as file:
        points = [
            row
            for row in csv.DictReader(file)
            if (row["encoding"], row["extension"], row["scale_attention"])
            == ("rope", "ntk", "none")
        ]
    assert (
        table.loc["rope", "ntk", "none"].to_dict()
        == {int(row["length"]): float(row["nll"]) for row in points}
        and len(points) == 5
    )
    assert len(table) == 12


PASTED = [
    *PAGES,
    *CONFIGS.glob("*.yaml"),
    *CONFIGS.glob("*/*.yaml"),
    *(ROOT / "scripts").glob("*.py"),
]


@pytest.mark.parametrize("path", PASTED, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_can_be_pasted_into_zsh(path):
    """Which takes brackets for a pattern, and on a command line no # for the beginning of a
    comment.
    """
    text = path.read_text()
    commands = re.sub(r"```python.*?```", "", text, flags=re.S)
    commands = re.sub(r"<!-- registered -->.*<!-- end of registered -->", "", commands, flags=re.S)
    assert not re.findall(r"(?<!['\w.@])[a-z_][\w.@]*=\[", commands)
    if path.suffix == ".md":
        assert not re.findall(r"^(?:python scripts/|make ).* # .*$", text, re.M)


def test_the_numbers_of_the_default_text_are_those_of_the_wheels(tmp_path):
    """1,356 and 642 files: what configs/README.md says of pysource, counted from the wheels'
    records.
    """
    from posbench.data.sources import make_source

    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        from omegaconf import OmegaConf

        data = OmegaConf.to_container(compose("run").data)
    counted = {
        split: [text for _, text in make_source(data, tmp_path).documents(split)]
        for split in ("train", "test")
    }
    page = TEXT["configs/README.md"]
    numbers = re.search(
        r"sympy\s+\(([\d,]+)\s+files,\s+([\d.]+)\s+MB\).*networkx\s+and\s+mpmath\s+\(([\d,]+)\s+files,\s+([\d.]+)\s+MB\)",
        page,
        re.S,
    ).groups()
    for split, files, size in (("train", *numbers[:2]), ("test", *numbers[2:])):
        assert len(counted[split]) == int(files.replace(",", ""))
        assert sum(len(text.encode()) for text in counted[split]) / 1e6 == pytest.approx(
            float(size), abs=0.06
        )
