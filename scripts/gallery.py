"""Draw every encoding, extension and scale on one sheet: python scripts/gallery.py
out=results/gallery
"""

from posbench.cli.start import run_command

if __name__ == "__main__":
    run_command("gallery")
