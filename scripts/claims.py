"""The claims of results/claims judged on what was measured, from files alone: python scripts/claims.py [runs=GLOB] [report_dir=DIR]"""

from posbench.claim_command import claims
from posbench.cli import run_script

if __name__ == "__main__":
    run_script(claims, "claims")
