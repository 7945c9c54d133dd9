"""Import and export of checkpoints in the formats of transformers."""
