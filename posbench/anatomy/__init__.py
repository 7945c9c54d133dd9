"""Methods seen without training."""
