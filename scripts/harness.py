"""Run EleutherAI's lm-evaluation-harness on a checkpoint with methods in place: python
scripts/harness.py model.path=DIR extension=yarn
"""

from posbench.cli.start import run_command

if __name__ == "__main__":
    run_command("harness")
