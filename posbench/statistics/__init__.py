"""Intervals, verdict rules and usable length; numpy alone."""
