"""Train and evaluate what is missing: python scripts/run.py encoding=rope extension=ntk"""

from posbench.cli.start import run_command

if __name__ == "__main__":
    run_command("run")
