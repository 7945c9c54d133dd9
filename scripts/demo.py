"""Train three small models, evaluate them to 16 times their length and draw the plot: python scripts/demo.py"""

import os
import runpy
import sys
from pathlib import Path

ANSWERED = {"-h", "--help", "-c", "--cfg", "-i", "--info", "--hydra-help", "--resolve", "dry=true"}  # no report follows


def main(words: list[str]) -> None:
    """Run experiment=demo with `words` behind it, then report on it. Exits with the code of the first that fails."""
    run, report = (str(Path(__file__).with_name(f"{name}.py")) for name in ("run", "report"))
    words = ["experiment=demo", *words]
    sys.argv = [run, *words]
    try:
        runpy.run_path(run, run_name="__main__")
    except SystemExit as ended:
        if ended.code or ANSWERED.intersection(words):
            raise
    os.execv(sys.executable, [sys.executable, report, *words])


if __name__ == "__main__":
    main(sys.argv[1:])
