"""The rooms of posbench/ and their order, as posbench/README.md states them.

A room imports only what stands before it, its files do not import each other in a circle, and the
light rooms never load torch."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CONFIGS

ROOT = CONFIGS.parent / "posbench"
_, _, RULES = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Layers\n")
LAYERS = [line.split(", ") for line in re.search(r"```\n(.*?)```", RULES, re.S)[1].splitlines()]
LAYER = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}
TORCH_FREE = re.findall(r"`([\w/]+)`", RULES.rpartition("```")[2].partition("load no torch")[0])
TRAINS = {  # which need torch
    "posbench.sweep.job_process",
    "posbench.sweep.train_job",
    "posbench.sweep.evaluate_cell",
    "posbench.sweep.losses_by_length",
    "posbench.sweep.take_checkpoint",
    "posbench.sweep.check_checkpoint",
}


def rooms() -> set[str]:
    """Folders of posbench/ and of posbench/tools/ that hold code: config, tools, tools/advice."""
    folders = [
        path
        for path in [*ROOT.iterdir(), *(ROOT / "tools").iterdir()]
        if path.is_dir() and any(path.glob("*.py"))
    ]
    return {path.relative_to(ROOT).as_posix() for path in folders}


def room_of(module: str) -> str:
    """Room of a module: posbench.report.figures.style is of report, posbench.tools.advice.plan of
    tools/advice.
    """
    folders = module.split(".")[1:3]
    inner = "/".join(folders)
    return inner if inner in LAYER else folders[0]


def files_of(room: str) -> list[Path]:
    files = sorted((ROOT / room).glob("*.py") if room == "tools" else (ROOT / room).rglob("*.py"))
    return [file for file in files if file.name != "__main__.py"]


def imported(file: Path) -> set[str]:
    """The modules of posbench that a file names in any import, also inside functions and for type
    checkers alone.
    """
    modules = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file} imports relatively"
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in modules if name.startswith("posbench.")}


def upward(room: str, names: set[str]) -> list[str]:
    """The modules among `names` that stand in another room which is not below `room`."""
    others = ((name, room_of(name)) for name in names)
    return sorted(
        name
        for name, other in others
        if other in LAYER and other != room and LAYER[other] >= LAYER[room]
    )


def test_every_room_has_its_layer():
    assert rooms() == set(LAYER)
    inner = [path for path in ROOT.rglob("*") if path.is_dir() and any(path.glob("*.py"))]
    assert len(inner) <= 50
    assert len(list(ROOT.glob("*.py"))) <= 3
    assert len(TORCH_FREE) >= 14 and set(TORCH_FREE) < set(LAYER)


@pytest.mark.parametrize("room", sorted(LAYER))
def test_a_room_imports_only_what_stands_before_it(room):
    wrong = {
        file.relative_to(ROOT).as_posix(): upward(room, imported(file)) for file in files_of(room)
    }
    assert not {file: names for file, names in wrong.items() if names}


def test_the_map_says_where_things_are_made():
    rows = re.findall(
        r"^\| .* \| \[.*\]\((.*\.py)\) \| `(\w+)` \|$",
        (ROOT / "README.md").read_text(encoding="utf-8"),
        re.M,
    )
    lost = [
        (file, name)
        for file, name in rows
        if not re.search(rf"^(?:def |class )?{name}\b", (ROOT / file).read_text("utf-8"), re.M)
    ]
    assert len(rows) >= 20 and not lost


def test_an_arrow_upwards_is_found():
    assert upward(
        "model", {"posbench.training.loop.fit", "posbench.position.plan.Plan", "posbench.model.gpt"}
    ) == ["posbench.training.loop.fit"]
    assert upward("training", {"posbench.evaluation.scorer"}) == ["posbench.evaluation.scorer"]


def circle(imports: dict[str, set[str]]) -> set[str]:
    """Modules that import one another in a circle, and those that import them: what is left once
    nobody else's imports are left.
    """
    left = dict(imports)
    while free := [name for name, names in left.items() if not names & left.keys()]:
        for name in free:
            del left[name]
    return set(left)


@pytest.mark.parametrize("room", sorted(LAYER))
def test_no_files_of_a_room_import_each_other_in_a_circle(room):
    files = {
        ".".join(("posbench", *file.relative_to(ROOT).with_suffix("").parts)): file
        for file in files_of(room)
    }
    imports = {name: imported(file) for name, file in files.items()}
    assert not circle(
        {
            name: {part for module in names for part in (module, module.rpartition(".")[0])}
            for name, names in imports.items()
        }
    )


def test_a_circle_is_found():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == {"a", "b", "c"}


def test_one_file_alone_asks_which_hooks_a_method_defines():
    asking = re.compile(
        r"\boverrides\(|getattr\((type\(|cls\b)|\bis not (Encoding|Extension|ScaleAttention)\."
    )
    assert [
        file.name for file in ROOT.rglob("*.py") if asking.search(file.read_text(encoding="utf-8"))
    ] == ["interfaces.py"]


def test_light_rooms_load_no_torch():
    modules = [
        ".".join(("posbench", *file.relative_to(ROOT).with_suffix("").parts))
        for room in TORCH_FREE
        for file in files_of(room)
    ]
    modules = [name for name in modules if name not in TRAINS]
    code = (
        f"import importlib, sys\nfor name in {modules}:\n    importlib.import_module(name)\n   "
        " assert 'torch' not in sys.modules, name"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
