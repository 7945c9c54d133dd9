"""The ways to attend: fused, in blocks of queries, FlexAttention."""
