"""Show the loss of a model by position, as it is and extended, in a given time: python
scripts/look.py MODEL
"""

from posbench.cli.app import run_script

if __name__ == "__main__":
    run_script("posbench.tools.look.command:look", "look")
