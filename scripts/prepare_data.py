"""Tokenize a text into the cache, and count its documents and tokens: python
scripts/prepare_data.py data=books data.path=FOLDER
"""

from posbench.cli.start import run_command

if __name__ == "__main__":
    run_command("prepare_data")
