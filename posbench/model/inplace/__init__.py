"""Methods applied in place to a loaded transformers model."""
