"""Anatomy of methods: their effect on positions, computed without training, and the attention of a
trained model's heads.
"""
