"""A consumer group with one row a message: the rules of DESIGN section 4 in the dullest form there is, to hold the ledger against.

Nothing here is shared with the ledger. What a lease takes is not chosen here: :meth:`Naive.check_grant` judges a choice by the rules.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
"""What is known of a message besides its state, as of one that was never leased."""


@dataclass
class Message:
    seq: int
    size: int
    state: str = "unread"
    info: dict[str, Any] = field(default_factory=lambda: dict(DELIVERY))
    own_failure: bool = False
    """Failed by itself: named in a nack, or alone in its lease."""
    error: str | None = None
    """The last failure in the ledger's words. Taken from the ledger: it is for people, but it keeps ranges apart."""

    def look(self) -> tuple[Any, ...]:
        return (self.state, self.error, *self.info.values())

    def become(self, state: str, **info: Any) -> None:
        self.state = state
        self.info = {**self.info, **info}

    def forget(self, state: str, **info: Any) -> None:
        self.state = state
        self.info = {**DELIVERY, **info}

    def end_lease(self, state: str, **info: Any) -> None:
        """Out of the lease, its id and all that belongs to it gone."""
        self.become(
            state,
            lease_id=None,
            worker_id=None,
            leased_at=None,
            expires_at=None,
            lease_size=None,
            **info,
        )

    def die(self, reason: str, state: str = "dead") -> None:
        at = self.info["leased_at"]
        self.end_lease(state, available_at=None, suspect=False, reason=reason)
        self.info["leased_at"] = at


