"""What goes with what: python scripts/compat.py [reasons] [train_len=64] [lengths=64,1024] [config_dir=DIR]"""

from __future__ import annotations

import sys
from pathlib import Path

import posbench  # noqa: F401  (before torch)
from posbench.cli import CONFIGS
from posbench.errors import ConfigError


def main(arguments: list[str]) -> None:
    """Print the table, or with `reasons` a line for every pair that is not simply legal."""
    options = dict(argument.partition("=")[::2] for argument in arguments)
    unknown = sorted(set(options) - {"reasons", "train_len", "lengths", "config_dir"})
    if unknown:
        raise ConfigError(
            f"{unknown[0]} is no option: give reasons, train_len=TOKENS, lengths=TOKENS,... or config_dir=DIR of your own methods."
        )
    from posbench.compat_table import WORDS, judge_all, markdown

    train_len = int(options.get("train_len", 64))
    lengths = [int(length) for length in options.get("lengths", f"{train_len},{16 * train_len}").split(",")]
    folders = [Path(CONFIGS), *([Path(options["config_dir"])] if "config_dir" in options else [])]
    sys.path[:0] = map(str, folders[1:])
    pairs = list(judge_all(folders, train_len, lengths))
    if "reasons" not in options:
        print(markdown(pairs), end="")
        return
    for pair in pairs:
        if pair.reason:
            print(f"{WORDS[pair.fate]:4} encoding={pair.encoding} {pair.kind}={pair.other}: {pair.reason}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (ConfigError, ValueError) as error:
        print(f"refused: {error}", file=sys.stderr)
        sys.exit(2)
