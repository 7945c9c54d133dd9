"""Run reported results again and compare them with the committed rows: python scripts/reproduce.py
experiment=demo
"""

from posbench.cli.app import run_script

if __name__ == "__main__":
    run_script("posbench.tools.reproduce.command:reproduce", "reproduce")
