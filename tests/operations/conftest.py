"""Both storages behind one fixture."""

from support.queues import clock, delta_queue, make, place, pytest_generate_tests, queue
from support.sinks import sink

__all__ = ["clock", "delta_queue", "make", "place", "pytest_generate_tests", "queue", "sink"]
