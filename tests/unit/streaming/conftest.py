"""Fixtures of tests/support for the tests in this folder."""

from support.queues import clock

__all__ = ["clock"]
