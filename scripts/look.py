"""Show the loss of a model by position, as it is and extended, in a given time: python
scripts/look.py MODEL
"""

from posbench.cli.start import run_command

if __name__ == "__main__":
    run_command("look")
