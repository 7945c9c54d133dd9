"""Building blocks of methods: hooks, geometry, the plan of one length, and which method goes with which."""
