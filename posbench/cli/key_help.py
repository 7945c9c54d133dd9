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
from posbench.config.names import CONFIGS_FOLDER, PACKAGE_FOLDER, SCRIPTS_FOLDER

YAML_LINE = re.compile(
    r"(?P<indent> *)(?:- )?(?P<key>[A-Za-z_]\w*):"
    r"(?: +(?P<value>(?:[^#]|(?<! )#)*?))?(?: +# ?(?P<comment>.*))?$"
)
# between two sentences
SENTENCE_END = re.compile(r"(?<!et al\.)(?<!e\.g\.)(?<!i\.e\.)(?<!vs\.)(?<=\.) (?![a-z])|: python ")
# at a line of the comment that is a command
COMMAND_LINE = re.compile(r"\n(?:python|make|pip) ")
DEFAULT_CHOICE = re.compile(r"  - (\w+): (\w+)")  # a choice in the defaults of configs/run.yaml
SKIPPED_KEYS = ("hydra", "defaults")  # parts for Hydra, and the folder of its launchers
TEXT_WIDTH = 100  # columns


@dataclass(frozen=True)
class KeyDescription:
    """Key of a yaml with its default and its comment."""

    key: str
    default: str
    comment: str
    choice: str | None = None  # extension=yarn that has it; None: all choices of its group


def explain_words(words: list[str], folders: Sequence[Path] = (CONFIGS_FOLDER,)) -> str:
    """Text on keys (evaluate.windows), groups, choices (extension=yarn) and scripts (advise).

    Yamls are those of `folders`, of which the first is posbench's own. Raises ConfigError for
    another word."""
    return "\n\n".join(_explain(word, folders) for word in words)


def keys_and_folders(words: list[str]) -> tuple[list[str], list[Path]]:
    """Words without --config-dir DIR, and the folders of yamls: ["seed"], [configs, DIR].

    Raises ConfigError for a DIR that is not there."""
    keys = []
    folders = [CONFIGS_FOLDER]
    remaining = iter(words)
    for word in remaining:
        flag, equals, place = word.partition("=")
        if flag not in ("--config-dir", "-cd"):
            keys.append(word)
            continue
        typed = place if equals else next(remaining, "")
        if not Path(typed).is_dir() or not typed:  # Path("") is the current folder
            wrong = f"{typed} is not a" if typed else "names no"
            raise ConfigError(f"--config-dir {wrong} folder: name the one that holds your yamls.")
        folders.append(Path(typed))
    return keys, folders


def _explain(word: str, folders: Sequence[Path]) -> str:
    """Text on a group, a choice (encoding=rope), a key, a yaml of configs/ or a command.

    Raises ConfigError for a word that is none of them.
    """
    groups = _yamls_of_groups(folders)
    group, equals, name = word.partition("=")
    described = list(_described_keys(groups))
    if group in groups and not name:
        return _explain_group(group, groups[group], folders)
    if equals:
        if name in groups.get(group, {}):
            entries = [entry for entry in described if entry.choice == word]
            return _explain_yaml(f"{word}: ", groups[group][name], folders, entries)
    else:
        entries = [
            entry for entry in described if word in (entry.key, entry.key.rpartition(".")[2])
        ]
        if entries:
            return _explain_key(word, entries)
    yaml = CONFIGS_FOLDER / f"{word}.yaml"
    if yaml.is_file():
        entries = list(_read_yaml(yaml, prefix="", choice=None))
        return _explain_yaml(title="", file=yaml, folders=folders, entries=entries)
    script = SCRIPTS_FOLDER / f"{word}.py"
    if script.is_file():
        return f"{docstring_line(script)}\nposbench {word} --help says more."
    choices = [
        f"{group}={stem}" for group, files in groups.items() for stem in _choice_names(files)
    ]
    near = did_you_mean(word, [*groups, *choices, *(entry.key for entry in described)])
    raise ConfigError(
        f"{word} is no key and no choice{near}: posbench help extension lists choices, posbench run"
        " --cfg job all keys."
    )


def _explain_group(group: str, files: dict[str, Path], folders: Sequence[Path]) -> str:
    """Text on a group: its choices, each with the first sentence about it."""
    lines = [f"{group}: one of"]
    for name in _choice_names(files):
        about = COMMAND_LINE.split(_beginning_of_yaml(files[name], folders))[0].replace("\n", " ")
        lines.append(f"  {group}={name:24} {SENTENCE_END.split(about)[0]}".rstrip())
    return "\n".join([*lines, f"posbench help {group}=NAME says more of one."])


def _explain_yaml(
    title: str, file: Path, folders: Sequence[Path], entries: list[KeyDescription]
) -> str:
    """Text on a yaml and its keys, below each other."""
    about = f"{title}{_beginning_of_yaml(file, folders)}".rstrip(": ")
    return "\n".join([about, *(_text_on_key([entry]) for entry in entries)])


def _explain_key(word: str, entries: list[KeyDescription]) -> str:
    """Text on the entries of a key, or of all keys that end with a word.

    That very key is first, with what a plain `posbench run` has; entries of one comment are one."""

    def order(entry: KeyDescription) -> tuple[bool, bool]:
        return entry.key != word, not _is_default(entry, entries)

    shared: dict[tuple[str, str], list[KeyDescription]] = {}  # {(key, comment): entries}
    for entry in sorted(entries, key=order):
        shared.setdefault((entry.key, entry.comment), []).append(entry)
    return "\n".join(_text_on_key(group) for group in shared.values())


