"""One training's directory and everything kept in it, written and read back."""
