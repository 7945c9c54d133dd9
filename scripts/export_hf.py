"""Export a run for transformers: python scripts/export_hf.py run=results/runs/ID out=FOLDER
extension=yarn extension.mode=fixed ...
"""

from posbench.cli.app import run_script

if __name__ == "__main__":
    run_script("posbench.tools.export.command:export", "export_hf")
