"""Train models and evaluate them at longer lengths; what exists is kept: python scripts/run.py
encoding=rope extension=ntk
"""

from posbench.cli.start import run_command

if __name__ == "__main__":
    run_command("run")
