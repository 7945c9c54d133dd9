"""Train three small models, evaluate them to 16 times their length and draw the plot: python
scripts/demo.py
"""

from posbench.cli.start import run_command

if __name__ == "__main__":
    run_command("demo")
