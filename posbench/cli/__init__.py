"""Commands and exit codes of the scripts."""
