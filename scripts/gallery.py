"""One sheet with what every encoding and every extension of configs/ looks like: python scripts/gallery.py out=results/gallery"""

from __future__ import annotations

import sys
from pathlib import Path

import posbench  # noqa: F401  (before torch)

if __name__ == "__main__":
    from posbench.gallery import draw

    options = dict(argument.split("=", 1) for argument in sys.argv[1:])
    for path in draw(Path(options.get("out", "results/gallery")) / "gallery"):
        print(f"{path.suffix.lstrip('.'):4} {path}")
