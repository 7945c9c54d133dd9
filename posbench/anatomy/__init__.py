"""Anatomy of methods: what they do to positions, computed without training, and where the heads of a trained model attend."""
