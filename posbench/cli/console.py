"""The console command: `posbench NAME ...` runs scripts/NAME.py, from any working directory.
Nothing heavy is imported here.
"""

import os
import runpy
import sys
from pathlib import Path

from posbench import __version__
from posbench.cli.commands import COMMANDS, find_command
from posbench.cli.key_help import docstring_line, explain_words, own_folders
from posbench.cli.start import run_command
from posbench.common.errors import ConfigError, did_you_mean
from posbench.config.command_line import exit_code
from posbench.config.names import SCRIPTS


def main() -> None:
    """Run the script that the first word names with the words behind it. Without a word, or with
    --help: list the commands.
    """
    name, *words = sys.argv[1:] or ["--help"]
    if code := exit_code(lambda: _run(name, words)):
        sys.exit(code)


def _run(name: str, words: list[str]) -> None:
    scripts = {command.name: SCRIPTS / f"{command.name}.py" for command in COMMANDS}
    if name == "help" and words:
        asked, folders = own_folders(words)
        print(explain_words(asked, folders) if asked else _help(scripts))
    elif name in ("-h", "--help", "help"):
        print(_help(scripts))
    elif name == "--version":
        print(f"posbench {__version__}")
    elif name == "-sc":
        _complete(scripts)
    elif name in scripts:
        sys.argv = [str(scripts[name]), *words]
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        raise ConfigError(
            f"{name} is not a command{did_you_mean(name, scripts)}: posbench --help lists all of"
            " them."
        )


def _complete(scripts: dict[str, Path]) -> None:
    """Answer a shell: its function with -sc install=bash, names of commands, or what Hydra
    completes behind the name of one.
    """
    typed = os.environ.get("COMP_LINE", "posbench run ").split(" ")[1:]
    if len(typed) == 1:
        print(*scripts)
        return
    command = find_command(typed[0])
    if command and command.yaml:
        os.environ["COMP_LINE"] = " ".join(["posbench", *typed[1:]])
        run_command(command.name)  # Hydra answers it


def _help(scripts: dict[str, Path]) -> str:
    width = max(map(len, scripts))
    said = {
        name: docstring_line(path).partition(": python scripts/")[0].rstrip(".")
        for name, path in scripts.items()
    }
    lines = "\n".join(f"  {name:{width}}  {text}" for name, text in said.items())
    return (
        "posbench COMMAND ...: the same as python scripts/COMMAND.py ...; paths are relative to"
        f" the working directory.\n\n{lines}\n\nposbench COMMAND --help explains each; posbench run"
        " experiment=demo is a first example.\nposbench help KEY explains a key or a choice:"
        " posbench help evaluate.windows extension=yarn"
    )
