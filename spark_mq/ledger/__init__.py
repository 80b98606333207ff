"""Decide deliveries: pure rules, without I/O, clock or chance."""
