"""Rows to pictures."""
