"""Advice for reading longer texts with one model, and the search for its factors."""
