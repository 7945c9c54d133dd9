"""Building blocks of methods: hooks, geometry, plans, and the rules for combining methods."""
