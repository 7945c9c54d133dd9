"""Pack a report with its evidence into one file to attach to a paper: python scripts/bundle.py
results/reported/headline

python scripts/bundle.py FOLDER [out=FILE.posbench.zip]
python scripts/bundle.py FOLDER check=true

FOLDER is the folder of a report, a folder of runs, a run, or an experiment such as headline. The
file holds its pages, tables, figures, CSVs, sums over documents, configurations and provenance;
equal results give equal bytes. Every command reads it like a folder: explore.py, plot.py, report.py
with runs=, posbench.rows and posbench.frame. With check=true nothing is written: the tables of a
report's folder are recomputed from its rows and sums, what differs is named, and its lines for the
leaderboard are printed."""

from posbench.cli.start import run_command

if __name__ == "__main__":
    run_command("bundle")
