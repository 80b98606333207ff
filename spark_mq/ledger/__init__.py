"""Define the delivery rules of a group, without I/O, clock or randomness.

The rules are pure functions from one ledger to the next. They do no I/O, read no clock and draw no
random numbers, because time, the message index and jitter are arguments. So ``tests/model`` can
check them by an exhaustive search over small models.
Each operation first expires leases past their deadline, but never the lease that it names.
``docs/reference/states.md`` shows the states and the operations that change them.
"""
