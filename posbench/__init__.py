"""posbench: measurements of language models beyond their training length.

In a notebook, with results/runs as scripts/run.py filled it:

    import posbench
    posbench.rows("results/runs")    # every row of every run, a pandas DataFrame; also a run, a CSV
    posbench.frame("results/runs")   # means over seeds, differences and intervals, as in a report
    posbench.plot(posbench.frame("results/runs"))   # its figure; y="ppl", lines="rope|yarn", ...
    posbench.compare("results/runs", length="8x")   # lines ranked by paired differences
    run = posbench.load("results/runs/ID")          # a finished training
    run.config["train"]["length"], run.rows         # from files alone; all else is loaded on use
    run.evaluate("yarn", lengths=[512, 1024])       # the rows of scripts/run.py; writes no file
    run.evaluate("yarn", beta=16, windows=64, scale_attention="log_n", protocol="sliding")
    run.evaluate({"name": "yarn", "beta": 16})      # the same arguments as a dict
    run.model(run.encode("def f(x):"))              # logits [1, T, V]; run.decode(ids)
    run.generate("def f(x):", 200, extension="yarn", temperature=0.8, seed=1)
"""

import os
from typing import TYPE_CHECKING

# By default idle OpenMP threads spin, which makes training 13 times slower beside one busy process.
# libgomp reads this when torch loads it, so it is set before any module of posbench can import
# torch. 1000 keeps full speed on an idle machine.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from posbench.runs.columns import columns_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy
    import pandas
    from matplotlib.axes import Axes

    from posbench.tools.explanation.show import Explanation
    from posbench.tools.notebook.loaded_run import LoadedRun

__version__ = "0.1.0"


def load(path, device: str = "auto", cache_dir=None, trusted=()) -> "LoadedRun":
    """A finished run by its directory; see posbench.tools.notebook.loaded_run.LoadedRun."""
    from posbench.tools.notebook.loaded_run import LoadedRun

    return LoadedRun(path, device, cache_dir, trusted)


def rows(paths) -> "pandas.DataFrame":
    """All rows of runs, folders of runs or of reports, bundles, CSVs or globs, each row once.

    Damaged files are skipped with a warning. Raises ConfigError for a path without runs, RunError
    when every file is damaged. Columns, a missing number being NaN or <NA>:
    """
    # The list of columns is added to this docstring below.
    from posbench.report.frame import read_rows

    return read_rows(paths)


rows.__doc__ = f"{rows.__doc__.rstrip()}\n\n{columns_text()}\n"


def frame(paths, what: str = "curve") -> "pandas.DataFrame":
    """Points of a report: a row for each method and length.

    `paths` are run directories, folders of them, folders or bundles of reports, CSVs or globs.
    `what` is curve (losses by length), position (losses by position), context (losses with c tokens
    of context), accuracy (tasks) or validation (losses by length and step of training, of trainings
    with train.validate_lengths); the frame is empty where none was measured. The columns are
    those of the CSV of that name in a report's folder, and the values behind the labels `encoding`
    and `extension`: encoding_name, extension_name (str), trained_in (bool, the extension was
    fine-tuned with), tuned_from (str, family of the parent) and train_steps (int, where the
    trainings of an encoding differ in them). Of curve and position:

        protocol, data, tokenizer, setting (str), train_len (tokens): equal within a table
        encoding, extension, scale_attention (str): labels
        untested (bool): a pair that its authors have not tested
        length (tokens): tokens fed, or the last position of a stretch of `window` tokens
        n_seeds, n_targets, n_units (int), sem_unit (str): units that the means are over
        nll (nats/token), bpb (bits/byte), accuracy (share): means over seeds
        floor (nats/token): loss with exactly train_len tokens of context
        difference, half_width (nats/token): nll minus floor, paired, and half of its 95 % interval,
            over the units `over` (str)
        change, change_half_width (nats/token): the same, to these trainings without an extension
        gain, gain_lower (nats/token): G of the trainings, and the lowest lower 95 % bound of G
        low, high (nats/token): interval that a CSV of others states
        source (str): name of that CSV
        unstated (str): columns of a table that it does not state; those of the table stand there
        nll_half_width, accuracy_half_width: half of the 95 % interval of nll and of accuracy
            themselves, which are not paired, over the units `nll_over` (str)
        seeds, nll_by_seed, difference_by_seed, change_by_seed, accuracy_by_seed: a tuple each,
            with the seeds and their values

    Raises ConfigError for an unknown `what` and for a path without runs, RunError when there is no
    evaluation or all are damaged.
    """
    from posbench.report.frame import read_frame

    return read_frame(paths, what)


