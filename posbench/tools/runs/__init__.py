"""List of the runs of a folder, and deletion of what is no longer needed."""
