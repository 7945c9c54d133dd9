"""Command-line words to a typed configuration, and the ids hashed from it."""
