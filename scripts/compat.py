"""Table of the legal combinations of methods: python scripts/compat.py [reasons] [train_len=64]
[lengths=64,1024] [config_dir=DIR]
"""

import sys
from pathlib import Path

import posbench  # noqa: F401  (before torch)
from posbench.common.errors import ConfigError
from posbench.config.command_line import options, run_main
from posbench.config.names import CONFIGS

DEFAULTS = {"reasons": False, "train_len": 64, "lengths": [], "config_dir": ""}


def main(arguments: list[str]) -> None:
    """Print the table, or with `reasons` one line for each pair: a reason (refused, untested,
    no-op) or a source (legal).
    """
    chosen = options(arguments, DEFAULTS)
    if chosen["config_dir"] and not Path(chosen["config_dir"]).is_dir():
        raise ConfigError(
            f"config_dir={chosen['config_dir']} is not a folder: name the one that holds your"
            " yamls."
        )
    from posbench.tools.anatomy.legality_table import WORDS, judge_all, legality_markdown

    train_len = chosen["train_len"]
    folders = [Path(CONFIGS), *([Path(chosen["config_dir"])] if chosen["config_dir"] else [])]
    sys.path[:0] = map(str, folders[1:])
    pairs = list(judge_all(folders, train_len, chosen["lengths"] or [train_len, 16 * train_len]))
    if not chosen["reasons"]:
        print(legality_markdown(pairs), end="")
        return
    for pair in pairs:
        if pair.reason:
            print(
                f"{WORDS[pair.fate]:4} encoding={pair.encoding} {pair.kind}={pair.other}:"
                f" {pair.reason}"
            )


if __name__ == "__main__":
    run_main(main)
