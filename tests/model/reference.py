"""A consumer group with one row a message: the delivery rules in the dullest form there is.

Each world judges by this one reference, so a rule of delivery stands once. A world leads the
reference through the same operations as the ledger. What a lease takes isn't chosen here:
:meth:`ReferenceGroup.check_grant` judges a choice by the rules. Nothing here is shared with the
ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from itertools import groupby
from typing import Any

DELIVERY = {
    "lease_id": None,
    "worker_id": None,
    "leased_at": None,
    "expires_at": None,
    "lease_size": None,
    "first_leased_at": None,
    "first_failed_at": None,
    "delivery_count": 0,
    "failure_count": 0,
    "suspect": False,
    "available_at": None,
    "reason": None,
}
"""What is known of a message apart from its state, as of one that was never leased."""

FOR_OTHER_REASONS = (None, "rejected", "payload unreadable", "requested")
"""Why a message may be dead, or due, that never failed by itself."""
END = 2**63
ENDED = ("settled", "dead", "transferring")
"""States in which a message holds back no later one of its key."""


@dataclass
class ReferenceMessage:
    """A message as one group sees it."""

    seq: int
    size: int = 1
    key: str | None = None
    priority: int = 0
    lane: int | None = None
    due: int = 0
    """When it's due by its publish, unless the owner has made it due."""
    expires: int | None = None
    """From when on it may not be leased, by its publish."""
    wanted: bool = True
    """Whether the group gets it: it's in the filter, not for another group, and not replaced."""
    for_others: bool = False
    """Whether it's for another group, so that it may be skipped before it's due."""
    was_leased: bool = False
    """Once, even if the lease was released later."""
    overtaken: bool = False
    """Whether the owner put it back after it had ended, when later ones had gone on."""
    state: str = "unread"
    info: dict[str, Any] = field(default_factory=lambda: dict(DELIVERY))
    own_failure: bool = False
    """Failed by itself: named in a nack, or alone in its lease."""
    error: str | None = None
    """The last failure in the ledger's words.

    Taken from the ledger: it is for people, but it keeps ranges apart.
    """

    def look(self) -> tuple[Any, ...]:
        return (self.state, self.error, *self.info.values())

    def see(self, row: Any | None) -> None:
        """Be as the range of a ledger says, or unread."""
        if row is None:
            self.forget("unread")
            return
        expired = row.state == "available" and row.lease_id
        self.state, self.error = row.state, "expired" if expired else row.error
        self.info = {name: getattr(row, name) for name in DELIVERY}

    @property
    def is_scheduled(self) -> bool:
        """Whether the time of its publish counts. Nobody has leased it or made it due."""
        return self.due > 0 and not (self.info["delivery_count"] or self.info["reason"])

    @property
    def due_at(self) -> int:
        return max(self.info["available_at"] or 0, self.due if self.is_scheduled else 0)

    def is_due(self, now: int) -> bool:
        return self.state in ("unread", "available") and self.due_at <= now

    @property
    def is_skipped(self) -> bool:
        """Whether a lease settles it without a delivery. What was leased once is delivered."""
        return not self.wanted and self.info["first_leased_at"] is None

    def is_expired(self, now: int) -> bool:
        waits = self.state in ("unread", "available")
        return waits and self.expires is not None and self.expires <= now

    def is_over(self, now: int) -> bool:
        """Whether it holds back no later one of its key, and no lease takes it."""
        return self.state in ENDED or self.is_skipped or self.is_expired(now)

    def become(self, state: str, **info: Any) -> None:
        self.state = state
        self.info = {**self.info, **info}

    def forget(self, state: str, **info: Any) -> None:
        self.state = state
        self.info = {**DELIVERY, **info}

    def end_lease(self, state: str, **info: Any) -> None:
        """Out of the lease, its id and all that belongs to it gone.

        The time of the last delivery stays if the message has failed.
        """
        self.become(
            state,
            lease_id=None,
            worker_id=None,
            leased_at=self.info["leased_at"] if self.info["failure_count"] else None,
            expires_at=None,
            lease_size=None,
            **info,
        )

    def uncount(self, due: int) -> None:
        """Out of the lease, as if it had never been in it."""
        back = self.info["delivery_count"] - 1
        first = self.info["first_leased_at"] if back else None
        self.end_lease("available", available_at=due, delivery_count=back, first_leased_at=first)

    def die(self, reason: str, state: str = "dead") -> None:
        at = self.info["leased_at"]
        self.end_lease(state, available_at=None, suspect=False, reason=reason)
        self.info["leased_at"] = at


MICROSECOND = timedelta(microseconds=1)


