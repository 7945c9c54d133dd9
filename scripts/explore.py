"""Make one page to choose, filter and compare results in a browser: python scripts/explore.py
headline

python scripts/explore.py FOLDER|CSV|EXPERIMENT ... [out=FILE.html] [title=TEXT]

Each word is a run, a folder of runs, the folder or bundle of a report, a CSV of losses (columns
method, length, nll), a quoted glob of these, or the name of a grid in configs/experiment: its runs
in results/runs, else the committed results. Runs of several folders are pooled as in a report;
where two folders hold the same training, as two machines or two versions of posbench do, each
folder has lines of its own. The page needs no network: what is drawn, filtered and compared is
chosen in it, and the address after # holds the choice."""

from posbench.cli.start import run_command

if __name__ == "__main__":
    run_command("explore")
