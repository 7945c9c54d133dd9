"""Show how a method changes positions, or where a trained model attends.

python scripts/anatomy.py encoding=rope extension=yarn length=4096
python scripts/anatomy.py experiment=headline
    one table of a grid; also with -m
python scripts/anatomy.py run=DIR 'lengths=[64,1024]' extension=yarn
    where each head of a trained model attends; also with -m
"""

from posbench.cli.start import run_command

if __name__ == "__main__":
    run_command("anatomy")
