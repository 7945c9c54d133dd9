"""The same through SLURM."""
