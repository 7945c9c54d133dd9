"""Building blocks of methods: hooks, geometry, the plan of one length, and the rules for combining
methods.
"""
