"""The README shows what is true: its table, its commands, its example."""

from __future__ import annotations

import re
import shlex

import pytest
from conftest import CONFIGS
from hydra import compose, initialize_config_dir

ROOT = CONFIGS.parent
TEXT = (ROOT / "README.md").read_text()


def test_the_table_of_what_goes_with_what_is_todays():
    from posbench.anatomy.legality_table import judge_all, markdown

    shown = TEXT.split("<!-- end of compat -->")[0].split("<!-- compat:")[1].partition("\n")[2]
    assert shown.strip() == markdown(list(judge_all([CONFIGS], 64, [64, 1024]))).strip(), "put the output of make compat there"


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(([^)#]+)\)", TEXT))))
def test_links_lead_somewhere(path):
    assert (ROOT / path).exists()


COMMANDS = sorted(set(re.findall(r"^python scripts/(?:run|report)\.py (.*?)(?:\s{2,}#.*)?$", TEXT, re.M)))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_composes(command):
    overrides = [word for word in shlex.split(command) if "=" in word]
    if "--config-dir" in command:
        pytest.skip("the example of a user's own method, run by test_cli")
    if command.startswith("-m"):
        overrides = [override.split(",")[0] for override in overrides]
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        compose("run", overrides)


SHOWN = [
    *ROOT.glob("results/**/README.md"),
    ROOT / "README.md",
    *CONFIGS.glob("*.yaml"),
    *CONFIGS.glob("*/*.yaml"),
    *(ROOT / "scripts").glob("*.py"),
]


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_can_be_pasted_into_zsh(path):
    """Which takes brackets for a pattern, and on a command line no # for the beginning of a comment."""
    text = path.read_text()
    assert not re.findall(r"(?<!['\w.@])[a-z_][\w.@]*=\[", re.sub(r"```python.*?```", "", text, flags=re.S))
    if path.suffix == ".md":
        assert not re.findall(r"^(?:python scripts/|make ).* # .*$", text, re.M)


def test_the_numbers_of_the_default_text_are_those_of_the_wheels(tmp_path):
    """1,356 and 642 files: what the README says of pysource, counted from the wheels' records."""
    from posbench.data.sources import make_source

    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        from omegaconf import OmegaConf

        data = OmegaConf.to_container(compose("run").data)
    counted = {split: [text for _, text in make_source(data, tmp_path).documents(split)] for split in ("train", "test")}
    said = re.search(r"sympy \(([\d,]+) files, ([\d.]+) MB\).*networkx and mpmath \(([\d,]+) files, ([\d.]+) MB\)", TEXT, re.S).groups()
    for split, files, size in (("train", *said[:2]), ("test", *said[2:])):
        assert len(counted[split]) == int(files.replace(",", ""))
        assert sum(len(text.encode()) for text in counted[split]) / 1e6 == pytest.approx(float(size), abs=0.06)
