"""Run EleutherAI's lm-evaluation-harness on a checkpoint with methods in place: python
scripts/harness.py model.path=DIR extension=yarn
"""

from posbench.cli.app import run_script

if __name__ == "__main__":
    run_script("posbench.tools.harness.command:harness", "harness")
