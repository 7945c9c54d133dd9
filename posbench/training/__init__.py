"""The loop, the optimizers, checkpoints, several processes."""
