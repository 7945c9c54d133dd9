"""Write a training as a checkpoint for transformers: python scripts/export_hf.py
run=results/runs/ID out=FOLDER extension=yarn extension.target_len=512
"""

from posbench.cli.start import run_command

if __name__ == "__main__":
    run_command("export_hf")
