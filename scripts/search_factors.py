"""Search LongRoPE's factors on validation text: python scripts/search_factors.py
run=results/runs/ID target=256
"""

from posbench.cli.start import run_command

if __name__ == "__main__":
    run_command("search_factors")
