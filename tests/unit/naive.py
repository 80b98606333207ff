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
    "first_leased_at": None,
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
        self.become(state, lease_id=None, worker_id=None, leased_at=None, expires_at=None, **info)

    def die(self, reason: str) -> None:
        self.end_lease("dead", available_at=None, suspect=False, reason=reason)


@dataclass
class Naive:
    n: int | None
    skew: int
    retry_delay: int
    max_retry_delay: int
    max_in_flight: int | None = None
    max_ledger_ranges: int = 200_000
    messages: list[Message] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    lease_sizes: dict[str, int] = field(default_factory=dict)
    passed_over: dict[str, int] = field(default_factory=dict)

    # -- looking

    def held_by(self, lease_id: str) -> list[Message]:
        return [m for m in self.messages if m.state in ("leased", "waiting") and m.info["lease_id"] == lease_id]

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

    # -- transitions

    def fold(self, now: int, keep: tuple[str, ...] = ()) -> None:
        for m in self.by_state("leased"):
            if m.info["expires_at"] + self.skew < now and m.info["lease_id"] not in keep:
                self.failed(m)
                if self.spent(m):
                    m.die("max_delivery_attempts")
                else:
                    m.become("waiting", available_at=m.info["expires_at"], expires_at=None, suspect=True)

    def failed(self, m: Message, named: bool = False) -> None:
        m.own_failure |= named or self.lease_sizes[m.info["lease_id"]] == 1
        m.info["failure_count"] += 1

    def granted(self, messages: list[Message], lease_id: str, worker_id: str, now: int, expires_at: int) -> None:
        self.lease_sizes[lease_id] = len(messages)
        for m in messages:
            m.become(
                "leased",
                lease_id=lease_id,
                worker_id=worker_id,
                leased_at=now,
                expires_at=expires_at,
                available_at=None,
                delivery_count=m.info["delivery_count"] + 1,
                first_leased_at=now if m.info["first_leased_at"] is None else m.info["first_leased_at"],
            )

    def settle(
        self, verb: str, lease_id: str, seqs: list[int] | None, now: int, *, whole: bool, delay: int | None, jitter: float
    ) -> tuple[int, int, set[int]]:
        """Returns how many messages were settled, how many already were, and the sequences that are not the lease's to settle."""
        by_seq = {m.seq: m for m in self.messages}
        names = [m.seq for m in self.held_by(lease_id)] if seqs is None else sorted(set(seqs))
        settled, already, lost = 0, 0, set()
        for seq in names:
            m = by_seq.get(seq)
            if m is None or m.state in ("unread", "dead", "routing"):
                lost.add(seq)
            elif m.state == "settled":
                already += 1
            elif m.info["lease_id"] != lease_id:
                lost.add(seq)
            else:
                settled += 1
                self.settle_one(verb, m, now, named=seqs is not None and not whole, delay=delay, jitter=jitter)
        return settled, already, lost

    def settle_one(self, verb: str, m: Message, now: int, *, named: bool, delay: int | None, jitter: float) -> None:
        late = m.state == "waiting"
        if verb == "ack":
            m.forget("settled")
            self.count("acked", 1)
        elif verb == "reject":
            m.die("rejected")
        elif verb == "nack":
            if late:
                m.own_failure |= named
            else:
                self.failed(m, named)
            if self.spent(m):
                m.die("max_delivery_attempts")
                return
            if delay is None:
                backoff = min(self.max_retry_delay, self.retry_delay << (m.info["failure_count"] - 1))
                delay = 0 if late else round(backoff * (1 + jitter / 10))
            m.end_lease("waiting", available_at=now + delay, suspect=not named)
        elif late:
            m.end_lease("waiting")
        else:
            back = m.info["delivery_count"] - 1
            m.end_lease("waiting", available_at=now, delivery_count=back, first_leased_at=m.info["first_leased_at"] if back else None)

    def extend(self, lease_id: str, expires_at: int) -> int:
        held = self.held_by(lease_id)
        for m in held:
            if m.state == "waiting":
                m.become("leased", failure_count=m.info["failure_count"] - 1, available_at=None, expires_at=expires_at)
            else:
                m.become("leased", expires_at=max(expires_at, m.info["expires_at"]))
        return len(held)

    def take_over(self, prefix: str, lease_id: str, worker_id: str, now: int, expires_at: int, *, granted_before: bool) -> list[Message]:
        held = [m for m in self.by_state("leased", "waiting") if (m.info["lease_id"] or "").startswith(prefix)]
        on_last = [m for m in held if self.n is not None and m.info["delivery_count"] + 1 >= self.n]
        if granted_before or any(self.spent(m) for m in held) or (on_last and len(held) > 1):
            for m in held:
                if m.state == "leased":
                    self.failed(m)
                if self.spent(m):
                    m.die("max_delivery_attempts")
                else:
                    m.end_lease("waiting", available_at=now, suspect=True)
            return []
        for m in held:
            m.own_failure |= self.lease_sizes[m.info["lease_id"]] == 1
        self.granted(held, lease_id, worker_id, now, expires_at)
        return held

    def freeze(self, routing_id: str, ranges: int) -> list[Message]:
        dead = [run for run in self.runs() if run[0].state == "dead"][:ranges]
        for m in (frozen := [m for run in dead for m in run]):
            m.become("routing", lease_id=routing_id)
        return frozen

    def routed(self, routing_id: str) -> int:
        done = [m for m in self.by_state("routing") if m.info["lease_id"] == routing_id]
        for m in done:
            m.forget("settled")
        self.count("dead_lettered", len(done))
        return len(done)

    def seek(self, target: int) -> None:
        reach = max((m.seq for m in self.by_state("routing")), default=-1)
        for m in self.messages:
            m.own_failure = m.own_failure and m.state == "routing"
            if m.state == "routing":
                continue
            if m.seq < target:
                self.count("skipped", m.state != "settled")
                m.forget("settled")
            elif m.seq < reach:  # below something that stays, unread is written down as due since ever
                m.forget("waiting", available_at=0)
            else:
                m.forget("unread")

    # -- judging what a lease took

    def check_grant(self, taken: list[int], why: str, wanted: Any, now: int, turnwise: bool = True) -> None:
        """Whether the rules allow this choice for a request; `self` is as it was before the lease, but folded."""
        attempts = None if self.n is None else max(1, self.n - wanted.spare)
        upto = wanted.upto if wanted.upto is not None else 2**63
        by = now if wanted.due_by is None else min(now, wanted.due_by)
        due = [m for m in self.by_state("waiting") if m.info["available_at"] <= by and m.seq <= upto]
        unread = [m for m in self.by_state("unread") if m.seq <= upto]
        # Ranges that count against the cap: not dead, routing or delayed ones.
        counted = [r[0] for r in self.runs() if r[0].state not in ("dead", "routing")]
        full = len([m for m in counted if not (m.state == "waiting" and m.info["available_at"] > now)]) >= self.max_ledger_ranges
        room = wanted.max_messages if self.max_in_flight is None else self.max_in_flight - len(self.by_state("leased"))
        limit = min(wanted.max_messages, room, 1 if attempts == 1 else room)
        last = [m for m in due if not m.info["suspect"] and attempts is not None and 0 < m.info["delivery_count"] >= attempts - 1]
        kinds = {
            "suspect": [m for m in due if m.info["suspect"]],
            "last": last,
            "rest": [m for m in due if not m.info["suspect"] and m not in last] + ([] if full else unread),
        }
        if not taken:
            assert limit < 1 or not any(kinds.values()), "something is due and no cap is reached, yet nothing was granted"
            assert bool(why) == bool(due or unread), f"{why=} with {len(due)} due and {len(unread)} unread"
            assert why in ("", "max_in_flight", "max_ledger_ranges")
            assert why != "max_in_flight" or limit < 1
            assert why != "max_ledger_ranges" or full
            return
        assert why == ""
        assert len(set(taken)) == len(taken) <= limit
        kind = next((name for name, ms in kinds.items() if set(taken) <= {m.seq for m in ms}), None)
        assert kind is not None, "a lease mixes kinds, or holds what is not due"
        getattr(self, f"_check_{kind}")(kinds[kind], taken, limit, attempts, wanted.max_bytes)
        for name, ms in kinds.items():
            self.passed_over[name] = 0 if name == kind or not ms else self.passed_over.get(name, 0) + 1
            assert not turnwise or self.passed_over[name] <= 2, f"{name} starves"

    def _check_suspect(self, due: list[Message], taken: list[int], limit: int, attempts: int | None, max_bytes: int | None) -> None:
        run = next(r for r in self.runs() if r[0].seq <= taken[0] <= r[-1].seq)
        due_seqs = {m.seq for m in due}  # of a range that goes on past `upto`, only the part before it
        run = [m for m in run if m.seq in due_seqs]
        n = attempts or 5
        d = run[0].info["delivery_count"]
        # floor(limit ** ((n-1-d)/(n-1))) without floating point
        size = max((k for k in range(1, limit + 1) if k ** (n - 1) <= limit ** max(0, n - 1 - d)), default=1) if n > 1 else 1
        assert taken == [m.seq for m in self._fitting(run[:size], max_bytes)], "not the head of a suspect range, isolated"

    def _check_last(self, due: list[Message], taken: list[int], limit: int, attempts: int | None, max_bytes: int | None) -> None:
        assert all(m.own_failure for m in due if m.seq in set(taken)), "an innocent on its last attempt, in company"
        assert taken == [m.seq for m in self._fitting(due[:limit], max_bytes)]

    def _check_rest(self, due: list[Message], taken: list[int], limit: int, attempts: int | None, max_bytes: int | None) -> None:
        assert taken == [m.seq for m in self._fitting(due[:limit], max_bytes)], "not waiting first, then unread, each in order"

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
