"""From the words typed to a typed, hashed configuration, and the ids that hang on it."""
