"""Sweeps through a cluster (SLURM): one task per training."""
