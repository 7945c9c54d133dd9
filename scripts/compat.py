"""What goes with what: python scripts/compat.py [reasons] [train_len=64] [lengths=64,1024] [configs=DIR]"""

from __future__ import annotations

import sys
from pathlib import Path

import posbench  # noqa: F401  (before torch)
from posbench.cli import CONFIGS
from posbench.errors import ConfigError


def main(arguments: list[str]) -> None:
    """Print the table, or with `reasons` a line for every pair that is not simply legal."""
    options = dict(argument.partition("=")[::2] for argument in arguments)
    unknown = sorted(set(options) - {"reasons", "train_len", "lengths", "configs"})
    if unknown:
        raise ConfigError(f"{unknown[0]} is no option: give reasons, train_len=TOKENS, lengths=TOKENS,... or configs=DIR.")
    from posbench.compat_table import WORDS, judge_all, markdown

    train_len = int(options.get("train_len", 64))
    lengths = [int(length) for length in options.get("lengths", f"{train_len},{16 * train_len}").split(",")]
    pairs = list(judge_all(Path(options.get("configs", CONFIGS)), train_len, lengths))
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
