"""Explanation of a key or a choice of the configuration, from the comments of the yamls in
configs/: posbench help evaluate.windows
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from posbench.common.errors import ConfigError, did_you_mean
from posbench.common.layout import wrapped
from posbench.config.names import CONFIGS, PACKAGE, SCRIPTS

LINE = re.compile(r"( *)(?:- )?([A-Za-z_]\w*):(?: +((?:[^#]|(?<! )#)*?))?(?: +# ?(.*))?$")
SENTENCE = re.compile(
    r"(?<!et al\.)(?<!e\.g\.)(?<!i\.e\.)(?<!vs\.)(?<=\.) (?![a-z])|: python "
)  # between two sentences
CHOSEN = re.compile(r"  - (\w+): (\w+)")  # a choice in the defaults of configs/run.yaml
SKIPPED = ("hydra", "defaults")  # parts for Hydra, and the folder of its launchers
WIDE = 100  # columns


@dataclass(frozen=True)
class Described:
    """Key of a yaml with its default and its comment. `choice` is the yaml in its group that has
    it, None where all choices share it.
    """

    key: str
    default: str
    comment: str
    choice: str | None = None


def explain_words(words: list[str], folders: Sequence[Path] = (CONFIGS,)) -> str:
    """Text on keys (evaluate.windows), groups, choices (extension=yarn) and scripts (advise).

    Yamls are those of `folders`, of which the first is posbench's own. Raises ConfigError for
    another word."""
    return "\n\n".join(_explained(word, folders) for word in words)


def own_folders(words: list[str]) -> tuple[list[str], list[Path]]:
    """Words without --config-dir DIR, and the folders of yamls: ["seed"], [configs, DIR]. Raises
    ConfigError for one that is not there.
    """
    rest, folders = [], [CONFIGS]
    remaining = iter(words)
    for word in remaining:
        flag, equals, place = word.partition("=")
        if flag not in ("--config-dir", "-cd"):
            rest.append(word)
            continue
        folder = Path(place if equals else next(remaining, ""))
        if not folder.is_dir() or folder == Path():
            raise ConfigError(
                f"--config-dir {folder} is not a folder: name the one that holds your yamls."
            )
        folders.append(folder)
    return rest, folders


def _explained(word: str, folders: Sequence[Path]) -> str:
    groups = _groups(folders)
    group, _, name = word.partition("=")
    known = list(_yaml(CONFIGS / "run.yaml", "", None))
    for group_name, files in groups.items():
        if group_name != "experiment":  # whose keys are those of the other groups
            known += _group(group_name, files)
    chosen = {
        key: f"{key}={choice}"
        for key, choice in CHOSEN.findall((CONFIGS / "run.yaml").read_text(encoding="utf-8"))
    }
    if group in groups and not name:
        files = {stem: file for stem, file in groups[group].items() if not stem.startswith("_")}
        lines = [
            f"  {group}={stem:24} {_about(file, folders)}".rstrip() for stem, file in files.items()
        ]
        return "\n".join(
            [f"{group}: one of", *lines, f"posbench help {group}=NAME says more of one."]
        )
    if name:
        described = [entry for entry in known if entry.choice == word]
        if name in groups.get(group, {}):
            about = _about(groups[group][name], folders, whole=True)
            keys = [_text([entry], chosen) for entry in described]
            return "\n".join([f"{word}: {about}".rstrip(": "), *keys])
    else:
        described = [entry for entry in known if word in (entry.key, entry.key.rpartition(".")[2])]
    if not described and (script := CONFIGS / f"{word}.yaml").is_file():
        keys = [_text([entry], chosen) for entry in _yaml(script, "", None)]
        return "\n".join([_about(script, folders, whole=True), *keys])
    if not described and (script := SCRIPTS / f"{word}.py").is_file():
        return f"{docstring_line(script)}\nposbench {word} --help says more."
    if not described:
        choices = (
            f"{group}={stem}"
            for group, files in groups.items()
            for stem in files
            if not stem.startswith("_")
        )
        near = did_you_mean(word, [*groups, *choices, *(entry.key for entry in known)])
        raise ConfigError(
            f"{word} is no key and no choice{near}: posbench help extension lists choices, posbench"
            " run --cfg job all keys."
        )
    return _all_explained(described, word, chosen)


def _all_explained(described: list[Described], word: str, chosen: dict[str, str]) -> str:
    """Text on entries: those of the very key first, in it what a plain `posbench run` has first,
    and one for all that share a comment.
    """

    def order(entry: Described) -> tuple[bool, bool]:
        return entry.key != word, not _of_run(entry, described, chosen)

    shared: dict[tuple[str, str], list[Described]] = {}
    for entry in sorted(described, key=order):
        shared.setdefault((entry.key, entry.comment), []).append(entry)
    return "\n".join(_text(entries, chosen) for entries in shared.values())


def _of_run(entry: Described, described: list[Described], chosen: dict[str, str]) -> bool:
    """True if a command that chooses nothing has this default."""
    choice = chosen.get(entry.key.partition(".")[0])
    if entry.choice is None:
        return not any(other.key == entry.key and other.choice == choice for other in described)
    return entry.choice == choice


def _text(entries: list[Described], chosen: dict[str, str]) -> str:
    """Text on entries of one key and comment, such as "model.d_model = 128   (model=small)", a line
    for each default, and the comment.
    """
    choices: dict[str, list[str]] = {}  # of each default
    for entry in entries:
        choices.setdefault(entry.default, []).extend([entry.choice] if entry.choice else [])
    lines = []
    for default, names in choices.items():
        where = f"   ({', '.join(names)})" if names else ""
        lines.append(f"{entries[0].key} = {default}{where}")
    if comment := wrapped(entries[0].comment, "    ", WIDE):
        lines.append(comment)
    return "\n".join(lines)


def _groups(folders: Sequence[Path]) -> dict[str, dict[str, Path]]:
    """{group: {name: yaml}} of all folders. A user's yaml does not replace one of posbench, which
    Hydra finds first.
    """
    groups: dict[str, dict[str, Path]] = {}
    for folder in folders:
        for group in sorted(
            path for path in folder.iterdir() if path.is_dir() and path.name not in SKIPPED
        ):
            for file in sorted(group.glob("*.yaml")):
                groups.setdefault(group.name, {}).setdefault(file.stem, file)
    return groups


def _group(group: str, files: dict[str, Path]) -> Iterator[Described]:
    for name, file in files.items():
        yield from _yaml(
            file,
            f"{group}.",
            None if name.startswith("_") or name == "default" else f"{group}={name}",
        )


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
            head = (
                above if number > len(above) else []
            )  # the first lines of a file are about all of it
            if top not in SKIPPED and key != "_target_" and (value or behind or head):
                yield Described(
                    f"{prefix}{dotted}",
                    value or "...",
                    " ".join([*head, *([behind] if behind else [])]),
                    choice,
                )
        above = []


def _about(file: Path, folders: Sequence[Path], whole: bool = False) -> str:
    """First sentence about a choice, or all lines: of its yaml's comment, else the first sentence
    of the file of its class.
    """
    text = file.read_text(encoding="utf-8")
    if text.startswith("#"):
        lines = [
            line.removeprefix("#").removeprefix(" ")
            for line in takewhile(lambda line: line.startswith("#"), text.splitlines())
        ]
        return "\n".join(lines) if whole else SENTENCE.split(" ".join(lines))[0]
    target = re.search(r"^_target_: ([\w.]+)\.\w+ *(?:#.*)?$", text, re.MULTILINE)
    if target is None:
        return ""
    module = Path(*target[1].split(".")).with_suffix(".py")
    places = (
        folder / module for folder in (PACKAGE.parent, *folders[1:])
    )  # a user's classes lie beside the yamls
    return next((docstring_line(place) for place in places if place.is_file()), "")


def docstring_line(file: Path) -> str:
    """First sentence of the docstring of a Python file, "" without one."""
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return SENTENCE.split(paragraph)[0]
