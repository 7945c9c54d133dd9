"""Draw every encoding, extension and scale of configs/ on one sheet: python scripts/gallery.py
out=results/gallery
"""

from pathlib import Path

import posbench  # noqa: F401  (before torch)
from posbench.config.command_line import list_files, options, run_main


def main(arguments: list[str]) -> None:
    """Draw the sheet and print the files."""
    chosen = options(arguments, {"out": "results/gallery"})
    from posbench.report.figures.style import save
    from posbench.tools.anatomy.gallery import dissected, sheet

    shown = {group: dissected(group) for group in ("encoding", "extension", "scale_attention")}
    list_files(save(sheet(shown), Path(chosen["out"]) / "gallery"))


if __name__ == "__main__":
    run_main(main)