def compare(
    paths,
    lines: "str | Sequence[str]" = (),
    length: "str | int | None" = None,
    against: str | None = None,
    by: str | None = None,
    measure: str | None = None,
    unit: str | None = None,
    correction: str = "holm",
) -> "pandas.DataFrame":
    """Lines of results compared on the same targets, the best first.

    The frame has a row for each line and length. `paths` are as for `posbench.frame`; the other
    words are those of scripts/compare.py: lines such as ["rope|yarn", "fox"], length "8x" or 512,
    against a line or "each", by "length" for all lengths. Named lines are compared with the first
    of them at each length, if nothing else is said. Columns:

        value, difference, low, high    in the unit; the difference is to the line `against`, with
                                        both ends of its 95 % interval
        p, p_corrected                  two-sided, of no difference; by Holm for all differences
        verdict                         best, worse, better, not told apart, no interval
        seeds, n_documents, interval_of compared seeds, and the source of the interval: documents,
                                        or means of seeds
        gate                            passed or failed: whether the trainings use their window;
                                        empty if it is unknown
        reason                          why there is no interval

    Raises ConfigError for lines and lengths that are not there.
    """
    import pandas

    from posbench.report.comparison_request import Request, requested_comparisons
    from posbench.report.comparison_tables import check_unit, csv_rows
    from posbench.report.comparison_words import NATS, Scale
    from posbench.report.frame import read_report

    request = Request(
        lines=(lines,) if isinstance(lines, str) else tuple(lines),
        length=None if length is None else str(length),
        against=against,
        measure=measure,
        by=by,
        correction=correction,
    ).completed()
    # One report, which needs no name beside others.
    comparisons = requested_comparisons({"": read_report(paths)}, request).comparisons
    check_unit(unit, comparisons)
    rows = []
    for comparison in comparisons:
        rows += csv_rows([comparison], Scale(unit or NATS, comparison.measure))
    return pandas.DataFrame(rows)


def explain(what, *words, **changes) -> "Explanation":
    """Explanation of a checkpoint's setting of RoPE, and of its reading by each engine.

    Print it, or read its attributes. `what` is a folder, config.json, .gguf file or hub name;
    `words` are flags and key=value as for scripts/explain.py, `changes` keys as Python values:

        posbench.explain("DIR", rope_parameters={"rope_type": "yarn", "factor": 4.0}).frequencies()
    """
    import json

    from posbench.tools.explanation.explain import explain_words

    typed = [
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in changes.items()
    ]
    return explain_words(str(what), [*map(str, words), *typed])


