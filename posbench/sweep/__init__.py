"""A grid to jobs to processes, and what became of each."""
