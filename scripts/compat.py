"""Print which methods can be combined: python scripts/compat.py [reasons] [train_len=64]
[lengths=64,1024] [config_dir=DIR]
"""

from posbench.cli.start import run_command

if __name__ == "__main__":
    run_command("compat")
