"""Train three small models, evaluate them to 16 times their length and draw the plot: python
scripts/demo.py
"""

import sys

from posbench.cli.app import run_script

if __name__ == "__main__":
    sys.argv[1:1] = ["experiment=demo"]
    run_script("posbench.tools.run.command:run_and_report")
