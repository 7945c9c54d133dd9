"""The claims of results/claims judged on what was measured, from files alone: python scripts/claims.py [runs=GLOB] [report_dir=DIR]"""

from posbench.cli.app import run_script
from posbench.cli.claims import claims

if __name__ == "__main__":
    run_script(claims, "claims")
