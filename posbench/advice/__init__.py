"""Advice for one model that is to read longer texts, and the search of factors for it."""
