"""Identification of the setting that an engine really runs: candidates, their losses on its tokens,
the comparison, output.
"""
