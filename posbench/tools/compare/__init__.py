"""Comparison of lines: ranking, paired differences, table and figure."""
