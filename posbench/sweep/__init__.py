"""Sweeps: a grid becomes jobs, each job goes to a child process, each has an outcome."""
