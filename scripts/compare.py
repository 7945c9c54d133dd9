"""Compare methods on the same tokens, and rank them: python scripts/compare.py results/runs
length=8x

python scripts/compare.py RESULTS... [LINE...] [length=8x] [against=LINE] [by=length] [unit=nats]
    [out=FOLDER]

RESULTS     folders of runs or of reports, CSVs, or reported experiments; results/runs if none
LINE        a line as tables name it: rope, 'rope|yarn', 'rope|rerope|log_n'; all if none is named
length      tokens or a multiple of the training length: 512 or 8x;
            the longest if nothing else is said
against     the line that all others are compared with, or each; else the best, of named lines
            the first
by          length, train_len or data: a column for each; of two named lines by=length is usual
measure     loss on the same targets, rise (loss minus its own floor), change (loss minus that
            without an extension), accuracy
unit        nats, ppl (ratios of perplexities), bpb
correction  holm or none, of p for the number of differences
out         folder for compare.csv, compare.md, compare.tex and the figure
"""

from posbench.cli.start import run_command

if __name__ == "__main__":
    run_command("compare")
