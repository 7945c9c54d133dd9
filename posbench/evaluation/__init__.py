"""Parts shared by all protocols: targets, windows, scoring."""
