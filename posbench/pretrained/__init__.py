"""External checkpoints, found and read: transformers folders, GGUF files, hub names."""
