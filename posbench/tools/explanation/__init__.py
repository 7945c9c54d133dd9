"""Explanation of what a configuration of RoPE says, and of what each engine makes of it."""
