"""Anatomy of methods: what they do to positions, computed without training."""
