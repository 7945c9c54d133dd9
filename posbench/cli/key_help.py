"""Explanation of a key or a choice of the configuration, from the comments of the yamls in configs/: posbench help evaluate.windows"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from posbench.common.errors import ConfigError, did_you_mean
from posbench.common.layout import wrapped
from posbench.config.names import CONFIGS, PACKAGE, SCRIPTS

LINE = re.compile(r"( *)(?:- )?([A-Za-z_]\w*):(?: +((?:[^#]|(?<! )#)*?))?(?: +# ?(.*))?$")
SKIPPED = ("hydra", "defaults")  # parts for Hydra, and the folder of its launchers
WIDE = 100  # columns


@dataclass(frozen=True)
class Described:
    """Key of a yaml with its default and its comment. `choice` is the yaml in its group that has it, None in configs/run.yaml."""

    key: str
    default: str
    comment: str
    choice: str | None = None

    def __str__(self) -> str:
        where = f"   ({self.choice})" if self.choice else ""
        said = wrapped(self.comment, "    ", WIDE)
        return f"{self.key} = {self.default}{where}" + (f"\n{said}" if said else "")


def explain_words(words: list[str]) -> str:
    """Text on keys (evaluate.windows), groups, choices (extension=yarn) and scripts (advise). Raises ConfigError for another word."""
    return "\n\n".join(map(_explained, words))


def _explained(word: str) -> str:
    groups = {folder.name: folder for folder in sorted(CONFIGS.iterdir()) if folder.is_dir() and folder.name not in SKIPPED}
    group, _, name = word.partition("=")
    keyed = [(name, folder) for name, folder in groups.items() if name != "experiment"]  # whose keys are those of the other groups
    known = [*(one for name, folder in keyed for one in _group(name, folder)), *_yaml(CONFIGS / "run.yaml", "", None)]
    if group in groups and not name:
        files = {file.stem: file for file in sorted(groups[group].glob("[!_]*.yaml"))}
        lines = [f"  {group}={stem:24} {_about(file)}".rstrip() for stem, file in files.items()]
        return "\n".join([f"{group}: one of", *lines, f"posbench help {group}=NAME says more of one."])
    found = [one for one in known if (one.choice == word if name else word in (one.key, one.key.rpartition(".")[2]))]
    if group in groups and name and (groups[group] / f"{name}.yaml").is_file():
        return "\n".join([f"{word}: {_about(groups[group] / f'{name}.yaml', whole=True)}".rstrip(": "), *map(str, found)])
    if not found and (script := CONFIGS / f"{word}.yaml").is_file():
        return "\n".join([_about(script, whole=True), *map(str, _yaml(script, "", None))])
    if not found and (script := SCRIPTS / f"{word}.py").is_file():
        return f"{docstring_line(script)}\nposbench {word} --help says more."
    if not found:
        choices = (f"{group}={file.stem}" for group, folder in groups.items() for file in folder.glob("[!_]*.yaml"))
        near = did_you_mean(word, [*groups, *choices, *(one.key for one in known)])
        raise ConfigError(f"{word} is no key and no choice{near}: posbench help extension lists choices, posbench run --cfg job all keys.")
    # One explanation for all choices that share it.
    shared: dict[tuple[str, str], list[Described]] = {}
    for one in sorted(found, key=lambda one: one.key != word):
        shared.setdefault((one.key, one.comment), []).append(one)
    merged = [
        Described(key, each[0].default, said, ", ".join(one.choice for one in each if one.choice)) for (key, said), each in shared.items()
    ]
    return "\n".join(map(str, merged))


def _group(group: str, folder: Path) -> Iterator[Described]:
    for file in sorted(folder.glob("*.yaml")):
        yield from _yaml(file, f"{group}.", None if file.stem.startswith("_") or file.stem == "default" else f"{group}={file.stem}")


def _yaml(file: Path, prefix: str, choice: str | None) -> Iterator[Described]:
    """Keys of a yaml with their comments: those behind a value, and the lines above it."""
    above: list[str] = []
    parents: list[tuple[int, str]] = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines()):
        if line.lstrip().startswith("#"):
            above.append(line.strip().lstrip("# "))
            continue
        found = LINE.fullmatch(line)
        if found and "- " not in found[0].partition(":")[0]:
            indent, key, value, behind = len(found[1]), found[2], (found[3] or "").strip(), found[4]
            parents = [one for one in parents if one[0] < indent]
            dotted = ".".join([*(name for _, name in parents), key])
            if not value:
                parents.append((indent, key))
            top = dotted.split(".")[0]
            if top not in SKIPPED and key != "_target_" and (value or behind):
                head = above if number > len(above) else []  # the first lines of a file are about all of it
                yield Described(f"{prefix}{dotted}", value or "...", " ".join([*head, *([behind] if behind else [])]), choice)
        above = []


def _about(file: Path, whole: bool = False) -> str:
    """First sentence about a choice, or all lines: of its yaml's comment, else the first line of the file of its class."""
    text = file.read_text(encoding="utf-8")
    if text.startswith("#"):
        lines = [line.removeprefix("#").removeprefix(" ") for line in takewhile(lambda line: line.startswith("#"), text.splitlines())]
        return "\n".join(lines) if whole else re.split(r"(?<=\.) |: python ", " ".join(lines))[0]
    target = re.search(r"^_target_: posbench\.([\w.]+)\.\w+$", text, re.MULTILINE)
    if target is None:
        return ""
    return docstring_line(PACKAGE.joinpath(*target[1].split(".")).with_suffix(".py"))


def docstring_line(file: Path) -> str:
    """First line of the docstring of a Python file, "" without one."""
    return (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").partition("\n")[0]
