"""Sweep, repair, redrive and drop queues."""
