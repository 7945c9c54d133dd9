"""Draw one figure for a paper or a slide: python scripts/plot.py results/reported/demo y=ppl
log=x,y size=column

python scripts/plot.py PATH... [lines='rope|none, rope|yarn, alibi'] [y=ppl] [x=multiple]
    [panel=encoding] [COLUMN=VALUE,...] [out=FILE]

PATH        a folder of runs or of a report, a run, a CSV of losses, or the name of a reported
            experiment; lines of several name theirs
y           difference (to the floor), change (to no extension), nats, ppl, bpb, accuracy
x           length, multiple (of the training length), position, step (of trainings that
            train.validate_lengths watched)
lines       in this order, as encoding|extension|scale; what is left out, and *, is any
panel       columns of the table, a panel for each value; none for one panel
COLUMN      values of a column that are drawn: data=books train_len=64
reference   floor, change, none or a line: what is subtracted; a perplexity is divided by it
bars        interval (95 %, over seeds and documents where the losses of targets are known, else
            over seeds), seeds (a thin line for each behind the mean) or none
log         x, y, x,y or none         xlim, ylim   ends of an axis: 0,4 or ,4
size        column, page, slide       style        paper, dark
labels.NAME another name of a line, a part of it, a file or a heading      title  a title
format      pdf,png; svg              out          a file or a folder; results/plot
"""

from posbench.cli.start import run_command

if __name__ == "__main__":
    run_command("plot")
