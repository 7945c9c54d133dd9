"""python -m posbench: the console command."""

from posbench.cli.console import main

if __name__ == "__main__":
    main()
