"""Start of a command, with or without Hydra. Nothing heavy is imported until it is needed."""

from posbench.cli.commands import find_command
from posbench.config.command_line import run_main


def run_command(name: str) -> None:
    """Run a command with the words of sys.argv, and exit with its code."""
    command = find_command(name)
    if command.yaml:
        from posbench.cli.app import run_with_hydra

        run_with_hydra(command)
    else:
        load_function = command.function  # imports the command's module
        # Loaded within run_main, so that an error of the import is one sentence, too.
        run_main(lambda words: load_function()(words))
