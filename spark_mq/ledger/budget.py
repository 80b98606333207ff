"""Limit what a lease takes, at once and by the rate of its group.

A :class:`Budget` answers while messages are taken, so nothing is selected that must be given back.

A limit of the rate is a token bucket that is kept as one instant: when it will be full again (GCRA,
the virtual scheduling algorithm of ITU-T I.371). Each lease moves that instant on by the time that
its messages take at the rate.

So in each window of a time T, a group leases at most ``rate * (T + burst)``, or one message that is
larger. Clocks that differ add ``rate * clock_skew``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, NamedTuple

from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import LedgerHeader
from spark_mq.ledger.settings import GroupSettings
from spark_mq.util.clock import MICROSECOND, to_datetime
from spark_mq.util.setting_fields import Rate
from spark_mq.util.show import show_moment

# The limits of a group, which end by themselves. Any other reason for no lease stops it.
MAX_IN_FLIGHT: Final = "max_in_flight"
MAX_IN_FLIGHT_BYTES: Final = "max_in_flight_bytes"
MAX_IN_FLIGHT_PER_KEY: Final = "max_in_flight_per_key"
RATE_LIMIT: Final = "rate_limit"
LAST_ATTEMPT: Final = "last_attempt"
"""A suspect on its last attempt is alone in its worker. The group's settings do not limit that."""
_LIMITS: Final = (
    LAST_ATTEMPT,
    MAX_IN_FLIGHT,
    MAX_IN_FLIGHT_BYTES,
    MAX_IN_FLIGHT_PER_KEY,
    RATE_LIMIT,
)
SHARE: Final = 4
"""A lease waits for the 1/SHARE of a burst, so that a busy group makes few small leases."""

_SAMPLED: Final = 100  # slices of files that an estimate of the mean message size looks at


def limit_in(why: str) -> str:
    """Return the limit that is a reason for no lease, such as "max_in_flight", or no text."""
    name = why.partition(":")[0]
    return name if name in _LIMITS else ""


def is_stopped(why: str) -> bool:
    """Return whether a reason for no lease is a problem, as it is unless it is a limit."""
    return bool(why) and not limit_in(why)


