"""The scripts' commands and exit codes."""
