"""Make tables and figures from stored evaluations: python scripts/report.py experiment=demo"""

from posbench.cli.app import run_script

if __name__ == "__main__":
    run_script("posbench.tools.run.command:report", "report")
