"""The GPT, and its construction from a configuration."""
