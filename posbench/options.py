"""Command lines of the scripts that configure no job: key=value words and nothing of Hydra."""

from __future__ import annotations

import sys
from collections.abc import Callable

from posbench.errors import ConfigError


def options(arguments: list[str], defaults: dict[str, str]) -> dict[str, str]:
    """What was typed over the defaults; a bare word is a key with an empty value. Raises ConfigError for a key that is none of theirs."""
    given = dict(argument.partition("=")[::2] for argument in arguments)
    unknown = sorted(set(given) - set(defaults))
    if unknown:
        raise ConfigError(f"{unknown[0]} is no option: choose from {', '.join(f'{key}={value}' for key, value in defaults.items())}.")
    return {**defaults, **given}


def run(main: Callable[[list[str]], None]) -> None:
    """Call `main` with the words of the command line; a user's mistake is one sentence and exit code 2."""
    try:
        main(sys.argv[1:])
    except (ConfigError, ValueError) as error:
        print(f"refused: {error}", file=sys.stderr)
        sys.exit(2)
