"""Tokens of a data set in the cache, and its statistics."""