@dataclass
class ReferenceGroup:
    """A group's messages, and its settings under their own names, without limits by default."""

    max_delivery_attempts: int | None = None
    clock_skew: int = 0
    retry_delay: int = 0
    max_retry_delay: int = 0
    retry_jitter: float = 0.0
    max_in_flight: int | None = None
    max_tracked_ranges: int = 200_000
    retry: str = "exponential"
    max_failures: int | None = None
    max_retry_age: int | None = None
    on_max_deliveries: str = "dead_letter"
    on_reject: str = "dead_letter"
    breaker_threshold: int | None = None
    breaker_reset_timeout: int = 0
    breaker_max_wait: int = 0
    order: str = "none"
    by_lane: bool = False
    """Whether messages have lanes and priorities: then more than one choice may be right."""
    max_in_flight_per_key: int | None = None
    messages: list[ReferenceMessage] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    lease_sizes: dict[str, int] = field(default_factory=dict)
    leases_without_fresh: int = 0
    """Leases in a row that isolated suspects while something was unread."""
    streak: list[int] = field(default_factory=list)
    """The first messages of the leases that failed in a row."""
    opened: int | None = None
    trial_from: int | None = None
    trial: int | None = None
    trials_failed: int = 0
    paused: int | None = None
    skipped: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, settings: Any, **more: Any) -> ReferenceGroup:
        """Return a group with the settings of a real one."""
        names = [known.name for known in fields(cls) if hasattr(settings, known.name)]
        given = {name: getattr(settings, name) for name in names}
        for name, value in given.items():
            if isinstance(value, timedelta):
                given[name] = value // MICROSECOND
        return cls(**given, **more)

    # -- looking

    def see(self, rows: Iterable[Any | None]) -> None:
        """See each message in its range of a ledger. None is an unread one."""
        for m, row in zip(self.messages, rows, strict=True):
            m.see(row)

    def see_head(self, head: Any) -> None:
        breaker, self.counters = head.breaker, dict(head.counters)
        self.leases_without_fresh = head.leases_without_fresh
        self.streak, self.opened = list(breaker.failed), breaker.opened_at
        self.trial_from, self.trial = breaker.next_trial_at, breaker.trial
        self.trials_failed, self.paused = breaker.failed_trials, breaker.paused_at

    def of_head(self) -> tuple[Any, ...]:
        """What the head of a ledger says, as a reference that saw it."""
        return (
            self.counters, self.leases_without_fresh, self.streak, self.opened, self.trial_from,
            self.trial, self.trials_failed, self.paused,
        )  # fmt: skip

    def check_ledger(self, ledger: Any) -> None:
        """Whether a ledger says the same of each message. The words of its errors are taken over:
        they are for people, but keep ranges apart. So is when to look again at scheduled messages.
        """
        other = ReferenceGroup()
        other.see_head(ledger.head)
        assert self.of_head() == other.of_head(), "the heads differ"
        for m, row in self._with_rows(ledger):
            if row is None:
                expected = "settled" if m.seq <= ledger.head.start_sequence else "unread"
                assert m.state == expected, f"message {m.seq:x} is lost"
                m.error = None
            else:
                if m.state == row.state == "available" and m.is_scheduled:
                    assert row.available_at <= m.due_at, f"message {m.seq:x} is looked at too late"
                    m.info["available_at"] = row.available_at
                seen = (row.state, *(getattr(row, name) for name in DELIVERY))
                assert (m.state, *m.info.values()) == seen, f"message {m.seq:x}"
                m.error = row.error
        assert len(list(ledger)) == len(self.runs()), "neighbours are alike, or the floor is low"

    def inside(self, spans: Iterable[tuple[Any, ...]]) -> list[int]:
        """The messages of some intervals."""
        known = list(spans)
        return [m.seq for m in self.messages if any(a <= m.seq <= b for a, b, *_ in known)]

    def check_limits(self) -> None:
        for m in self.messages:
            most, reason = self.max_delivery_attempts, m.info["reason"]
            assert most is None or m.info["delivery_count"] <= most
            innocent = not m.own_failure and reason not in FOR_OTHER_REASONS
            assert not innocent, f"an innocent died: {m.seq:x} by {reason}"

    def _with_rows(self, ledger: Any) -> Iterator[tuple[ReferenceMessage, Any | None]]:
        """Each message with its range, or None if it's unread or below the floor."""
        ranges = iter(ledger)
        row = next(ranges, None)
        for m in self.messages:
            while row is not None and row.last < m.seq:
                row = next(ranges, None)
            yield m, row if row is not None and row.first <= m.seq else None

    def held_mask(self, lease_id: str) -> list[ReferenceMessage]:
        held = self.by_state("leased", "available")
        return [m for m in held if m.info["lease_id"] == lease_id]

    def named(self, seqs: Iterable[int]) -> list[ReferenceMessage]:
        wanted = set(seqs)
        return [m for m in self.messages if m.seq in wanted]

    def by_state(self, *states: str) -> list[ReferenceMessage]:
        return [m for m in self.messages if m.state in states]

    def runs(self) -> list[list[ReferenceMessage]]:
        """Neighbours alike in everything, from the first message that is not settled up to the last
        that is not unread.
        """
        runs = [list(run) for _, run in groupby(self.messages, key=ReferenceMessage.look)]
        while runs and runs[0][0].state == "settled":
            runs.pop(0)
        while runs and runs[-1][0].state == "unread":
            runs.pop()
        return runs

    def count(self, outcome: str, messages: int) -> None:
        if messages:
            self.counters[outcome] = self.counters.get(outcome, 0) + messages

    def spent(self, m: ReferenceMessage) -> bool:
        most = self.max_delivery_attempts
        return most is not None and m.info["delivery_count"] >= most

    def allowed(self, own: bool) -> int | None:
        f = 1 if self.retry == "none" else self.max_failures
        return f if f is None or own else max(f, 2)

    def attempts(self, spare: int) -> int | None:
        """The delivery on which a message that always fails must be alone."""
        most, failures = self.max_delivery_attempts, self.allowed(False)
        known = [] if most is None else [most - spare]
        known += [] if failures is None else [failures]
        return max(1, min(known)) if known else None

    def final(self, m: ReferenceMessage, now: int, own: bool) -> str:
        """Why a failure was the last, or ""."""
        f = self.allowed(own)
        if self.spent(m):
            return "max_delivery_attempts"
        if f is not None and m.info["failure_count"] >= f:
            return "max_failures"
        first, age = m.info["first_failed_at"], self.max_retry_age
        too_old = own and age is not None and first and now - first >= age
        return "max_retry_age" if too_old else ""

    def bury(self, m: ReferenceMessage, reason: str, how: str = "") -> None:
        how = how or self.on_max_deliveries
        if how == "drop":
            m.forget("settled")
            self.count("dropped", 1)
        else:
            m.die(reason, "blocked" if how == "block" else "dead")

    def reject(self, m: ReferenceMessage, reason: str) -> None:
        self.bury(m, reason, self.on_reject)

    # -- the breaker

    def lease_failed(self, first: int, at: int) -> None:
        if self.breaker_threshold is None:
            return
        if self.opened is not None:
            if first == self.trial:
                self.trials_failed, self.trial = self.trials_failed + 1, None
                self.trial_from = at + self.wait_for_trial()
        elif first not in self.streak:
            self.streak.append(first)
            if len(self.streak) == self.breaker_threshold:
                self.opened, self.trial_from = at, at + self.breaker_reset_timeout

    def lease_expired(self, deliveries: int, first: int, at: int) -> None:
        if deliveries > 1 or first == self.trial:  # a first death is mostly a deployment
            self.lease_failed(first, at)

    def wait_for_trial(self) -> int:
        wait = self.breaker_reset_timeout
        for _ in range(self.trials_failed):
            wait = min(2 * wait, self.breaker_max_wait)
        return wait

    def worked(self, seqs: list[int]) -> None:
        """The handler has dealt with messages."""
        if self.opened is None:
            self.streak = []
        elif self.trial in seqs:
            self.resume_breaker()

    def resume_breaker(self) -> None:
        self.streak, self.opened, self.trial_from = [], None, None
        self.trial, self.trials_failed = None, 0

    def stopped(self, now: int) -> str:
        """Why nothing may be leased at all, or ""."""
        if self.paused is not None:
            return "paused"
        leased = {m.seq for m in self.by_state("leased")}
        waits = self.opened is not None and (now < self.trial_from or self.trial in leased)
        return "breaker" if waits else ""

    def alone(self, m: ReferenceMessage) -> bool:
        return m.info["lease_size"] == 1

    def pardon(self) -> None:
        """Waiting beyond a limit: by attempts, or by failures that were its own."""
        for m in self.by_state("available"):
            f = self.allowed(True)
            if self.spent(m) or (
                f is not None and m.info["failure_count"] >= f and not m.info["suspect"]
            ):
                self.bury(m, "max_delivery_attempts" if self.spent(m) else "max_failures")

    # -- transitions

    def expire_leases(self, now: int, keep: tuple[str, ...] = ()) -> None:
        self.note_company([m for m in self.by_state("leased") if self.late(m, now)])
        ended: dict[str, ReferenceMessage] = {}
        deadlines = {m.seq: m.info["expires_at"] for m in self.by_state("leased")}
        counts = {m.seq: m.info["delivery_count"] for m in self.by_state("leased")}
        for m in self.by_state("leased"):
            if self.late(m, now) and m.info["lease_id"] not in keep:
                ended.setdefault(m.info["lease_id"], m)
                self.expire_one(m)
        for m in sorted(ended.values(), key=lambda m: (deadlines[m.seq], m.seq)):
            self.lease_expired(counts[m.seq], m.seq, deadlines[m.seq])
        self.pardon_but(keep)

    def note_company(self, late: list[ReferenceMessage]) -> None:
        """A lone message was in company if its worker held another lease: both may have ended with
        the worker.
        """
        for worker in {m.info["worker_id"] for m in late}:
            held = self.held_by_process_of(worker)
            if len({m.info["lease_id"] for m in held}) > 1:
                for m in held:
                    if self.alone(m):
                        if self.attempts(0) != 1:  # with one, the death of a worker ends them all
                            self.lease_sizes[m.info["lease_id"]] = len(held)
                        m.info["lease_size"] = len(held)

    def held_by_process_of(self, worker: str) -> list[ReferenceMessage]:
        """A worker is ``process~name``. Its process ends with all its leases, whatever its name."""
        process = worker.split("~", maxsplit=1)[0]
        leased = self.by_state("leased")
        return [m for m in leased if m.info["worker_id"].split("~")[0] == process]

    def late(self, m: ReferenceMessage, now: int) -> bool:
        return m.state == "leased" and m.info["expires_at"] + self.clock_skew < now

    def expire_one(self, m: ReferenceMessage) -> None:
        at, m.error = m.info["expires_at"], "expired"
        self.failed(m, at)
        if reason := self.final(m, at, self.alone(m)):
            self.bury(m, reason)
        else:
            suspect = not self.alone(m)
            m.become("available", available_at=at, expires_at=None, suspect=suspect)

    def pardon_but(self, keep: tuple[str, ...]) -> None:
        kept = [m for m in self.by_state("available") if m.info["lease_id"] in keep]
        for m in kept:
            m.state = "kept"
        self.pardon()
        for m in kept:
            m.state = "available"

    def failed(self, m: ReferenceMessage, now: int, named: bool = False) -> None:
        m.own_failure |= named or self.lease_sizes.get(m.info["lease_id"]) == 1
        m.info["failure_count"] += 1
        m.info["first_failed_at"] = m.info["first_failed_at"] or now

    def granted(
        self, messages: list[ReferenceMessage], lease_id: str, worker_id: str, now: int,
        expires_at: int,
    ) -> None:  # fmt: skip
        self.lease_sizes[lease_id] = len(messages)
        for m in messages:
            first = m.info["first_leased_at"]
            m.was_leased = True
            m.become(
                "leased", lease_id=lease_id, worker_id=worker_id, leased_at=now,
                expires_at=expires_at, lease_size=len(messages), available_at=None,
                delivery_count=m.info["delivery_count"] + 1,
                first_leased_at=now if first is None else first,
            )  # fmt: skip
        self.excuse_company(worker_id)

    def settle(
        self, verb: str, lease_id: str, seqs: list[int] | None, now: int, *, whole: bool = False,
        delay: int | None = None, jitter: float = 0.0,
    ) -> tuple[int, int, set[int], set[int]]:  # fmt: skip
        """Returns how many messages were settled, how many already were, the sequences that are not
        the lease's to settle, and those that it has lost since.
        """
        if len({m.state for m in self.held_mask(lease_id)}) == 2:  # a part of it has expired
            self.return_behind(lease_id, now)
        by_seq = {m.seq: m for m in self.messages}
        names = [m.seq for m in self.held_mask(lease_id)] if seqs is None else sorted(set(seqs))
        settled, already, lost = 0, 0, set()
        ended: list[tuple[int, int, int]] = []
        done: list[int] = []
        for seq in names:
            m = by_seq.get(seq)
            mine = m is not None and m.state == "leased" and m.info["lease_id"] == lease_id
            if mine and verb in ("nack", "release") and self.late(m, now):
                # As if another operation had come first.
                ended.append((m.info["delivery_count"], seq, m.info["expires_at"]))
                self.expire_one(m)
                if m.state != "available" and seqs is None:
                    continue
            elif mine and verb == "nack":
                ended.append((2, seq, now))
            if (
                m is None
                or m.state in ("unread", "dead", "blocked", "transferring")
                or (m.state == "settled" and seq in self.skipped)
            ):
                lost.add(seq)
            elif m.state == "settled":
                already += 1
            elif m.info["lease_id"] != lease_id:
                lost.add(seq)
            else:
                settled += 1
                done.append(seq)
                named = seqs is not None and not whole
                self.settle_one(verb, m, now, named=named, delay=delay, jitter=jitter)
        if done and verb in ("ack", "reject"):
            self.worked(done)
        elif ended and not self.held_mask(lease_id):
            self.lease_expired(*ended[0])
        gives_back = verb in ("nack", "release")
        return settled, already, lost, self.return_behind(lease_id, now) if gives_back else set()

    def settle_one(
        self, verb: str, m: ReferenceMessage, now: int, *, named: bool, delay: int | None,
        jitter: float,
    ) -> None:  # fmt: skip
        late = m.state == "available"
        if verb == "ack":
            m.forget("settled")
            self.count("acked", 1)
        elif verb == "reject":
            self.reject(m, "rejected")
        elif verb == "nack":
            if late:
                m.own_failure |= named
            else:
                self.failed(m, now, named)
            if reason := self.final(m, now, named or self.alone(m)):
                self.bury(m, reason)
                return
            if delay is None:
                times = m.info["failure_count"]
                growth = {"none": 0, "constant": 1, "linear": times}
                growth["exponential"] = 1 << (times - 1)
                backoff = min(self.max_retry_delay, self.retry_delay * growth[self.retry])
                delay = 0 if late else round(backoff * (1 + self.retry_jitter * jitter))
            suspect, size = not named and not self.alone(m), m.info["lease_size"]
            m.end_lease("available", available_at=now + delay, suspect=suspect)
            m.info["lease_size"] = size if suspect else None
        elif late:
            size, due = m.info["lease_size"], m.info["available_at"]
            m.end_lease("available", available_at=due if delay is None else now + delay)
            m.info["lease_size"] = size if m.info["suspect"] else None
        else:
            m.uncount(now + (delay or 0))

    def return_behind(self, lease_id: str, now: int) -> set[int]:
        """Give back, uncounted, what a lease holds behind an unsettled message of its lane."""
        given_back, expired, lost = set[Any](), set[Any](), set[int]()
        for m in self.by_state("leased", "available", "blocked") if self.order == "key" else ():
            slot = m.lane, m.priority
            if m.lane is None:
                continue
            if m.info["lease_id"] != lease_id:
                given_back |= {slot} if m.state != "leased" else set()
            elif slot in given_back or (m.state == "leased" and slot in expired):
                lost.add(m.seq)
                if m.state == "leased":
                    m.uncount(now)
                m.info["lease_id"] = None
            elif m.state == "available":
                expired.add(slot)
        return lost

    def end_claims(self, chosen: Sequence[ReferenceMessage], now: int) -> None:
        """An expired lease loses its claim with one of its lanes, if the order is kept. What it
        has extended must not go before that.
        """
        lanes = {m.lane for m in chosen if self.order == "key"} - {None}
        late = [m for m in self.by_state("available") if m.info["lease_id"]]
        lost = {m.info["lease_id"] for m in late if m.lane in lanes}
        for m in late:
            if m.info["lease_id"] in lost:
                m.info["lease_id"] = None
        for lease_id in lost:
            self.return_behind(lease_id, now)

    def extend(
        self, lease_id: str, expires_at: int, seqs: list[int] | None, now: int
    ) -> tuple[int, int, set[int], set[int]]:
        """Returns the same as :meth:`settle`."""
        held = [m for m in self.held_mask(lease_id) if seqs is None or m.seq in seqs]
        others = set(seqs or ()) - {m.seq for m in held}
        done = {m.seq for m in self.by_state("settled")} - self.skipped
        before = [(m, {**vars(m), "info": {**m.info}}) for m in self.messages]
        expired = {m.seq for m in held if m.state == "available"}
        self._extend(held, expires_at)
        lost = set() if seqs is None else self.return_behind(lease_id, now)
        if stay := expired & lost:  # an expiry has counted them
            for m, known in before:
                vars(m).update(known)
            self._extend([m for m in held if m.seq not in stay], expires_at)
            lost = self.return_behind(lease_id, now)
        gone = {m.seq for m in held} & (lost | stay)
        return len(held) - len(gone), len(others & done), (others - done) | gone, lost

    def _extend(self, held: list[ReferenceMessage], expires_at: int) -> None:
        for m in held:
            if m.state == "available":
                left = m.info["failure_count"] - 1
                first = m.info["first_failed_at"] if left else None
                m.become("leased", failure_count=left, first_failed_at=first, available_at=None)
                m.info["expires_at"] = expires_at
                self.excuse_company(m.info["worker_id"])
            else:
                m.become("leased", expires_at=max(expires_at, m.info["expires_at"]))

    def excuse_company(self, worker: str) -> None:
        """A message on its last attempt may get company by a lease of named messages, by a stream,
        and by an extension that revives a lease. Then it may die of it.
        """
        held = self.held_by_process_of(worker)
        attempts = self.attempts(0)
        if attempts is None or len({m.info["lease_id"] for m in held}) == 1:
            return
        for m in held:
            if self.alone(m) and m.info["delivery_count"] >= attempts:
                m.own_failure = True

    def replay_batch(
        self, prefix: str, lease_id: str, worker_id: str, now: int, expires_at: int, *,
        granted_before: bool,
    ) -> list[ReferenceMessage]:  # fmt: skip
        held = self.by_state("leased", "available")
        held = [m for m in held if (m.info["lease_id"] or "").startswith(prefix)]
        n, f = self.max_delivery_attempts or 10**9, self.allowed(False) or 10**9
        kept: list[ReferenceMessage] = []
        returned: list[int] = []
        for m in held:
            left = min(n - m.info["delivery_count"], f - m.info["failure_count"])
            own = m.info["failure_count"] > 0 and not m.info["suspect"]
            if not granted_before and left >= 1 and (left > 1 or len(held) == 1 or own):
                kept.append(m)
                continue
            if m.state == "leased":
                returned.append(m.seq)
                self.failed(m, now)
            if reason := self.final(m, now, self.alone(m)):
                self.bury(m, reason)
            else:
                size = m.info["lease_size"]
                m.end_lease("available", available_at=now, suspect=size != 1)
                m.info["lease_size"] = None if size == 1 else size
        if returned and not kept:
            self.lease_failed(returned[0], now)
        for m in kept:
            m.own_failure |= self.lease_sizes.get(m.info["lease_id"]) == 1
        self.granted(kept, lease_id, worker_id, now, expires_at)
        lost = self.return_behind(lease_id, now)
        return [m for m in kept if m.seq not in lost]

    def freeze(self, transfer_id: str, ranges: int) -> list[ReferenceMessage]:
        dead = [run for run in self.runs() if run[0].state == "dead"][:ranges]
        for m in (frozen := [m for run in dead for m in run]):
            m.become("transferring", lease_id=transfer_id)
        return frozen

    def settle_routed(self, transfer_id: str) -> int:
        done = [m for m in self.by_state("transferring") if m.info["lease_id"] == transfer_id]
        for m in done:
            m.forget("settled")
        self.count("dead_lettered", len(done))
        return len(done)

    def unblock(self, how: str, now: int, seqs: list[int] | None) -> int:
        wanted = [m for m in self.by_state("blocked") if seqs is None or m.seq in seqs]
        for m in wanted:
            if how == "dead_letter":
                m.state = "dead"
            elif how == "drop":
                m.forget("settled")
                self.count("dropped", 1)
            else:
                m.own_failure = False
                m.forget("available", available_at=now, first_leased_at=m.info["first_leased_at"])
        return len(wanted)

    def intervene(self, how: str, seqs: list[int], now: int, force: bool) -> tuple[int, set[int]]:
        """Returns how many messages changed, and those that must not."""
        named = self.named(seqs)
        held = ("transferring",) if force else ("transferring", "leased")
        barred = {m.seq for m in named if m.state in held}
        if barred:
            return 0, barred
        changed, taken = 0, set[str]()
        for m in named:
            waits = m.state in ("unread", "available") and m.due_at > now
            if m.state == "settled" or (how == "dead letter" and m.state == "dead"):
                continue
            if how == "retry now" and not waits and m.state not in ("dead", "blocked", "leased"):
                continue
            if m.state == "unread":
                self._write_down(m.seq)
            taken |= {m.info["lease_id"]} if m.state == "leased" else set()
            self._intervene_one(how, m, now)
            changed += 1
        for lease_id in sorted(taken) if how == "retry now" else ():
            self.return_behind(lease_id, now)
        return changed, set()

    def _intervene_one(self, how: str, m: ReferenceMessage, now: int) -> None:
        if how == "discard":
            m.forget("settled")
            self.count("dropped", 1)
        elif how == "dead letter":
            m.die("requested")
        elif m.state in ("dead", "blocked") or (m.state == "leased" and self.spent(m)):
            m.overtaken |= m.state != "leased"
            m.own_failure = False
            kept = m.info["first_leased_at"]
            m.forget("available", available_at=now, first_leased_at=kept, reason="requested")
        else:
            keeps = m.info["suspect"] and m.state == "available"
            size = m.info["lease_size"] if keeps else None
            never = m.info["delivery_count"] == 0
            reason = "requested" if never else m.info["reason"]
            m.end_lease("available", available_at=now, reason=reason)
            m.info["lease_size"] = size

    def cut(self, horizon: int) -> int:
        waits = self.by_state("unread", "available", "dead", "blocked")
        gone = [m for m in waits if m.seq <= horizon]
        for m in gone:
            m.forget("settled")
        self.count("lost", len(gone))
        return len(gone)

    def seek(self, target: int) -> None:
        left = [m for m in self.messages if m.state not in ("settled", "transferring")]
        self.skipped = {seq for seq in self.skipped if seq < target}
        self.skipped |= {m.seq for m in left if m.seq < target}
        reach = max((m.seq for m in self.by_state("transferring")), default=-1)
        for m in self.messages:
            if m.state == "transferring":
                continue
            m.own_failure = m.overtaken = False
            if m.seq < target:
                self.count("skipped", m.state != "settled")
                m.forget("settled")
            elif m.seq < reach:  # below what stays, unread is written down as due since ever
                m.forget("available", available_at=0)
            else:
                m.forget("unread")

    # -- files that cannot be read

    def _due_of(self, first: int, last: int, now: int) -> list[ReferenceMessage]:
        """The due messages of a file. All of it that waits is in the ledger from now on."""
        waits = [m for m in self.by_state("unread", "available") if first <= m.seq <= last]
        due = [m for m in waits if m.due_at <= now]
        if due and any(m.state == "unread" for m in waits):
            self._write_down(last + 1)
        return due

    def _write_down(self, before: int) -> None:
        """Unread messages below something in the ledger are in it too, as due since ever."""
        for m in self.by_state("unread"):
            if m.seq < before:
                m.become("available", available_at=0)

    def bury_file(self, first: int, last: int, reason: str, now: int) -> int:
        due = self._due_of(first, last, now)
        for m in due:
            self.reject(m, reason)
        return len(due)

    def postpone_file(self, first: int, last: int, now: int, until: int) -> None:
        due = self._due_of(first, last, now)
        for m in due:
            m.become("available", available_at=until)

    # -- judging what a lease took

    def lease(self, taken: list[int], why: str, wanted: Any, now: int, after: Any) -> None:
        """Judge a lease by the ledger after it, and have it."""
        self.check_grant(taken, why, wanted, now)
        if not (chosen := self.named(taken)):
            return
        self.end_claims(chosen, now)
        self.granted(chosen, wanted.lease_id, wanted.worker_id, now, wanted.expires_at)
        if self.by_lane:  # how far it has looked is not judged then
            self._write_down(after.end_sequence + 1)
            self.leases_without_fresh = after.head.leases_without_fresh

    def check_grant(self, taken: list[int], why: str, wanted: Any, now: int) -> None:
        """Whether the rules allow this choice for a request.

        `self` is as it was before the lease, but folded.
        """
        if stopped := self.stopped(now):
            assert not taken, f"messages {taken} are leased, and the group is stopped: {stopped}"
            assert stopped in why
            return
        chosen = self.named(taken)
        assert len(chosen) == len(taken)
        limit = self._limit(wanted.max_messages)
        self.check_some(chosen, wanted.max_messages, now)
        if self.by_lane:
            self._check_lanes(chosen, why, wanted, limit, now)
        else:
            self._check_turn(taken, why, wanted, limit, now)

    def _limit(self, limit: int) -> int:
        """How many messages a lease may have that wants so many."""
        if self.max_in_flight is not None:
            limit = min(limit, self.max_in_flight - len(self.by_state("leased")))
        return limit if self.opened is None else min(1, limit)

    def check_some(self, chosen: Sequence[ReferenceMessage], limit: int, now: int) -> None:
        """Whether a lease may have these, even if it's the turn of others, and note a trial."""
        seqs, limit = [m.seq for m in chosen], max(0, self._limit(limit))
        assert not (seqs and self.stopped(now)), f"{seqs} are leased by a group that is stopped"
        assert len(chosen) <= limit, f"{seqs} are leased, at most {limit} may be"
        self.check_each(chosen, now)
        if self.opened is not None and chosen:
            self.trial, self.trial_from = seqs[0], now + self.wait_for_trial()

    def check_each(self, chosen: Sequence[ReferenceMessage], now: int) -> None:
        """Whether each message of a lease may be leased at all."""
        stops = [m.seq for m in self.by_state("blocked") if self.order != "key"]
        for m in chosen:
            assert m.state in ("unread", "available"), f"{m.seq:x} is leased, and was {m.state}"
            assert m.due_at <= now, f"{m.seq:x} is leased {m.due_at - now} us too early"
            assert not m.is_skipped, f"{m.seq:x} is leased, and is not for the group"
            assert not m.is_expired(now), f"{m.seq:x} is leased, and has expired"
            assert m.seq < min(stops, default=END), f"{m.seq:x} is leased behind {stops[0]:x}"
        if self.order == "key":
            self._check_order(chosen, now)

    def check_skipped(self, m: ReferenceMessage, now: int) -> None:
        """Whether a message may be settled without a delivery, if it has not ended before."""
        assert m.is_skipped, f"{m.seq:x} is skipped, and is for the group or was leased"
        assert m.for_others or m.due_at <= now, f"{m.seq:x} is skipped before it is due"

    def follow_skips(self, ledger: Any, now: int) -> None:
        """Judge what leases have settled without a delivery, and know it from now on."""
        for m, row in self._with_rows(ledger):
            over = m.seq <= ledger.head.start_sequence if row is None else row.state == "settled"
            if over and m.state in ("unread", "available"):
                self.count("expired" if m.is_expired(now) else "skipped", 1)
                if not m.is_expired(now):
                    self.check_skipped(m, now)
                m.forget("settled")

    def check_held_in_order(self) -> None:
        """No two leases hold one key, and none holds what stands behind a message given back."""
        holders: dict[str, str] = {}
        waits: dict[tuple[str, int], list[tuple[int, str | None]]] = {}
        for m in self.messages:
            if m.key is None or self.order != "key":
                continue
            lease = m.info["lease_id"]
            if m.state in ("available", "blocked") and not m.overtaken:
                waits.setdefault((m.key, m.priority), []).append((m.seq, lease))
            if m.state == "leased":
                held = holders.setdefault(m.key, lease)
                assert held == lease, f"{lease} and {held} hold messages of key {m.key}"
                # A part of the same lease may have expired: its next settle returns the rest.
                stops = [seq for seq, of in waits.get((m.key, m.priority), ()) if of != lease]
                assert not stops, f"{lease} holds {m.seq:x} of key {m.key} behind {stops}"

    def _check_order(self, chosen: Sequence[ReferenceMessage], now: int) -> None:
        """Nobody overtakes an earlier message of its key, nor works beside another on it."""
        taken = {m.seq for m in chosen}
        for m in chosen:
            for other in self.messages:
                if m.key is None or other.key != m.key or other.seq in taken:
                    continue
                assert other.state != "leased", f"{m.seq:x} is leased beside {other.seq:x}"
                if other.seq < m.seq and other.priority == m.priority:
                    over = other.is_over(now)
                    assert over, f"{m.seq:x} overtakes {other.seq:x}, which is {other.state}"

    def _check_lanes(
        self, chosen: Sequence[ReferenceMessage], why: str, wanted: Any, limit: int, now: int
    ) -> None:
        by = now if wanted.due_by is None else min(now, wanted.due_by)
        heads = [m for m in self._due_heads(now) if m in self._allowed(wanted) and m.is_due(by)]
        if not chosen:
            if why.startswith("last_attempt"):
                held = self.held_by_process_of(wanted.worker_id)
                assert held, f"{wanted.worker_id} holds nothing and must wait ({why})"
                return
            assert limit < 1 or not heads, f"nothing is leased, though {heads} are due ({why})"
            return
        left = [m.priority for m in heads if m not in chosen]
        lowest = min(m.priority for m in chosen)
        assert max(left, default=0) <= lowest, f"{chosen} go before a higher priority"
        self._check_shares(chosen, now)

    def _check_shares(self, chosen: Sequence[ReferenceMessage], now: int) -> None:
        """No key is over its limit, and none has two more of a fair lease than one that waits."""
        taken = Counter(m.key for m in chosen)
        leased = taken + Counter(m.key for m in self.by_state("leased"))
        cap = self.max_in_flight_per_key
        for m in chosen:
            over = cap is not None and leased[m.key] > cap
            assert not over, f"{leased[m.key]} messages of key {m.key} are leased, not {cap}"
        failed = any(m.info["suspect"] or m.info["failure_count"] for m in self.messages)
        if self.order != "fair" or failed:
            return
        for m in self.by_state("unread", "available"):
            waits = m.due_at <= now and not m.is_over(now) and m not in chosen
            fair = max(taken.values()) <= taken[m.key] + 1
            assert fair or not waits, (
                f"a lease of {dict(taken)} leaves message {m.seq:x} of {m.key}"
            )

    def _due_heads(self, now: int) -> list[ReferenceMessage]:
        """The messages with which a lease could begin.

        A blocked message stops its lane, or all later messages of a group without an order.
        """
        leased = Counter(m.lane for m in self.by_state("leased"))
        cap = 1 if self.order == "key" else self.max_in_flight_per_key or END
        closed, heads = set[tuple[int | None, int]](), list[ReferenceMessage]()
        for m in self.messages:
            if m.state == "leased" or m.is_over(now):
                continue
            if m.state == "blocked" and self.order != "key":
                break
            free = self.order != "key" or (m.lane, m.priority) not in closed
            free = m.lane is None or (free and leased[m.lane] < cap)
            if free and m.state != "blocked" and m.due_at <= now:
                heads.append(m)
            closed.add((m.lane, m.priority))
        return heads

    def _allowed(self, wanted: Any) -> list[ReferenceMessage]:
        """The messages that a request asks for."""
        upto = END if wanted.max_sequence is None else wanted.max_sequence
        spans = [(0, upto)] if wanted.intervals is None else wanted.intervals
        return [m for m in self.messages if any(a <= m.seq <= min(b, upto) for a, b in spans)]

    def _check_turn(self, taken: list[int], why: str, wanted: Any, limit: int, now: int) -> None:
        """Whether these are the ones whose turn it is, in a group without lanes."""
        attempts = self.attempts(wanted.reserved_attempts)
        blocked = min((m.seq for m in self.by_state("blocked")), default=END)
        behind = [m for m in self.messages if m.seq > blocked]
        by = now if wanted.due_by is None else min(now, wanted.due_by)
        allowed = [m for m in self._allowed(wanted) if m.seq < blocked]
        unread = [m for m in allowed if m.state == "unread"]
        due = [m for m in allowed if m.state == "available" and m.info["available_at"] <= by]
        # Ranges that count against the cap: not dead, transferring or delayed ones.
        heads = [run[0] for run in self.runs()]
        counted = [m for m in heads if m.state not in ("dead", "blocked", "transferring")]
        delayed = [m for m in counted if m.state == "available" and m.info["available_at"] > now]
        full = len(counted) - len(delayed) >= self.max_tracked_ranges
        limit = min(limit, 1 if attempts == 1 else limit)
        reads = [] if full else unread
        minds = wanted.reserved_attempts == 0 and wanted.intervals is None and limit >= 1
        if minds and (due or reads) and self._must_be_alone(wanted.worker_id, due, reads, attempts):
            assert not taken
            assert why.startswith("last_attempt")
            return
        if not taken:
            assert limit < 1 or not (due or reads), (
                "something is due and no cap is reached, yet nothing was granted"
            )
            reported = bool(due or unread) or (blocked < END and not why.startswith("max"))
            assert bool(why) == reported, (
                f"{why=} with {len(due)} due and {len(unread)} unread, {len(behind)} behind what "
                "blocks"
            )
            assert why in ("", "max_in_flight", "max_tracked_ranges") or str(blocked) in why
            assert why != "max_in_flight" or limit < 1
            assert why != "max_tracked_ranges" or full
            return
        assert why == ""
        assert len(set(taken)) == len(taken) <= limit
        trial = self.opened is not None and wanted.intervals is None
        turn = (trial and self._innocent(due, reads, attempts)) or self._turn(
            due, reads, limit, attempts, chosen=wanted.intervals is not None
        )
        expected = self._fitting(turn[:limit], wanted.max_bytes)
        assert taken == [m.seq for m in expected], (
            "the lease takes others than those whose turn it is"
        )
        if wanted.intervals is not None:
            pass  # the caller has chosen, so it was nobody's turn
        elif any(m.state == "unread" for m in expected):
            self.leases_without_fresh = 0
        elif reads and self._isolates(expected[0], attempts):
            self.leases_without_fresh = min(3, self.leases_without_fresh + 1)
        for m in self.by_state("unread"):  # those before named messages are tracked then
            if m.seq < max(taken) and m.seq not in taken:
                m.become("available", available_at=0)

    def _must_be_alone(
        self, worker: str, due: list[ReferenceMessage], reads: list[ReferenceMessage],
        attempts: int | None,
    ) -> bool:  # fmt: skip
        """Whether a worker gets nothing because it holds a suspect on its last attempt, or holds
        anything while it is the turn of one.
        """
        held = self.held_by_process_of(worker)
        if attempts in (None, 1) or not held:
            return False
        last = [m for m in held if self.alone(m) and m.info["delivery_count"] >= attempts]
        if any(m.info["suspect"] or not m.info["failure_count"] for m in last):
            return True
        if not due or (self.opened is not None and self._innocent(due, reads, attempts)):
            return False
        head = self._head(due, attempts)
        if reads and self.leases_without_fresh >= 3 and self._isolates(head, attempts):
            return False
        return self._suspect(head, attempts) and head.info["delivery_count"] >= attempts - 1

    @staticmethod
    def _innocent(
        due: list[ReferenceMessage], reads: list[ReferenceMessage], attempts: int | None
    ) -> list[ReferenceMessage]:
        """What a trial prefers, since it has not failed by itself."""
        undelivered = [m for m in due if not m.info["delivery_count"]] + reads
        most = END if attempts is None else attempts - 1
        suspects = [m for m in due if m.info["suspect"]]
        return undelivered or [m for m in suspects if m.info["delivery_count"] < most]

    def _turn(
        self, due: list[ReferenceMessage], reads: list[ReferenceMessage], limit: int,
        attempts: int | None, *, chosen: bool,
    ) -> list[ReferenceMessage]:  # fmt: skip
        """Who goes next: due work in its order, what failed together together, then unread."""
        if not due:
            return reads
        head = self._head(due, attempts)
        starved = not chosen and self.leases_without_fresh >= 3
        if reads and starved and self._isolates(head, attempts):
            return reads
        after = [m for m in due if m.seq >= head.seq]
        if self._suspect(head, attempts):
            alike = [m for m in after if self._suspect(m, attempts) and self._together(m, head)]
            return alike[: self._grown(head, limit, attempts or 5)]
        run: list[ReferenceMessage] = []
        for m in after:
            if self._suspect(m, attempts):
                break
            if self._last(m, attempts) == self._last(head, attempts):
                run.append(m)
        if self._last(head, attempts):
            assert all(m.own_failure for m in run[:limit]), (
                "an innocent on its last attempt, in company"
            )
        elif len(run) == len(due):
            run = run + reads
        return run

    def _head(self, due: list[ReferenceMessage], attempts: int | None) -> ReferenceMessage:
        if attempts is not None:
            return due[0]
        turn = lambda m: (m.info["available_at"], m.info["delivery_count"], m.seq)  # noqa: E731
        suspects = [m for m in due if m.info["suspect"]]
        rest = [m for m in due if not m.info["suspect"]]
        fresh = [m for m in rest if m.info["delivery_count"] < 5]
        heads = fresh[:1] + sorted(suspects, key=turn)[:1]
        return min(heads, key=lambda m: m.seq) if heads else min(rest, key=turn)

    def _isolates(self, head: ReferenceMessage, attempts: int | None) -> bool:
        delivered = head.info["delivery_count"]
        if self._suspect(head, attempts):
            return delivered > 1 or (attempts or 5) < 4
        return attempts is None and delivered >= 5

    def _last(self, m: ReferenceMessage, attempts: int | None) -> bool:
        """On its last attempt, having failed by itself."""
        return (
            attempts is not None
            and 0 < m.info["delivery_count"] >= attempts - 1
            and not self._suspect(m, attempts)
        )

    @staticmethod
    def _suspect(m: ReferenceMessage, attempts: int | None) -> bool:
        """Nobody knows whether it is the culprit.

        Or it never failed, and must not die for its company.
        """
        final = attempts is not None and 0 < m.info["delivery_count"] >= attempts - 1
        return bool(m.info["suspect"] or (final and not m.info["failure_count"]))

    @staticmethod
    def _together(one: ReferenceMessage, other: ReferenceMessage) -> bool:
        names = ("lease_id", "available_at", "delivery_count", "failure_count")
        return one.error == other.error and all(one.info[n] == other.info[n] for n in names)

    def _grown(self, head: ReferenceMessage, limit: int, n: int) -> int:
        """Up to twice as many for those of the failed lease that are done, but half of the rest."""
        size, failed = self._size(head, limit, n), head.info["lease_size"]
        if failed is None or n - 1 <= head.info["delivery_count"]:
            return size
        known = self.by_state("leased", "available", "dead", "blocked", "transferring")
        known = [m for m in known if m.info["first_failed_at"] == head.info["first_failed_at"]]
        same = [m for m in known if m.info["delivery_count"] >= head.info["delivery_count"]]
        waiting = [m for m in self.by_state("available") if self._together(m, head)]
        grown = size + min(size, max(0, failed - len(same)))
        return max(size, min(limit, grown, len(waiting) // 2))

    @staticmethod
    def _size(head: ReferenceMessage, limit: int, n: int) -> int:
        """Whole after the first failure where there are four attempts or more, alone on the
        last.
        """
        if n == 1:
            return 1
        left, steps = n - 1 - head.info["delivery_count"], n - 2 if n >= 4 else n - 1
        if left >= steps:
            return limit
        # floor(limit ** (left / steps)) without floating point
        left, failed = max(0, left), head.info["lease_size"]
        sizes = [k for k in range(1, limit + 1) if k**steps <= limit**left]
        if failed is not None:
            sizes = [k for k in sizes if k ** (left + 1) <= failed**left]
        return max(sizes, default=1)

    @staticmethod
    def _fitting(messages: list[ReferenceMessage], max_bytes: int | None) -> list[ReferenceMessage]:
        """The first messages that fit into `max_bytes`, at least one."""
        kept, total = [], 0
        for m in messages:
            total += m.size
            if kept and max_bytes is not None and total > max_bytes:
                break
            kept.append(m)
        return kept
