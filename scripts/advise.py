"""Advise what to set so that a model reads longer texts: python scripts/advise.py model.path=DIR
target=32768
"""

from posbench.cli.app import run_script

if __name__ == "__main__":
    run_script("posbench.tools.advice.command:advise", "advise")