def _is_default(entry: KeyDescription, entries: list[KeyDescription]) -> bool:
    """True if, of several defaults that choices give a key, this is that of a command that chooses
    nothing. It is shown first.
    """
    group = entry.key.partition(".")[0]
    run_yaml = (CONFIGS_FOLDER / "run.yaml").read_text(encoding="utf-8")
    choices = dict(DEFAULT_CHOICE.findall(run_yaml))  # {group: its choice}
    if group not in choices:
        # A key outside all groups has one default, and a group that run.yaml does not choose none.
        return False
    chosen = f"{group}={choices[group]}"
    if entry.choice is None:  # of all choices, unless the chosen one has another default
        return not any(other.key == entry.key and other.choice == chosen for other in entries)
    return entry.choice == chosen


def _text_on_key(entries: list[KeyDescription]) -> str:
    """Text on entries of one key and comment, with a line for each default.

    >>> entry = KeyDescription("model.d_model", "128", "channels", "model=small")
    >>> print(_text_on_key([entry]))
    model.d_model = 128   (model=small)
        channels
    """
    choices: dict[str, list[str]] = {}  # {default: choices that have it}
    for entry in entries:
        names = choices.setdefault(entry.default, [])
        if entry.choice:
            names.append(entry.choice)
    lines = []
    for default, names in choices.items():
        owners = f"   ({', '.join(names)})" if names else ""
        lines.append(f"{entries[0].key} = {default}{owners}")
    if entries[0].comment:
        lines.append(wrapped(entries[0].comment, "    ", TEXT_WIDTH))
    return "\n".join(lines)


def _yamls_of_groups(folders: Sequence[Path]) -> dict[str, dict[str, Path]]:
    """{group: {name: yaml}} of all folders. A user's yaml does not replace one of posbench, which
    Hydra finds first.
    """
    groups: dict[str, dict[str, Path]] = {}
    for folder in folders:
        for path in sorted(folder.glob("*/*.yaml")):
            if path.parent.name not in SKIPPED_KEYS:
                groups.setdefault(path.parent.name, {}).setdefault(path.stem, path)
    return groups


def _choice_names(files: dict[str, Path]) -> list[str]:
    """Names of a group's choices. A yaml whose name begins with _ is a part of others."""
    return [name for name in files if not name.startswith("_")]


def _described_keys(groups: dict[str, dict[str, Path]]) -> Iterator[KeyDescription]:
    """Keys of run.yaml and of all groups' yamls; those of default and _NAME have no choice."""
    yield from _read_yaml(CONFIGS_FOLDER / "run.yaml", prefix="", choice=None)
    for group, files in groups.items():
        if group == "experiment":  # whose keys are those of the other groups
            continue
        for name, file in files.items():
            shared = name.startswith("_") or name == "default"
            yield from _read_yaml(file, f"{group}.", None if shared else f"{group}={name}")


def _read_yaml(file: Path, prefix: str, choice: str | None) -> Iterator[KeyDescription]:
    """Keys of a yaml with their comments: those behind a value, and the lines above it."""
    above: list[str] = []  # comment lines
    parents: list[tuple[int, str]] = []  # (indent, key), the outermost first
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines()):
        if line.lstrip().startswith("#"):
            above.append(line.strip().lstrip("# "))
            continue
        begins_file = number == len(above)  # comments that are about all of the file
        comments = [] if begins_file else above
        above = []
        match = YAML_LINE.fullmatch(line)
        if not match or "- " in line.partition(":")[0]:  # an entry of a list has no key of its own
            continue
        indent = len(match["indent"])
        key = match["key"]
        value = (match["value"] or "").strip()
        parents = [(column, parent) for column, parent in parents if column < indent]
        dotted = ".".join([*(parent for _, parent in parents), key])
        if not value:
            parents.append((indent, key))
        if match["comment"]:
            comments = [*comments, match["comment"]]
        skipped = dotted.partition(".")[0] in SKIPPED_KEYS or key == "_target_"
        if not skipped and (value or comments):
            yield KeyDescription(f"{prefix}{dotted}", value or "...", " ".join(comments), choice)


def _beginning_of_yaml(file: Path, folders: Sequence[Path]) -> str:
    """Comment that a yaml begins with, else the first sentence on the class that it names; ""
    without either.
    """
    text = file.read_text(encoding="utf-8")
    if text.startswith("#"):
        comment = takewhile(lambda line: line.startswith("#"), text.splitlines())
        return "\n".join(line.removeprefix("#").removeprefix(" ") for line in comment)
    target = re.search(r"^_target_: ([\w.]+)\.\w+ *(?:#.*)?$", text, re.MULTILINE)
    if target is None:
        return ""
    module = Path(*target[1].split(".")).with_suffix(".py")
    _, *users_folders = folders  # the first is posbench's own, whose classes are in the package
    for folder in (PACKAGE_FOLDER.parent, *users_folders):  # a user's lie beside the yamls
        if (folder / module).is_file():
            return docstring_line(folder / module)
    return ""


def docstring_line(file: Path) -> str:
    """First sentence of the docstring of a Python file, "" without one."""
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return SENTENCE_END.split(paragraph)[0]
