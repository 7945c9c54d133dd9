"""Judge the claims of results/claims on stored evaluations: python scripts/claims.py [runs=GLOB]
[report_dir=DIR]
"""

from posbench.cli.start import run_command

if __name__ == "__main__":
    run_command("claims")
