"""Search LongRoPE's factors on validation text: python scripts/search_factors.py
run=results/runs/ID target=256
"""

from posbench.cli.app import run_script

if __name__ == "__main__":
    run_script("posbench.tools.factors.command:search_factors", "search_factors")
