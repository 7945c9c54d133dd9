"""Kernels of attention: torch's fused one, blocks of queries, FlexAttention."""
