"""Share the place of a queue with tests/operations."""

from support.queues import place

__all__ = ["place"]
