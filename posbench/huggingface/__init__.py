"""Checkpoints of transformers' formats, in and out."""