def plot(
    frame: "pandas.DataFrame",
    y: str | None = None,
    x: str | None = None,
    lines: "str | Sequence[str] | None" = None,
    panel: "str | Sequence[str] | None" = None,
    log: "str | Sequence[str] | None" = None,
    size: str = "page",
    style: str = "paper",
    labels: "Mapping[str, str] | None" = None,
    title: str = "",
    reference: str | None = None,
    xlim: tuple[float | None, float | None] = (None, None),
    ylim: tuple[float | None, float | None] = (None, None),
    bars: str | None = None,
) -> "Axes | numpy.ndarray":
    """Axes of a figure of a frame's losses or accuracies, of matplotlib.

    Several panels give an array of axes. To go on with: `axes.figure.savefig(FILE)` keeps the size.
    Without more words it shows the loss figure of a report.

        y           nats, ppl, bpb, accuracy, difference (nats minus the floor), change (nats minus
                    no extension)
        x           length, multiple (of the training length), position, step (of the frame
                    "validation")
        lines       lines, in this order: "rope|none, rope|yarn, alibi" as
                    encoding|extension|scale; a part that is left out, and *, is any
        panel       columns of the frame, each of whose values gets a panel; "none" for one panel
        log         logarithmic axes: "x", "y", "x,y" or "none"; that of a difference is linear
                    around zero
        size        column (3.3 inches wide), page (6.9), slide (16:9)
        style       paper, dark
        labels      other names, of parts, lines, sources and values: {"rope": "RoPE",
                    "rope|yarn": "ours", "paper.csv": "Press et al."}
        reference   floor, change, none, or a line: what is subtracted (a perplexity is divided)
        xlim, ylim  ends of the axes; None for that of the data
        bars        interval (95 %, over seeds and documents where the losses of targets are known,
                    else over seeds), seeds (a thin line for each behind the mean), none; by default
                    intervals, unless those of losses would hide the lines

    Lines of several frames in one (pandas.concat) are told apart by the column source. A footnote
    says the scales and the bars. Bars of a loss, a perplexity or an accuracy are not paired: two
    lines may differ for sure although their bars overlap, which `posbench.compare` tells. Raises
    ConfigError, with what there is, for a word that fits nothing.
    """
    import numpy

    from posbench.report.plot import Options, draw_figure

    options = Options(
        y=y,
        x=x,
        lines=lines,
        panel=panel,
        log=log,
        size=size,
        style=style,
        labels=labels or {},
        title=title,
        reference=reference,
        xlim=xlim,
        ylim=ylim,
        bars=bars,
    )
    figure, _ = draw_figure(frame, options)  # without the caption
    axes = figure.axes
    return axes[0] if len(axes) == 1 else numpy.array(axes, dtype=object)


def extend(model, extension=None, scale_attention=None, target_len=None, train_len=None):
    """The same loaded model of transformers, with a context extension and a scale in place.

        name = "HuggingFaceTB/SmolLM2-135M-Instruct"
        model = transformers.AutoModelForCausalLM.from_pretrained(name)
        posbench.extend(model, "yarn", target_len=16384)    # trained to 8,192 tokens
        model.generate(**inputs)               # a cache gives the logits of the whole text
        posbench.extend(model, {"name": "yarn", "beta": 16}, target_len=16384)
        posbench.extend(model, "rerope", scale_attention="log_n")  # in place of those of before
        posbench.restore(model)                # the model as it came

    `extension` and `scale_attention` are names (`posbench help extension` lists them), dicts of a
    name and its arguments, or objects of a method's class; None stands for none. An extension
    changes frequencies (yarn, ntk, llama3), coordinates (pi, rerope, self_extend, dca), the keys
    that are seen (streaming, lm_infinite, window) or a learned table (table_linear). Which of these
    a model can have depends on its own positions, and a refusal names those that it can.

    `target_len` is the longest text in tokens. An extension with a factor is then set for it, once
    and for all; otherwise its factor follows the length of each text, and a cache is refused where
    the factor changes. The configuration's longest text is raised to it, which tokenizers,
    pipelines and lm-evaluation-harness read. A learned table needs it. `train_len` is the length in
    tokens that the model was trained to, by default the longest text of its configuration.

    The model's use of positions is measured first, and its logits without an extension must stay
    what they were. Its configuration, and so other models that share it, do not change. A cache is
    read only under the methods that filled it. Padding on either side, beams, static caches,
    torch.compile and training work; packed texts, masks of four dimensions, output_attentions and
    copies of the model do not. save_pretrained saves the model as it came.

    Raises ConfigError, a ValueError, with one sentence for a model or a method that cannot be put
    in place. The model is then as it came, or has the methods that it had.
    """
    from posbench.model.inplace import extend as inplace

    return inplace.extend(model, extension, scale_attention, target_len, train_len)


def restore(model):
    """The model as it was before posbench.extend; caches that it filled meanwhile are refused.

    Raises ConfigError, a ValueError, for a model that was not extended.
    """
    from posbench.model.inplace import extend as inplace

    return inplace.restore(model)
