"""Share the place of a queue with tests/operations, and the server of processes that fail."""

from failing_calls import failing_calls
from support.queues import place

__all__ = ["failing_calls", "place"]
