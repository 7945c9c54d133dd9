"""Train what is not trained yet, evaluate what is not evaluated yet: python scripts/run.py encoding=rope extension=ntk"""

from posbench.cli import run_script
from posbench.commands import run

if __name__ == "__main__":
    run_script(run)
