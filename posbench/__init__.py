"""posbench: measurements of language models beyond their training length."""

import os

# By default idle OpenMP threads spin, which makes training 13 times slower beside one busy process. libgomp reads this when
# torch loads it, so it is set before any module of posbench can import torch. 1000 keeps full speed on an idle machine.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

__version__ = "0.1.0"


def load(path, device: str = "auto", cache_dir=None, trusted=()):
    """Load a finished run in a notebook: its model, text and configuration. See posbench.model.build.load."""
    from posbench.model.build import load

    return load(path, device, cache_dir, trusted)
