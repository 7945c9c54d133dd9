"""Recommend settings with which a model reads longer texts: python scripts/advise.py model.path=DIR
target=32768
"""

from posbench.cli.start import run_command

if __name__ == "__main__":
    run_command("advise")
