"""Both storages behind one fixture."""

from support.queues import clock, delta_queue, make, pytest_generate_tests, queue

__all__ = ["clock", "delta_queue", "make", "pytest_generate_tests", "queue"]
