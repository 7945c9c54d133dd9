"""The two kinds of failure a user meets; both end with one sentence and no traceback."""


class ConfigError(ValueError):
    """The configuration asks for something that cannot be done; the process exits 2."""


class RunError(ValueError):
    """A job that was legal failed for a reason outside the code (damaged file, full disk); the process exits 1."""