@dataclass
class Naive:
    n: int | None
    skew: int
    retry_delay: int
    max_retry_delay: int
    max_in_flight: int | None = None
    max_ledger_ranges: int = 200_000
    retry: str = "exponential"
    max_failures: int | None = None
    max_retry_age: int | None = None
    on_exhausted: str = "dead_letter"
    messages: list[Message] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    lease_sizes: dict[str, int] = field(default_factory=dict)
    passed_over: dict[str, int] = field(default_factory=dict)
    skipped: set[int] = field(default_factory=set)

    # -- looking

    def held_mask(self, lease_id: str) -> list[Message]:
        return [
            m
            for m in self.messages
            if m.state in ("leased", "waiting") and m.info["lease_id"] == lease_id
        ]

    def by_state(self, *states: str) -> list[Message]:
        return [m for m in self.messages if m.state in states]

    def runs(self) -> list[list[Message]]:
        """Neighbours alike in everything, from the first message that is not settled up to the last that is not unread."""
        runs = [list(run) for _, run in groupby(self.messages, key=Message.look)]
        while runs and runs[0][0].state == "settled":
            runs.pop(0)
        while runs and runs[-1][0].state == "unread":
            runs.pop()
        return runs

    def count(self, outcome: str, messages: int) -> None:
        if messages:
            self.counters[outcome] = self.counters.get(outcome, 0) + messages

    def spent(self, m: Message) -> bool:
        return self.n is not None and m.info["delivery_count"] >= self.n

    def allowed(self, own: bool) -> int | None:
        f = 1 if self.retry == "none" else self.max_failures
        return f if f is None or own else max(f, 2)

    def attempts(self, spare: int) -> int | None:
        """The delivery on which a message that always fails must be alone."""
        bounds = [
            x
            for x in (None if self.n is None else self.n - spare, self.allowed(False))
            if x is not None
        ]
        return max(1, min(bounds)) if bounds else None

    def final(self, m: Message, now: int, own: bool) -> str:
        """Why a failure was the last, or ""."""
        f = self.allowed(own)
        if self.spent(m):
            return "max_delivery_attempts"
        if f is not None and m.info["failure_count"] >= f:
            return "max_failures"
        first = m.info["first_failed_at"]
        return (
            "max_retry_age"
            if own
            and self.max_retry_age is not None
            and first
            and now - first >= self.max_retry_age
            else ""
        )

    def bury(self, m: Message, reason: str, blocks: bool = True) -> None:
        if self.on_exhausted == "drop":
            m.forget("settled")
            self.count("dropped", 1)
        else:
            m.die(reason, "blocked" if blocks and self.on_exhausted == "block" else "dead")

    def alone(self, m: Message) -> bool:
        return m.info["lease_size"] == 1

    def pardon(self) -> None:
        """Waiting beyond a limit: by attempts, or by failures that were its own."""
        for m in self.by_state("waiting"):
            f = self.allowed(True)
            if self.spent(m) or (
                f is not None and m.info["failure_count"] >= f and not m.info["suspect"]
            ):
                self.bury(m, "max_delivery_attempts" if self.spent(m) else "max_failures")

    # -- transitions

    def expire_leases(self, now: int, keep: tuple[str, ...] = ()) -> None:
        for m in self.by_state("leased"):
            if m.info["expires_at"] + self.skew < now and m.info["lease_id"] not in keep:
                at = m.info["expires_at"]
                self.failed(m, at)
                if reason := self.final(m, at, self.alone(m)):
                    self.bury(m, reason)
                else:
                    m.become("waiting", available_at=at, expires_at=None, suspect=True)
        self.pardon_but(keep)

    def pardon_but(self, keep: tuple[str, ...]) -> None:
        kept = [m for m in self.by_state("waiting") if m.info["lease_id"] in keep]
        for m in kept:
            m.state = "kept"
        self.pardon()
        for m in kept:
            m.state = "waiting"

    def failed(self, m: Message, now: int, named: bool = False) -> None:
        m.own_failure |= named or self.lease_sizes[m.info["lease_id"]] == 1
        m.info["failure_count"] += 1
        m.info["first_failed_at"] = m.info["first_failed_at"] or now

    def granted(
        self, messages: list[Message], lease_id: str, worker_id: str, now: int, expires_at: int
    ) -> None:
        self.lease_sizes[lease_id] = len(messages)
        for m in messages:
            m.become(
                "leased",
                lease_id=lease_id,
                worker_id=worker_id,
                leased_at=now,
                expires_at=expires_at,
                lease_size=len(messages),
                available_at=None,
                delivery_count=m.info["delivery_count"] + 1,
                first_leased_at=now
                if m.info["first_leased_at"] is None
                else m.info["first_leased_at"],
            )

    def settle(
        self,
        verb: str,
        lease_id: str,
        seqs: list[int] | None,
        now: int,
        *,
        whole: bool,
        delay: int | None,
        jitter: float,
    ) -> tuple[int, int, set[int]]:
        """Returns how many messages were settled, how many already were, and the sequences that are not the lease's to settle."""
        by_seq = {m.seq: m for m in self.messages}
        names = [m.seq for m in self.held_mask(lease_id)] if seqs is None else sorted(set(seqs))
        settled, already, lost = 0, 0, set()
        for seq in names:
            m = by_seq.get(seq)
            if (
                m is None
                or m.state in ("unread", "dead", "blocked", "routing")
                or (m.state == "settled" and seq in self.skipped)
            ):
                lost.add(seq)
            elif m.state == "settled":
                already += 1
            elif m.info["lease_id"] != lease_id:
                lost.add(seq)
            else:
                settled += 1
                self.settle_one(
                    verb, m, now, named=seqs is not None and not whole, delay=delay, jitter=jitter
                )
        return settled, already, lost

    def settle_one(
        self, verb: str, m: Message, now: int, *, named: bool, delay: int | None, jitter: float
    ) -> None:
        late = m.state == "waiting"
        if verb == "ack":
            m.forget("settled")
            self.count("acked", 1)
        elif verb == "reject":
            self.bury(m, "rejected", blocks=False)
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
                growth = {
                    "none": 0,
                    "constant": 1,
                    "linear": times,
                    "exponential": 1 << (times - 1),
                }[self.retry]
                backoff = min(self.max_retry_delay, self.retry_delay * growth)
                delay = 0 if late else round(backoff * (1 + jitter / 10))
            m.end_lease("waiting", available_at=now + delay, suspect=not named)
        elif late:
            m.end_lease("waiting")
        else:
            back = m.info["delivery_count"] - 1
            m.end_lease(
                "waiting",
                available_at=now,
                delivery_count=back,
                first_leased_at=m.info["first_leased_at"] if back else None,
            )

    def extend(self, lease_id: str, expires_at: int) -> int:
        held = self.held_mask(lease_id)
        for m in held:
            if m.state == "waiting":
                left = m.info["failure_count"] - 1
                first = m.info["first_failed_at"] if left else None
                m.become(
                    "leased",
                    failure_count=left,
                    first_failed_at=first,
                    available_at=None,
                    expires_at=expires_at,
                )
            else:
                m.become("leased", expires_at=max(expires_at, m.info["expires_at"]))
        return len(held)

    def replay_batch(
        self,
        prefix: str,
        lease_id: str,
        worker_id: str,
        now: int,
        expires_at: int,
        *,
        granted_before: bool,
    ) -> list[Message]:
        held = [
            m
            for m in self.by_state("leased", "waiting")
            if (m.info["lease_id"] or "").startswith(prefix)
        ]
        n, f = self.n or 10**9, self.allowed(False) or 10**9
        kept = []
        for m in held:
            left = min(n - m.info["delivery_count"], f - m.info["failure_count"])
            own = m.info["failure_count"] > 0 and not m.info["suspect"]
            if not granted_before and left >= 1 and (left > 1 or len(held) == 1 or own):
                kept.append(m)
                continue
            if m.state == "leased":
                self.failed(m, now)
            if reason := self.final(m, now, self.alone(m)):
                self.bury(m, reason)
            else:
                m.end_lease("waiting", available_at=now, suspect=True)
        for m in kept:
            m.own_failure |= self.lease_sizes[m.info["lease_id"]] == 1
        self.granted(kept, lease_id, worker_id, now, expires_at)
        return kept

    def freeze(self, routing_id: str, ranges: int) -> list[Message]:
        dead = [run for run in self.runs() if run[0].state == "dead"][:ranges]
        for m in (frozen := [m for run in dead for m in run]):
            m.become("routing", lease_id=routing_id)
        return frozen

    def settle_routed(self, routing_id: str) -> int:
        done = [m for m in self.by_state("routing") if m.info["lease_id"] == routing_id]
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
                m.forget("waiting", available_at=now, first_leased_at=m.info["first_leased_at"])
        return len(wanted)

    def cut(self, horizon: int) -> int:
        gone = [
            m for m in self.by_state("unread", "waiting", "dead", "blocked") if m.seq <= horizon
        ]
        for m in gone:
            m.forget("settled")
        self.count("lost", len(gone))
        return len(gone)

    def seek(self, target: int) -> None:
        self.skipped = {seq for seq in self.skipped if seq < target}
        self.skipped |= {
            m.seq for m in self.messages if m.seq < target and m.state not in ("settled", "routing")
        }
        reach = max((m.seq for m in self.by_state("routing")), default=-1)
        for m in self.messages:
            m.own_failure = m.own_failure and m.state == "routing"
            if m.state == "routing":
                continue
            if m.seq < target:
                self.count("skipped", m.state != "settled")
                m.forget("settled")
            elif (
                m.seq < reach
            ):  # below something that stays, unread is written down as due since ever
                m.forget("waiting", available_at=0)
            else:
                m.forget("unread")

    # -- files that cannot be read

    def _due_of(self, first: int, last: int, now: int) -> list[Message]:
        return [
            m
            for m in self.messages
            if first <= m.seq <= last
            and (m.state == "unread" or (m.state == "waiting" and m.info["available_at"] <= now))
        ]

    def _write_down(self, before: int) -> None:
        """Unread messages below something in the ledger are in it too, as due since ever."""
        for m in self.by_state("unread"):
            if m.seq < before:
                m.become("waiting", available_at=0)

    def bury_file(self, first: int, last: int, reason: str, now: int) -> int:
        due = self._due_of(first, last, now)
        if any(m.state == "unread" for m in due):
            self._write_down(first)
        for m in due:
            self.bury(m, reason, blocks=False)
        return len(due)

    def postpone_file(self, first: int, last: int, now: int, until: int) -> None:
        due = self._due_of(first, last, now)
        if any(m.state == "unread" for m in due):
            self._write_down(first)
        for m in due:
            m.become("waiting", available_at=until)

    # -- judging what a lease took

    def check_grant(
        self, taken: list[int], why: str, wanted: Any, now: int, turnwise: bool = True
    ) -> None:
        """Whether the rules allow this choice for a request; `self` is as it was before the lease, but folded."""
        attempts = self.attempts(wanted.reserved_attempts)
        blocked = min((m.seq for m in self.by_state("blocked")), default=2**63)
        behind = [m for m in self.messages if m.seq > blocked]
        upto = min(blocked - 1, wanted.max_sequence if wanted.max_sequence is not None else 2**63)
        by = now if wanted.due_by is None else min(now, wanted.due_by)
        due = [
            m for m in self.by_state("waiting") if m.info["available_at"] <= by and m.seq <= upto
        ]
        unread = [m for m in self.by_state("unread") if m.seq <= upto]
        # Ranges that count against the cap: not dead, routing or delayed ones.
        counted = [r[0] for r in self.runs() if r[0].state not in ("dead", "blocked", "routing")]
        full = (
            len([m for m in counted if not (m.state == "waiting" and m.info["available_at"] > now)])
            >= self.max_ledger_ranges
        )
        room = (
            wanted.max_messages
            if self.max_in_flight is None
            else self.max_in_flight - len(self.by_state("leased"))
        )
        limit = min(wanted.max_messages, room, 1 if attempts == 1 else room)
        last = [
            m
            for m in due
            if not m.info["suspect"]
            and attempts is not None
            and 0 < m.info["delivery_count"] >= attempts - 1
        ]
        innocent = [
            m for m in last if not m.info["failure_count"]
        ]  # released after a replay: it must not die for its company
        kinds = {
            "suspect": [m for m in due if m.info["suspect"] or m in innocent],
            "last": [m for m in last if m not in innocent],
            "rest": [m for m in due if not m.info["suspect"] and m not in last]
            + ([] if full else unread),
        }
        if not taken:
            assert limit < 1 or not any(kinds.values()), (
                "something is due and no cap is reached, yet nothing was granted"
            )
            told = bool(due or unread) or (blocked < 2**63 and not why.startswith("max"))
            assert bool(why) == told, (
                f"{why=} with {len(due)} due and {len(unread)} unread, {len(behind)} behind what blocks"
            )
            assert why in ("", "max_in_flight", "max_ledger_ranges") or str(blocked) in why
            assert why != "max_in_flight" or limit < 1
            assert why != "max_ledger_ranges" or full
            return
        assert why == ""
        assert len(set(taken)) == len(taken) <= limit
        kind = next((name for name, ms in kinds.items() if set(taken) <= {m.seq for m in ms}), None)
        assert kind is not None, "a lease mixes kinds, or holds what is not due"
        getattr(self, f"_check_{kind}")(kinds[kind], taken, limit, attempts, wanted.max_bytes)
        for name, ms in kinds.items():
            self.passed_over[name] = (
                0 if name == kind or not ms else self.passed_over.get(name, 0) + 1
            )
            assert not turnwise or self.passed_over[name] <= 2, f"{name} starves"

    def _check_suspect(
        self,
        due: list[Message],
        taken: list[int],
        limit: int,
        attempts: int | None,
        max_bytes: int | None,
    ) -> None:
        run = next(r for r in self.runs() if r[0].seq <= taken[0] <= r[-1].seq)
        due_seqs = {
            m.seq for m in due
        }  # of a range that goes on past `upto`, only the part before it
        run = [m for m in run if m.seq in due_seqs]
        turns = [(m.info["available_at"], m.info["delivery_count"], m.seq) for m in due]
        first = min(turns)[2] if attempts is None else due[0].seq
        assert taken[0] == first, "another suspect's turn has come"
        n = attempts or 5
        d = run[0].info["delivery_count"]
        # floor(limit ** ((n-1-d)/(n-1))) without floating point
        size = (
            max(
                (k for k in range(1, limit + 1) if k ** (n - 1) <= limit ** max(0, n - 1 - d)),
                default=1,
            )
            if n > 1
            else 1
        )
        assert taken == [m.seq for m in self._fitting(run[:size], max_bytes)], (
            "not the head of a suspect range, isolated"
        )

    def _check_last(
        self,
        due: list[Message],
        taken: list[int],
        limit: int,
        attempts: int | None,
        max_bytes: int | None,
    ) -> None:
        assert all(m.own_failure for m in due if m.seq in set(taken)), (
            "an innocent on its last attempt, in company"
        )
        assert taken == [m.seq for m in self._fitting(due[:limit], max_bytes)]

    def _check_rest(
        self,
        due: list[Message],
        taken: list[int],
        limit: int,
        attempts: int | None,
        max_bytes: int | None,
    ) -> None:
        assert taken == [m.seq for m in self._fitting(due[:limit], max_bytes)], (
            "not waiting first, then unread, each in order"
        )

    @staticmethod
    def _fitting(messages: list[Message], max_bytes: int | None) -> list[Message]:
        """The first messages that fit into `max_bytes`, at least one."""
        kept, total = [], 0
        for m in messages:
            total += m.size
            if kept and max_bytes is not None and total > max_bytes:
                break
            kept.append(m)
        return kept
