"""Training: the loop, the optimizers, checkpoints, several processes."""
