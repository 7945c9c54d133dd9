"""Run reported results again and compare them with the committed rows: python scripts/reproduce.py
experiment=demo
"""

from posbench.cli.start import run_command

if __name__ == "__main__":
    run_command("reproduce")
