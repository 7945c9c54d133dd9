"""Figures of a report, drawn from CSVs of points."""
