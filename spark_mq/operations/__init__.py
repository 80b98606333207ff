"""Carry out operations on one queue or one group."""
