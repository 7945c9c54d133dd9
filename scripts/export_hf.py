"""A training in Hugging Face format: python scripts/export_hf.py run=results/runs/ID out=FOLDER extension=yarn extension.mode=fixed ..."""

from posbench.cli import run_script
from posbench.hf_export import export

if __name__ == "__main__":
    run_script(export, "export_hf")
