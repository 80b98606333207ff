"""Sweep, repair, redrive and drop queues: one file for each chore."""
