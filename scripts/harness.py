"""Run EleutherAI's lm-evaluation-harness on a checkpoint with an extension: python
scripts/harness.py model.path=DIR extension=yarn
"""

from posbench.cli.start import run_command

if __name__ == "__main__":
    run_command("harness")
