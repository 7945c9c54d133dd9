"""Sweeps: a grid becomes jobs, each job a child process, each with an outcome."""
