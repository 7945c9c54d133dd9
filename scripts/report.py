"""Make tables and figures from stored evaluations: python scripts/report.py experiment=demo"""

from posbench.cli.start import run_command

if __name__ == "__main__":
    run_command("report")
