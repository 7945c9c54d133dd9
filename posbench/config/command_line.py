"""Command lines of the scripts without Hydra: key=value words, --help and exit codes."""

import contextlib
import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

from posbench.common.errors import ConfigError, RunError, did_you_mean
from posbench.common.outcome import outcome_of
from posbench.common.secret import masked
from posbench.config.names import with_command_names
from posbench.config.typed_args import convert, expand_sizes, shown

TRACEBACK_VARIABLE = "POSBENCH_TRACEBACK"  # of the environment
UNITS_OF_TIME = {"m": "minutes", "h": "hours", "d": "days"}
LARGEST_NUMBER = 2**24  # largest whole number: tokens, or rounds


def print_files(paths: Iterable[Path]) -> None:
    """Print kind and path of each file that a command wrote."""
    for path in paths:
        print(f"{path.suffix.lstrip('.'):4} {path}")


def read_options(arguments: list[str], defaults: dict[str, Any]) -> dict[str, Any]:
    """Defaults overridden by the typed words, each read as its default is.

    That is true or false (a bare word means true), a positive whole number, a list of these, a
    length of time, or text. Raises ConfigError for an unknown key or a value of another kind.

    >>> read_options(["lengths=64,2k", "reasons"], {"lengths": [64], "reasons": False, "out": "x"})
    {'lengths': [64, 2048], 'reasons': True, 'out': 'x'}
    """
    values = dict(defaults)
    for argument in arguments:
        key, _, text = argument.partition("=")
        if key not in defaults:
            listed = ", ".join(f"{name}={_as_typed(value)}" for name, value in defaults.items())
            raise ConfigError(
                f"{key} is not an option{did_you_mean(key, defaults)}: choose from {listed}."
            )
        values[key] = _read_value(key, text, type(defaults[key]))
    return values


def _read_value(key: str, text: str, kind: type) -> Any:
    """Value of the type `kind`, which is that of an option's default."""
    if kind is timedelta:
        return _read_duration(key, text)
    # A word without a value means true.
    if kind is bool:
        return convert(key, {"": True, "true": True, "false": False}.get(text, text), bool)
    if not text:
        raise ConfigError(f"{key}= is empty: give it a value, or leave it out.")
    if kind is str:
        return text
    if kind is list:
        numbers = _read_numbers(key, without_brackets(text).split(","))
        form = "list of positive whole numbers"
        example = "64,1024"
    else:
        numbers = _read_numbers(key, [text])
        form = "positive whole number"
        example = "64"
    if numbers is None:
        raise ConfigError(
            f"{key}={shown(text)} must be a {form} up to {LARGEST_NUMBER:,}, such as"
            f" {key}={example}."
        )
    return numbers if kind is list else numbers[0]


def _read_duration(key: str, text: str) -> timedelta:
    """Length of time of 90m, 12h or 30d. Raises ConfigError for any other text."""
    # Of five digits even days reach back to a date that exists.
    match = re.fullmatch(r"(\d{1,5})([mhd])", text)
    if not match:
        raise ConfigError(
            f"{key}={text} must be minutes, hours or days, such as {key}=90m, {key}=12h, {key}=30d."
        )
    return timedelta(**{UNITS_OF_TIME[match[2]]: int(match[1])})


def _read_numbers(key: str, texts: list[str]) -> list[int] | None:
    """Whole numbers from 1 to LARGEST_NUMBER, 2k in tokens too; None if any is another text."""
    numbers = []
    for text in texts:
        digits = str(expand_sizes(text.strip(), key))
        # LARGEST_NUMBER has 8 digits, and int refuses thousands of them by an error of its own.
        if not re.fullmatch(r"\d{1,8}", digits) or not 1 <= int(digits) <= LARGEST_NUMBER:
            return None
        numbers.append(int(digits))
    return numbers


def without_brackets(text: str) -> str:
    """A list as it is typed, without the brackets that it may have."""
    return text[1:-1] if text[:1] + text[-1:] == "[]" else text


def _as_typed(value: object) -> str:
    """A default as a user would type it: 30d, 64,1024."""
    if isinstance(value, timedelta):
        return f"{value.days}d"
    return shown(value).strip("[]").replace(", ", ",")


def run_main(main: Callable[[list[str]], None]) -> None:
    """Call `main` with the words of sys.argv and exit. --help prints the script's docstring."""
    words = sys.argv[1:]
    if "-h" in words or "--help" in words:
        docstring = sys.modules["__main__"].__doc__.rstrip()
        sys.exit(run_for_exit_code(lambda: print(docstring)))
    sys.exit(run_for_exit_code(lambda: main(words)))


def run_for_exit_code(work: Callable[[], int | None]) -> int:
    """Run `work` and return its exit code, None as 0. Every error is printed as one sentence."""
    open_standard_files()
    try:
        code = work() or 0
        sys.stdout.flush()
    except (ConfigError, RunError) as error:
        code, outcome = outcome_of(error)
        print(f"{outcome.status}: {with_command_names(outcome.reason)}", file=sys.stderr)
        return code
    except BrokenPipeError:  # the reader of stdout has left (`| head`): the rest is silenced
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE  # as shells write the end by a signal
    except KeyboardInterrupt as interrupt:
        print("interrupted: the same command goes on from there", file=sys.stderr)
        return outcome_of(interrupt).code
    except Exception as error:
        print_unforeseen(error)
        return outcome_of(error).code
    return code


def open_standard_files() -> None:
    """Open /dev/null in the place of a closed standard input, output or error (`posbench ... >&-`).

    Python leaves None there, and the next file that is opened would have its number: a child would
    print into that file."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        try:
            os.fstat(descriptor)  # raises for a closed one
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, descriptor)
            if null != descriptor:
                os.close(null)
            os.set_inheritable(descriptor, True)
        mode = "r" if name == "stdin" else "w"
        setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))


def print_unforeseen(error: Exception) -> None:
    """Print an error and the file of its traceback.

    With POSBENCH_TRACEBACK=1, or where no file can be made, the traceback itself is printed."""
    if not os.environ.get(TRACEBACK_VARIABLE):
        with contextlib.suppress(OSError):
            descriptor, path = tempfile.mkstemp(".txt", "traceback-", text=True)
            with open(descriptor, "w", encoding="utf-8") as file:
                lines = masked("".join(traceback.format_exception(error)))
                file.write(f"{' '.join(sys.orig_argv)}\n\n{lines}")
            message = shown(masked(str(error).partition("\n")[0]))
            print(
                f"failed: unforeseen {type(error).__name__} ({message}):"
                f" the traceback is in {path}.",
                file=sys.stderr,
            )
            return
    traceback.print_exception(error)
