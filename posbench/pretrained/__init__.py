"""Checkpoints that others have trained, found and read: folders of transformers, GGUF files, names of the hub."""
