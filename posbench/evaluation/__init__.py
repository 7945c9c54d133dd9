"""Shared by all protocols: targets, windows, scoring."""
