"""Say which setting an engine really runs, by its rows and the weights: python scripts/identify.py
RUN model.path=WEIGHTS
"""

from posbench.cli.app import run_script

if __name__ == "__main__":
    run_script("posbench.tools.identify.command:identify", "identify")
