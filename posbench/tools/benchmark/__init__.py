"""Speed and memory of every method."""
