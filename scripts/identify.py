"""Find the setting that an engine really runs, from its losses and the weights: python
scripts/identify.py RUN model.path=WEIGHTS
"""

from posbench.cli.start import run_command

if __name__ == "__main__":
    run_command("identify")
