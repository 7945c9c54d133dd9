"""Judge the claims of results/claims on stored evaluations: python scripts/claims.py [runs=GLOB]
[report_dir=DIR]
"""

from posbench.cli.app import run_script

if __name__ == "__main__":
    run_script("posbench.tools.claims.command:claims", "claims")
