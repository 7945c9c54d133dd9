"""The oracle's formulas (see dense.py): bias."""
