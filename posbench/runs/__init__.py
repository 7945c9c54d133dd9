"""Run directories, written and read: one training each."""
