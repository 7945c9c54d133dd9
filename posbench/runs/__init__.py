"""Run directories: one training each, with everything kept in it, written and read back."""
