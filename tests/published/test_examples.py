"""The examples in docstrings (>>> ...) give what they show."""

import doctest
import importlib

import pytest
from conftest import CONFIGS

ROOT = CONFIGS.parent
MODULES = [
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for file in sorted((ROOT / "posbench").rglob("*.py"))
    if ">>> " in file.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_show(name):
    module = importlib.import_module(name)  # alone: what needs no torch stays without it
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted and not result.failed, "the output above says which"


def test_there_are_examples():
    assert len(MODULES) >= 5
