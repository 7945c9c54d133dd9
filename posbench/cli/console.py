"""The console command: `posbench NAME ...` runs scripts/NAME.py, from any working directory.
Nothing heavy is imported here.
"""

import os
import runpy
import sys

from posbench import __version__
from posbench.cli.commands import COMMANDS, GROUPS, find_command
from posbench.cli.key_help import docstring_line, explain_words, keys_and_folders
from posbench.cli.start import run_command
from posbench.common.errors import ConfigError, did_you_mean
from posbench.config.command_line import run_for_exit_code
from posbench.config.names import SCRIPTS_FOLDER
from posbench.config.peer_words import COMMANDS_ELSEWHERE


def main() -> None:
    """Run the command that the first word names with the words behind it; without one, list all."""
    name, *words = sys.argv[1:] or ["--help"]
    code = run_for_exit_code(lambda: _run(name, words))
    if code:
        sys.exit(code)


def _run(name: str, words: list[str]) -> None:
    """Run a command by its name, or print the help, the version or what a shell completes (-sc)."""
    names = [command.name for command in COMMANDS]
    if name == "help" and words:
        keys, folders = keys_and_folders(words)
        print(explain_words(keys, folders) if keys else _help())
    elif name in ("-h", "--help", "help"):
        print(_help())
    elif name == "--version":
        print(f"posbench {__version__}")
    elif name == "-sc":
        _complete(names)
    elif name in names:
        sys.argv = [str(SCRIPTS_FOLDER / f"{name}.py"), *words]
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        hint = did_you_mean(name, names, COMMANDS_ELSEWHERE.get(name))
        raise ConfigError(f"{name} is not a command{hint}: posbench --help lists all of them.")


def _complete(names: list[str]) -> None:
    """Print what a shell asks for.

    That is the names of commands for the first word, the words that a command takes behind its
    name, or with -sc install=bash the function that the shell is to run."""
    # A shell sets COMP_LINE to what is typed so far, but not for -sc install=bash, to which any
    # command with a yaml has the same answer.
    typed = os.environ.get("COMP_LINE", "posbench run ").split(" ")[1:]
    if len(typed) == 1:
        print(*names)
        return
    command = find_command(typed[0])
    if command and command.yaml:
        # Hydra takes the first word for the program, so the command's name is left out.
        os.environ["COMP_LINE"] = " ".join(["posbench", *typed[1:]])
        run_command(command.name)  # Hydra answers it


def _help() -> str:
    """Text of posbench --help: how a command is called, and the list of all."""
    return (
        "posbench COMMAND ... is the same as python scripts/COMMAND.py ... Paths are relative to"
        f" the working directory.\n{''.join(map(_group_help, GROUPS))}\nposbench COMMAND --help"
        " explains a command. A first example: posbench demo\nposbench help KEY explains a key or"
        " a choice: posbench help evaluate.windows extension=yarn"
    )


def _group_help(group: str) -> str:
    """A heading, and below it a line for each command of the group."""
    width = max(len(command.name) for command in COMMANDS)
    lines = [f"\n{group.capitalize()}\n"]
    for command in COMMANDS:
        if command.group == group:
            summary = docstring_line(SCRIPTS_FOLDER / f"{command.name}.py")
            summary = summary.partition(": python scripts/")[0].rstrip(".")  # without its call
            lines.append(f"  {command.name:{width}}  {summary}\n")
    return "".join(lines)
