"""Train what is not trained yet, evaluate what is not evaluated yet: python scripts/run.py encoding=rope extension=ntk"""

from posbench.cli.app import run_script
from posbench.cli.commands import run

if __name__ == "__main__":
    run_script(run)
