"""Helpers of the tests. ``tests/`` is on the path, so import them from ``support``."""
