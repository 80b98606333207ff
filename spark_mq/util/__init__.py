"""Provide helpers that know nothing of queues."""
