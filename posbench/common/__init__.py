"""Files that are whole or absent, errors, signals, text and progress; imports nothing of posbench."""
