"""Define the delivery rules of a consumer group.

The rules are pure functions from one ledger to the next. They do no I/O, read no clock and draw
no random numbers. Time, the message index and jitter are arguments.

A ledger divides the log into ranges. Each range is in one state::

         deliver_at
      +----------------------------+
      |                            v
    unread --lease--> leased <--> waiting        --> nack, release, expiry
                       |  |          |           <-- lease, extend
                       |  |          |
                ack    |  | reject,  | limit
      +----------------+  | limit    |
      |                   v          v
      |                  dead or blocked         blocked: unblock moves it to
      |                   |                      waiting, dead or settled
      |                   | route
      v                   v
    settled <---------- routing                  redrive: waiting or unread
      |                                          moves to routing
      v
    forgotten below the floor

========  =====================================  ==========================================
State     Entered by                             Left by
========  =====================================  ==========================================
unread    publish                                a worker's lease, or expires_at
leased    a worker's lease, counted              a settle, or the next operation after expiry
waiting   nack, release, expiry, deliver_at,     a worker's lease, from available_at on
          a file out of reach, or the owner
dead      reject, a limit, a damaged file, or    the sweep, which routes it, or the owner
          the owner
blocked   a limit in a group that blocks         the owner's unblock
routing   the sweep or a redrive                 the same, after the copy is published
settled   ack, routed, drop, skip, expires_at    the next commit, if nothing lies before it
========  =====================================  ==========================================

A waiting range can also be settled: by its lease's late ack, by expires_at, or by a trim. A late
nack or release expires its range first, unless an earlier operation has done so. The owner may
discard, retry or make dead any message that is not in routing. A seek may move any range but a
routing one to settled or unread.

Each rule has one module:

- ``states`` defines the states and their legal transitions.
- ``ranges`` defines the ranges and the ledger.
- ``editor`` builds the next ledger and checks each transition.
- ``acquire`` leases messages. ``acquisition`` selects them, ``order`` sorts them, and ``taking``
  takes them.
- ``bands`` maps rows of files to lanes and priorities. ``banded`` selects a lease by them,
  ``band_walk`` takes its messages, and ``key_order`` keeps the order of keys after a failure.
- ``settle`` applies ack, nack, reject and release, and ``extend`` extends a lease.
  ``held_messages`` finds the messages of a lease, for both.
- ``breaker`` stops a group whose handler fails for every message, or that its owner paused.
- ``transitions`` applies expiry and limits, and ``replay`` replays a batch.
- ``routing`` freezes ranges for a copy to another queue, and settles them after it.
- ``schedule`` applies deliver_at and expires_at.
- ``unreadable`` sets aside messages with an unreadable payload.
- ``interventions`` changes single messages for the owner: discard, retry now, dead letter.
- ``admin`` applies seek, unblock, pause, resume, and the loss of trimmed messages.
- ``stats`` counts messages by state.

Each operation first expires leases past their deadline. It never expires the lease it names.
The rules were checked by an exhaustive search over small models. ``tests/model`` repeats it.
"""
