"""Runs from checkpoints, and checkpoints from runs, in the formats of transformers."""
