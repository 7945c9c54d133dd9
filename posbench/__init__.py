"""posbench: measurements of language models beyond their training length.

In a notebook, with results/runs as scripts/run.py filled it:

    import posbench
    posbench.rows("results/runs")                   # every row of every run, a pandas DataFrame; also a run, a CSV, a glob or a list
    run = posbench.load("results/runs/ID")          # a finished training
    run.config["train"]["length"], run.rows         # from files alone; the text and the model are loaded on first use
    run.evaluate("yarn", lengths=[512, 1024])       # the rows that scripts/run.py would write; nothing is written
    run.evaluate("yarn", beta=16, windows=64, scale_attention="log_n", protocol="sliding")
    run.evaluate({"name": "yarn", "beta": 16})      # the same arguments as a dict, also for scale_attention
    run.model(run.encode("def f(x):"))              # logits [1, T, V]; run.decode(ids), run.tokenizer, run.corpus
    run.generate("def f(x):", 200, extension="yarn", temperature=0.8, seed=1)
"""

import os
from typing import TYPE_CHECKING

# By default idle OpenMP threads spin, which makes training 13 times slower beside one busy process. libgomp reads this when
# torch loads it, so it is set before any module of posbench can import torch. 1000 keeps full speed on an idle machine.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

if TYPE_CHECKING:
    import pandas

    from posbench.cli.notebook import LoadedRun

__version__ = "0.1.0"


def load(path, device: str = "auto", cache_dir=None, trusted=()) -> "LoadedRun":
    """A finished run by its directory; see posbench.cli.notebook.LoadedRun."""
    from posbench.cli.notebook import LoadedRun

    return LoadedRun(path, device, cache_dir, trusted)


def rows(paths) -> "pandas.DataFrame":
    """All rows of run directories, folders of them, CSVs or globs; see posbench.runs.frame.read."""
    from posbench.runs.frame import read

    return read(paths)


def extend(model, extension=None, scale_attention=None, target_len=None, train_len=None):
    """A loaded model of transformers with a context extension in place; see posbench.model.inplace.extend.extend."""
    from posbench.model.inplace import extend as inplace

    return inplace.extend(model, extension, scale_attention, target_len, train_len)


def restore(model):
    """The model as it was before posbench.extend."""
    from posbench.model.inplace import extend as inplace

    return inplace.restore(model)
