"""Rows to tables and a page."""
