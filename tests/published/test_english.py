"""Docstrings read as plain English: first a noun phrase or an imperative, as one sentence in one
line, in ASCII.
"""

import ast
import re
from collections.abc import Iterator

import pytest
from conftest import CONFIGS

ROOT = CONFIGS.parent
FILES = sorted(
    path.relative_to(ROOT)
    for folder in ("posbench", "scripts")
    for path in (ROOT / folder).rglob("*.py")
)
ROOMS = sorted({path.parent.as_posix() for path in FILES})
QUESTIONS = {"What", "How", "Whether", "Where", "Which", "Why", "Who", "When"}
EXAMPLE = re.compile(
    r": python scripts/\w+\.py.*"
)  # a command line may end the summary of a script
Defined = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def definitions(
    node: ast.AST, name: str, public: bool = True
) -> Iterator[tuple[str, Defined, bool]]:
    """(name, node, True if it needs a docstring) of all classes and functions.

    A method needs none where its base class documents it. Neither does anything private or inside
    of a function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Defined):
            shown = public and not child.name.startswith("_")
            yield f"{name}.{child.name}", child, shown and not isinstance(node, ast.ClassDef)
            yield from definitions(
                child, f"{name}.{child.name}", shown and isinstance(child, ast.ClassDef)
            )
        else:
            yield from definitions(child, name, public)


def fault(docstring: str) -> str:
    """The first rule that a docstring breaks, "" for none."""
    line = EXAMPLE.sub(".", " ".join(docstring.split("\n\n")[0].splitlines()[:4]))
    if re.match(r"[A-Za-z]*", line)[0] in QUESTIONS:
        return "begins with a question word"
    if not docstring.isascii():
        return "is not ASCII"
    return "" if re.search(r"[.:]($|\s)", line) else "has no sentence that ends in its first lines"


def faults(source: str, name: str) -> list[str]:
    """What is wrong with the docstrings and comments of a module."""
    tree = ast.parse(source)
    problems = [] if source.isascii() else [f"{name} is not ASCII"]
    for of, node, needed in [(name, tree, bool(tree.body)), *definitions(tree, name)]:
        docstring = ast.get_docstring(node)
        wrong = fault(docstring) if docstring else "has no docstring" if needed else ""
        problems += [f"{of} {wrong}"] if wrong else []
    return problems


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_begin_with_a_sentence(room):
    files = [path for path in FILES if path.parent.as_posix() == room]
    assert not [
        wrong
        for path in files
        for wrong in faults((ROOT / path).read_text(encoding="utf-8"), path.as_posix())
    ]


def test_faults_are_found():
    assert faults('"""What a module holds."""', "a.py") == ["a.py begins with a question word"]
    assert faults('"""A module\nof two lines"""', "a.py") == [
        "a.py has no sentence that ends in its first lines"
    ]
    assert faults('"""A module."""\nclass A:\n    pass', "a.py") == ["a.py.A has no docstring"]
    assert not faults('"""Run a job: python scripts/run.py encoding=rope"""', "a.py")
