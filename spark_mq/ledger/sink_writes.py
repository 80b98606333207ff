"""Name the writes of a group's leases into its sink, a Delta table.

Each lease of a group with a sink may append its rows once, under a transaction of its own in the
sink's log: a *writer*, which is a name there, and a number. A message keeps the writes of its
earlier leases until it is settled, because a dead holder may have written, or may still write. The
next holder looks into the sink's log before it writes, see :mod:`spark_mq.storage.delta_sink`.

No lease gets a writer that an unsettled message names. So the last number of a writer in the sink
is of the write that the message names, or that one is not there: a later write cannot hide it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from spark_mq.ledger.ranges import Condition, Ledger, Range
from spark_mq.ledger.states import UNSETTLED

WRITTEN: Final[Condition] = ("sink_writes", "is set", None)
"""True for messages that the sink may have."""


class SinkWrite(NamedTuple):
    """The write of one lease."""

    writer: int  # from 0 on; the sink's log keeps one number for each
    number: int  # grows from lease to lease

    def __str__(self) -> str:
        return f"{self.writer}:{self.number}"


def parse_writes(text: str | None) -> tuple[SinkWrite, ...]:
    """Return the writes that ``Range.sink_writes`` has, oldest first."""
    pairs = (write.split(":") for write in (text or "").split())
    return tuple(SinkWrite(int(writer), int(number)) for writer, number in pairs)


def with_write(r: Range, write: SinkWrite) -> str:
    """Return the writes of a range after a lease with such a write."""
    return " ".join(filter(None, (r.sink_writes, str(write))))


def without_last_write(r: Range) -> str | None:
    """Return the writes of a range without that of the lease which holds it."""
    return (r.sink_writes or "").rpartition(" ")[0] or None


def next_write(ledger: Ledger, now: int) -> SinkWrite:
    texts = ledger.distinct("sink_writes", UNSETTLED) - {None}
    used = {write.writer for text in texts for write in parse_writes(text)}
    writer = next(n for n in range(len(used) + 1) if n not in used)
    # The time, so that a group which was dropped and made again does not repeat a number.
    return SinkWrite(writer, max(now, ledger.head.last_sink_write + 1))
