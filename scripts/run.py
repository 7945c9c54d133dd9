"""Train and evaluate what is missing: python scripts/run.py encoding=rope extension=ntk"""

from posbench.cli.app import run_script

if __name__ == "__main__":
    run_script("posbench.tools.run.command:run")
