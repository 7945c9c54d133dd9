"""The GPT, and how it is made from a configuration."""
