"""Command lines of the scripts without Hydra: key=value words, --help and exit codes."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable

from posbench.common.errors import ConfigError, RunError, did_you_mean

UNITS = {"m": 60, "h": 3600, "d": 86400}


def options(arguments: list[str], defaults: dict[str, str]) -> dict[str, str]:
    """Defaults overridden by the typed words. A bare word is a key with an empty value. Raises ConfigError for an unknown key."""
    given = dict(argument.partition("=")[::2] for argument in arguments)
    unknown = sorted(set(given) - set(defaults))
    if unknown:
        near = did_you_mean(unknown[0], defaults)
        raise ConfigError(f"{unknown[0]} is no option{near}: choose from {', '.join(f'{key}={value}' for key, value in defaults.items())}.")
    return {**defaults, **given}


def whole(chosen: dict[str, str], key: str) -> int:
    """Value of a key as a positive whole number. Raises ConfigError for anything else."""
    return _whole(key, chosen[key], chosen[key])


def wholes(chosen: dict[str, str], key: str) -> list[int]:
    """Value of a key as positive whole numbers, separated by commas. Raises ConfigError for anything else."""
    return [_whole(key, chosen[key], part) for part in chosen[key].split(",")]


def _whole(key: str, typed: str, text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise ConfigError(f"{key}={typed} holds {text!r}, which is no positive whole number: type one such as {key}=64.")
    return int(text)


def truth(chosen: dict[str, str], key: str) -> bool:
    """Value of a key as bool: true or false; the bare word means true. Raises ConfigError for anything else."""
    words = {"true": True, "": True, "false": False}
    if chosen[key] not in words:
        raise ConfigError(f"{key}={chosen[key]} must be true or false.")
    return words[chosen[key]]


def duration(chosen: dict[str, str], key: str) -> float:
    """Value of a key in seconds, typed as 90m, 12h or 30d. Raises ConfigError for anything else."""
    found = re.fullmatch(r"(\d+)([mhd])", chosen[key])
    if not found:
        raise ConfigError(
            f"{key}={chosen[key]} is no length of time: type minutes, hours or days, such as {key}=90m, {key}=12h, {key}=30d."
        )
    return int(found[1]) * UNITS[found[2]]


def working_directory() -> None:
    """Exit with a sentence if the working directory is gone, since no typed path could be found from there."""
    try:
        os.getcwd()
    except OSError as error:
        print(f"refused: the working directory cannot be read ({error.strerror}): change to one that is there.", file=sys.stderr)
        sys.exit(2)


def run(main: Callable[[list[str]], None]) -> None:
    """Call `main` with the words of the command line and exit. --help prints the docstring of its file."""
    working_directory()
    asked = {"-h", "--help"} & set(sys.argv[1:])
    sys.exit(guarded(lambda: print(main.__globals__["__doc__"].rstrip()) if asked else main(sys.argv[1:])))


def guarded(work: Callable[[], int | None], results_dir: object = None) -> int:
    """Run `work` and return its exit code, None for 0. Every error is printed as one sentence."""
    try:
        code = work() or 0
        sys.stdout.flush()
    except ConfigError as error:
        print(f"refused: {error}", file=sys.stderr)
        return 2
    except RunError as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return unread()
    except KeyboardInterrupt as interrupt:
        print("interrupted: the same command goes on from there", file=sys.stderr)
        return 128 + (interrupt.args[0] if interrupt.args else signal.SIGINT)
    except Exception as error:
        from posbench.cli.unforeseen import tell

        return tell(error, results_dir)
    return code


def unread() -> int:
    """Silence stdout after its reader has left (`| head`). Returns the exit code that a shell expects then."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + signal.SIGPIPE
