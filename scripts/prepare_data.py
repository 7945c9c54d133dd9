"""Tokenize a data set into the cache and print its statistics: python scripts/prepare_data.py
data=books data.path=FOLDER
"""

from posbench.cli.start import run_command

if __name__ == "__main__":
    run_command("prepare_data")
