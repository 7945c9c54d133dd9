"""The GPT and how it is built."""
