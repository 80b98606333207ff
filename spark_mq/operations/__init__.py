"""Carry out what is done to one queue or one group."""