@dataclass(slots=True)
class Budget:
    """What a lease may still take. Without messages it is spent."""

    index: MessageIndex
    messages: int
    bytes: int | None = None  # estimated in the data files. None for no limit
    taken: int = 0
    out_of_bytes: bool = False

    def take(self, first: int, last: int, most: int | None = None) -> int:
        """Take as many of the first messages as fit, up to `most`, and return how many.

        The first message of a lease always fits.
        """
        count = min(self.messages, self.index.count(first, last))
        if most is not None:
            count = min(count, most)
        if self.bytes is not None and count > 0:
            wanted, (count, self.bytes) = count, self._fit_bytes(first, count, self.bytes)
            self.out_of_bytes = count < wanted
        self.messages = 0 if self.out_of_bytes else self.messages - count
        self.taken += count
        return count

    def _fit_bytes(self, first: int, count: int, left: int) -> tuple[int, int]:
        """Return how many of `count` messages fit, by file, and the bytes that remain."""
        fits = 0
        for piece in self.index.slices(first, self.index.nth_from(first, count)):
            if piece.size > left or left < 0:
                fits += piece.rows * max(0, left) // piece.size if piece.size else 0
                return (fits, 0) if fits or self.taken else (1, -1)
            fits += piece.rows
            left -= piece.size
        return fits, left

    def expected(self, first: int, last: int) -> int:
        """Estimate how many messages it has room for, from the mean size of those that wait."""
        if self.bytes is None:
            return self.messages
        pieces = list(islice(self.index.slices(first, last), _SAMPLED))
        size, rows = sum(piece.size for piece in pieces), sum(piece.rows for piece in pieces)
        return min(self.messages, self.bytes * rows // max(1, size))


class _Bucket(NamedTuple):
    """One limit. Instants and durations are microseconds."""

    rate: Rate
    burst: int
    full_at: int
    noted_at: int  # when the last lease began

    @property
    def most(self) -> int:
        """Return how long the full bucket lasts at the rate: one unit at least."""
        return max(self.burst, self.rate.duration_of(1))

    def missing(self, now: int) -> int:
        """Return how long the bucket fills until it is full."""
        # Not longer than at the last lease, whose clock may have run ahead.
        return max(0, self.full_at - max(now, self.noted_at))

    def units(self, now: int) -> int:
        return self.rate.units_in(max(0, self.most - self.missing(now)))

    def least(self, units: int | None) -> int:
        """Return the units that a lease waits for. None for one that takes any number."""
        share = max(1, self.rate.units_in(self.most // SHARE))
        return share if units is None else min(share, units)

    def instant_of(self, units: int, now: int) -> int:
        """Return when it will have these units, or as many as it can hold."""
        wanted = min(self.rate.duration_of(units), self.most)
        return now + max(0, self.missing(now) - (self.most - wanted))

    def without(self, units: int, now: int) -> int:
        """Return when it is full again after some units are taken."""
        return now + self.missing(now) + self.rate.duration_of(units)


class RateLimits(NamedTuple):
    """The limits of a group for one lease."""

    messages: _Bucket | None
    bytes: _Bucket | None
    now: int

    @classmethod
    def of(cls, head: LedgerHeader, rules: GroupSettings, now: int) -> RateLimits:
        burst, noted_at = rules.rate_burst // MICROSECOND, head.rate_noted_at
        # Within the margin, time never goes back. Otherwise workers whose clocks differ would gain
        # the difference again with each lease.
        if now < noted_at <= now + rules.clock_skew // MICROSECOND:
            now = noted_at

        def bucket(rate: Rate | None, full_at: int) -> _Bucket | None:
            return None if rate is None else _Bucket(rate, burst, full_at, noted_at)

        return cls(
            bucket(rules.rate_limit, head.rate_full_at),
            bucket(rules.byte_rate_limit, head.byte_rate_full_at),
            now,
        )

    def limit(self, max_messages: int, max_bytes: int | None) -> tuple[int, int | None]:
        """Return the messages and bytes that a lease may have now. A byte stands for none."""
        if self.messages is not None:
            max_messages = min(max_messages, self.messages.units(self.now))
        if self.bytes is not None:
            units = max(1, self.bytes.units(self.now))
            max_bytes = units if max_bytes is None else min(max_bytes, units)
        return max_messages, max_bytes

    def wait_until(
        self, max_messages: int, max_bytes: int | None, messages: int, size: int, *, cut: bool
    ) -> int | None:
        """Return until when a lease must wait, or None if it may begin.

        It asked for `max_messages` and `max_bytes`. By the limits it would get some `messages` of a
        `size`, and `cut` says if more would fit without the limit of bytes.
        """
        ends = []
        if (own := self.messages) is not None:
            units, least = own.units(self.now), own.least(max_messages)
            if units < least and messages >= units:
                ends.append(own.instant_of(least, self.now))
        if (own := self.bytes) is not None:
            units, least = own.units(self.now), own.least(max_bytes)
            short = size > units and own.missing(self.now) > 0  # a full bucket lets any message go
            if short or (units < least and cut):
                wanted = max(size, least if max_messages > 1 else 0) if short else least
                ends.append(own.instant_of(wanted, self.now))
        return max(ends, default=None)

    def after(self, head: LedgerHeader, messages: int, size: int) -> LedgerHeader:
        """Return the header after a lease of some messages of a size."""
        head = replace(head, rate_noted_at=self.now)
        if self.messages is not None:
            head = replace(head, rate_full_at=self.messages.without(messages, self.now))
        if self.bytes is not None:
            head = replace(head, byte_rate_full_at=self.bytes.without(size, self.now))
        return head

    def why(self, until: int) -> str:
        units = (("messages", self.messages), ("bytes", self.bytes))
        rates = [f"{bucket.rate} {unit}" for unit, bucket in units if bucket]
        at = show_moment(to_datetime(until))
        return f"{RATE_LIMIT}: {' and '.join(rates)}; the next lease is at {at}"
