"""Run reported experiments again and compare their rows with the committed ones: python
scripts/reproduce.py experiment=demo
"""

from posbench.cli.start import run_command

if __name__ == "__main__":
    run_command("reproduce")
