"""posbench: how language models behave beyond the length they were trained on."""

import os

# Two idle OpenMP threads spin against any other load (13 times slower beside one busy process); libgomp reads this when
# torch loads it, so it is set before anything of posbench can import torch. 1000 keeps full speed on an idle machine.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

__version__ = "0.1.0"


def load(path, device: str = "auto", cache_dir=None, trusted=()):
    """A finished run's model, text and configuration, for a notebook; see posbench.model.build.load."""
    from posbench.model.build import load

    return load(path, device, cache_dir, trusted)
