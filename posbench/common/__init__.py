"""Atomic files, errors, locks, signals, text and progress. This room imports no other room."""
