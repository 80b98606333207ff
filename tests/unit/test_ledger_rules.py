"""The rules of DESIGN section 4, one test each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from spark_mq.ledger import admin as moving
from spark_mq.ledger import settle as settling
from spark_mq.ledger import transitions as rules_of
from spark_mq.ledger.acquire import AcquireRequest, Grant, isolation_size, lease
from spark_mq.ledger.message_index import DataFile, MessageIndex, sequence
from spark_mq.ledger.ranges import DEAD, LEASED, ROUTING, SETTLED, WAITING, Ledger, LedgerHeader, Range
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.settle import ACK, NACK, REJECT, RELEASE, SettleCommand, SettleOutcome

SECOND = 1_000_000
TIMEOUT = 60 * SECOND


@dataclass
class Group:
    """A group on a log whose messages are 0, 1, 2, ... (commit 0), unless `files` say otherwise. Each operation folds first."""

    messages: int = 10
    rules: GroupSettings = field(default_factory=lambda: GroupSettings(clock_skew=0))
    files: list[DataFile] | None = None
    now: int = 1_000 * SECOND

    def __post_init__(self):
        files = [DataFile(0, self.messages, "a", self.messages * 10, 0)] if self.files is None else self.files
        self.index = MessageIndex(files, 9)
        self.ledger = Ledger(LedgerHeader())

    def fold(self, *keep: str) -> None:
        self.ledger = rules_of.fold(self.ledger, self.now, self.rules, keep)

    def ask(self, lease_id: str, limit: int = 1, **more) -> Grant:
        self.fold()
        wanted = AcquireRequest(lease_id, f"worker of {lease_id}", limit, self.now + TIMEOUT, **more)
        self.ledger, grant = lease(self.ledger, self.index, self.now, self.rules, wanted)
        return grant

    def lease(self, lease_id: str, limit: int = 1, **more) -> list[int]:
        """The sequences of a new lease."""
        grant = self.ask(lease_id, limit, **more)
        return [
            seq
            for r in grant.ranges
            for piece in self.index.slices(r.first, r.last)
            for seq in range(piece.first, piece.first + piece.rows)
        ]

    def settle(self, verb: str, lease_id: str, seqs: list[int] | None = None, **more) -> SettleOutcome:
        self.fold(lease_id)
        wanted = SettleCommand(verb, lease_id, None if seqs is None else [(seq, seq) for seq in seqs], **more)
        self.ledger, outcome = settling.settle(self.ledger, self.index, self.now, self.rules, wanted)
        return outcome

    def extend(self, lease_id: str, timeout: int = TIMEOUT) -> SettleOutcome:
        self.fold(lease_id)
        self.ledger, outcome = settling.extend(self.ledger, lease_id, self.now + timeout)
        return outcome

    def take_over(self, prefix: str, lease_id: str, again: bool = False) -> int:
        """How many messages were granted."""
        self.ledger, granted = rules_of.take_over(
            self.ledger,
            self.now,
            self.rules,
            prefix,
            lease_id=lease_id,
            worker_id="driver",
            expires_at=self.now + TIMEOUT,
            granted_before=again,
        )
        return sum(r.message_count for r in granted)

    def expire(self) -> None:
        """Past the deadline of all leases, and folded."""
        self.now += TIMEOUT + 1
        self.fold()

    def at(self, seq: int) -> Range | None:
        """The range that a message is in; None if it is unread or below the floor."""
        return next((r for r in self.ledger if r.first <= seq <= r.last), None)

    def state(self, seq: int) -> str:
        r = self.at(seq)
        return r.state if r else "settled" if seq <= self.ledger.head.floor else "unread"

    def states(self) -> str:
        """One letter a message: U(nread), L(eased), W(aiting), D(ead), R(outing), S(ettled)."""
        return "".join(self.state(seq)[0].upper() for seq in range(self.messages))


def limits(**given) -> GroupSettings:
    return GroupSettings(**{"clock_skew": 0, **given})


# -- leasing


def test_unread_messages_are_leased_in_order_and_counted():
    group = Group()
    assert group.lease("a", 3) == [0, 1, 2]
    assert group.lease("b", 100) == [3, 4, 5, 6, 7, 8, 9]
    held = group.at(0)
    assert held == Range(
        0,
        2,
        LEASED,
        3,
        lease_id="a",
        worker_id="worker of a",
        leased_at=group.now,
        expires_at=group.now + TIMEOUT,
        lease_size=3,
        first_leased_at=group.now,
        delivery_count=1,
    )


def test_a_lease_spans_commits_and_their_gaps():
    group = Group(files=[DataFile(sequence(1, 0), 2, "a", 2, 0), DataFile(sequence(5, 0), 3, "b", 3, 0)])
    assert group.lease("a", 3) == [sequence(1, 0), sequence(1, 1), sequence(5, 0)]
    (held,) = group.ledger
    assert (held.first, held.last, held.message_count) == (sequence(1, 0), sequence(5, 0), 3)


def test_nothing_is_leased_where_nothing_is_due():
    group = Group(messages=1)
    group.lease("a")
    before = group.ledger
    assert group.ask("b") == Grant((), "")
    assert group.ledger is before


def test_redelivery_goes_to_the_head():
    group = Group()
    group.lease("a", 4)
    group.settle(RELEASE, "a", [1, 2])
    assert group.lease("b", 4) == [1, 2, 4, 5]


def test_a_first_lease_is_remembered_over_redelivery():
    group = Group()
    first = group.now
    group.lease("a")
    group.expire()
    group.lease("b")
    assert group.at(0).first_leased_at == first
    assert group.at(0).delivery_count == 2


# -- isolation and turns


@pytest.mark.parametrize(("deliveries", "size"), [(1, 1000), (2, 100), (3, 10), (4, 1), (5, 1), (9, 1)])
def test_isolation_of_ten_thousand_in_five_attempts(deliveries, size):
    assert isolation_size(10_000, deliveries, 5) == size


@pytest.mark.parametrize("limit", [1, 2, 7, 100, 999, 10_000, 1_000_000])
@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_isolation_ends_alone_and_never_grows(limit, n):
    sizes = [isolation_size(limit, d, n) for d in range(n + 2)]
    assert sizes[0] == limit
    assert sizes[n - 1 :] == [1, 1, 1]
    assert sizes == sorted(sizes, reverse=True)
    for d, size in enumerate(sizes[: n - 1]):  # exactly: size is the floor of limit ** ((n-1-d)/(n-1))
        assert size ** (n - 1) <= limit ** (n - 1 - d) < (size + 1) ** (n - 1)


@pytest.mark.parametrize("attempts", [1, 0])
def test_with_one_attempt_every_lease_is_of_one_message(attempts):
    assert isolation_size(1000, 0, attempts) == 1
    group = Group(rules=limits(max_delivery_attempts=1))
    assert group.lease("a", 100) == [0]
    group.expire()
    assert group.state(0) == "dead"


def test_an_expired_lease_comes_back_in_smaller_pieces_of_it_alone():
    group = Group(messages=10_000)
    group.lease("a", 10_000)
    group.expire()
    for size in (1_000, 100, 10, 1):
        assert group.lease("next", 10_000) == list(range(size))
        group.expire()
    assert group.state(0) == "dead"
    assert group.state(1) == "waiting"


def test_a_suspect_piece_never_spans_two_ranges():
    group = Group()
    group.lease("a", 3)
    group.lease("b", 3)
    group.now += 1
    group.lease("c", 1)
    group.expire()
    assert len([r for r in group.ledger if r.suspect]) == 3, "their last errors differ: each is a range"
    assert len(group.lease("d", 10_000)) == 3


def test_isolation_follows_the_limit_of_the_current_lease():
    group = Group(messages=1000, rules=limits(max_delivery_attempts=3))
    group.lease("a", 900)
    group.expire()
    assert len(group.lease("b", 100)) == 10


def test_spare_attempts_are_kept_for_a_replay():
    """The source keeps one: with n = 5 it isolates as if n were 4."""
    group = Group(messages=1000)
    group.lease("a", 1000, spare=1)
    group.expire()
    assert len(group.lease("b", 1000, spare=1)) == 100
    group.expire()
    assert len(group.lease("c", 1000, spare=1)) == 10
    group.expire()
    assert len(group.lease("d", 1000, spare=1)) == 1
    group.expire()
    assert group.state(0) == "waiting"
    assert group.lease("e", 1000, spare=1) == [0]
    group.expire()
    assert group.state(0) == "dead"


def test_suspects_and_the_rest_take_turns():
    """Suspects first met, yet each second lease is of the rest, and the other way round."""
    group = Group(messages=100)
    group.lease("poisoned", 50)
    group.expire()
    kinds = ["suspect" if group.lease(f"l{i}", 5)[0] < 50 else "rest" for i in range(8)]
    assert kinds.count("suspect") == kinds.count("rest") == 4
    assert all(one != other for one, other in pairwise(kinds))


def test_without_a_limit_no_suspect_starves_another():
    """The first one kills its worker each time and for ever; all behind it get through."""
    group = Group(messages=4, rules=limits(max_delivery_attempts=None))
    acked = set()
    for i in range(40):
        taken = group.lease(f"l{i}", 100)
        if 0 in taken:
            group.expire()
        else:
            acked.update(taken)
            group.settle(ACK, f"l{i}")
    assert acked == {1, 2, 3}


def test_messages_on_their_last_attempt_are_leased_apart_from_the_rest():
    group = Group(rules=limits(max_delivery_attempts=2))
    group.lease("a", 4)
    group.settle(NACK, "a", [1, 3], delay=0)
    group.settle(ACK, "a")
    leases = [group.lease(f"l{i}", 100) for i in range(2)]
    assert sorted(leases) == [[1, 3], [4, 5, 6, 7, 8, 9]]


def test_neither_last_attempts_nor_suspects_nor_the_rest_starve():
    group = Group(messages=300, rules=limits(max_delivery_attempts=2))
    group.lease("named", 20)
    group.lease("whole", 20)
    group.settle(NACK, "named", list(range(20)), delay=0)
    group.settle(NACK, "whole", delay=0)
    kinds = [group.lease(f"l{i}", 1)[0] // 20 for i in range(9)]
    assert sorted(kinds) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert len(set(kinds[:3])) == len(set(kinds[3:6])) == 3


# -- expiry


def test_expiry_makes_suspect_and_due_since_the_deadline():
    group = Group()
    deadline = group.now + TIMEOUT
    group.lease("a", 3)
    group.expire()
    back = group.at(1)
    assert (back.state, back.suspect, back.available_at, back.lease_id) == (WAITING, True, deadline, "a")
    assert (back.delivery_count, back.failure_count) == (1, 1)
    assert "a" in back.error


def test_a_lease_is_not_expired_before_the_margin_for_clocks_has_passed():
    group = Group(rules=limits(clock_skew=SECOND))
    group.lease("a")
    group.now += TIMEOUT + SECOND
    group.fold()
    assert group.state(0) == "leased"
    group.now += 1
    group.fold()
    assert group.state(0) == "waiting"


def test_every_operation_folds_others_but_never_the_lease_it_names():
    group = Group()
    group.lease("a", 2)
    group.lease("b", 2)
    group.now += TIMEOUT + 1
    group.fold("a")
    assert group.states().startswith("LLWW")


def test_the_rest_of_a_partly_settled_lease_expires_suspect():
    group = Group()
    group.lease("a", 3)
    group.settle(ACK, "a", [0])
    group.settle(NACK, "a", [1])
    group.expire()
    assert group.at(2).suspect
    assert not group.at(1).suspect


def test_expiry_on_the_last_attempt_is_death():
    group = Group(messages=1, rules=limits(max_delivery_attempts=2))
    for lease_id in "ab":
        group.lease(lease_id)
        group.expire()
    dead = group.at(0)
    assert (dead.state, dead.reason, dead.lease_id, dead.suspect) == (DEAD, "max_delivery_attempts", None, False)


def test_without_a_limit_nothing_dies():
    group = Group(messages=1, rules=limits(max_delivery_attempts=None))
    for attempt in range(40):
        assert group.lease(f"l{attempt}") == [0]
        group.expire()
    assert group.at(0).delivery_count == 40


def test_a_lowered_limit_applies_before_the_next_delivery():
    group = Group(messages=1)
    for lease_id in "ab":
        group.lease(lease_id)
        group.expire()
    group.rules = limits(max_delivery_attempts=2)
    assert group.lease("c") == []
    assert group.state(0) == "dead"


# -- nack


def test_a_nack_that_names_messages_blames_them():
    group = Group()
    group.lease("a", 3)
    group.settle(NACK, "a", [1], error="no such customer")
    back = group.at(1)
    assert (back.state, back.suspect, back.lease_id, back.failure_count, back.error) == (WAITING, False, None, 1, "no such customer")
    assert group.states().startswith("LWL")


@pytest.mark.parametrize("how", [{"seqs": None}, {"seqs": [0, 1, 2], "whole": True}])
def test_a_nack_of_the_whole_lease_makes_suspect(how):
    group = Group()
    group.lease("a", 3)
    group.settle(NACK, "a", **how)
    assert group.at(0).suspect
    assert group.at(0).message_count == 3


def test_backoff_doubles_up_to_its_cap():
    group = Group(messages=1, rules=limits(max_delivery_attempts=None))
    waits = []
    for attempt in range(9):
        assert group.lease(f"l{attempt}") == [0]
        group.settle(NACK, f"l{attempt}")
        waits.append((group.at(0).available_at - group.now) // SECOND)
        group.now = group.at(0).available_at
    assert waits == [10, 20, 40, 80, 160, 320, 640, 900, 900]


@pytest.mark.parametrize(("jitter", "wait"), [(0.0, 10.0), (0.5, 10.5), (1.0, 11.0)])
def test_jitter_stretches_a_backoff_by_up_to_a_tenth(jitter, wait):
    group = Group()
    group.lease("a", 10)
    group.settle(NACK, "a", jitter=jitter)
    assert group.at(0).available_at == group.now + wait * SECOND
    assert len(group.ledger) == 1, "drawn once a settle, not once a message"


def test_a_given_delay_replaces_backoff_and_jitter():
    group = Group()
    group.lease("a")
    group.settle(NACK, "a", delay=7, jitter=1.0)
    assert group.at(0).available_at == group.now + 7


def test_a_nacked_message_is_not_due_before_its_time():
    group = Group(messages=1)
    group.lease("a")
    group.settle(NACK, "a")
    group.now += 10 * SECOND - 1
    assert group.lease("b") == []
    group.now += 1
    assert group.lease("b") == [0]


def test_a_nack_of_the_last_attempt_is_death():
    group = Group(messages=1, rules=limits(max_delivery_attempts=2))
    for lease_id in "ab":
        assert group.lease(lease_id) == [0]
        group.settle(NACK, lease_id, [0], delay=0, error=f"failed in {lease_id}")
    dead = group.at(0)
    assert (dead.state, dead.reason, dead.error, dead.failure_count) == (DEAD, "max_delivery_attempts", "failed in b", 2)


# -- reject, release


def test_reject_is_death_at_once():
    group = Group()
    group.lease("a", 2)
    group.settle(REJECT, "a", [1], error="not JSON")
    group.settle(REJECT, "a", [0], reason="payload unreadable")
    assert (group.at(1).state, group.at(1).reason, group.at(1).error) == (DEAD, "rejected", "not JSON")
    assert group.at(0).reason == "payload unreadable"


def test_release_is_as_if_it_had_never_been_leased():
    group = Group()
    group.lease("a", 3)
    group.settle(RELEASE, "a")
    assert group.at(0) == Range(0, 2, WAITING, 3, available_at=group.now)


def test_release_restores_a_suspect_and_no_older_lease_id():
    group = Group(messages=1)
    group.lease("a")
    group.expire()
    before = group.at(0)
    group.lease("b")
    group.settle(RELEASE, "b")
    assert group.at(0) == before._replace(lease_id=None, worker_id=None, leased_at=None, lease_size=None, available_at=group.now)
    assert group.settle(ACK, "a").settled == 0, "the lease before has no claim any more"


# -- late settles


def late(verb: str | None = None) -> Group:
    """Lease a of messages 0..2 has expired, nobody has leased them since; then a late settle."""
    group = Group()
    group.lease("a", 3)
    group.expire()
    group.now += 5
    if verb:
        assert group.settle(verb, "a").settled == 3
    return group


def test_a_late_ack_counts():
    group = late(ACK)
    assert group.states() == "SSSUUUUUUU"
    assert group.ledger.head.counters == {"acked": 3}


def test_a_late_reject_counts():
    assert late(REJECT).states() == "DDDUUUUUUU"


def test_a_late_extend_revives():
    group = late()
    leased_at = group.now - 5 - TIMEOUT - 1
    assert group.extend("a").settled == 3
    back = group.at(0)
    assert (back.state, back.expires_at, back.delivery_count, back.failure_count) == (LEASED, group.now + TIMEOUT, 1, 0)
    assert (back.lease_id, back.worker_id, back.leased_at, back.available_at) == ("a", "worker of a", leased_at, None)
    assert group.lease("b", 3) == [3, 4, 5]
    assert group.settle(ACK, "a").settled == 3


def test_a_late_nack_gives_up_the_claim():
    group = late(NACK)
    back = group.at(0)
    assert (back.state, back.lease_id, back.available_at, back.suspect) == (WAITING, None, group.now, True)
    assert back.failure_count == 1, "its expiry has counted already"
    assert group.settle(ACK, "a", [0]).lost == [(0, 0, "given back")]
    assert group.state(0) == "waiting"


def test_a_late_nack_by_name_blames_and_keeps_a_given_delay():
    group = late()
    group.settle(NACK, "a", [1], delay=9)
    assert (group.at(1).suspect, group.at(1).available_at, group.at(1).lease_id) == (False, group.now + 9, None)
    assert group.at(0).lease_id == group.at(2).lease_id == "a"


def test_a_late_release_gives_up_the_claim_and_keeps_the_count():
    group = late(RELEASE)
    back = group.at(0)
    assert (back.state, back.lease_id, back.suspect, back.delivery_count) == (WAITING, None, True, 1)
    assert (back.worker_id, back.leased_at) == (None, None)
    assert group.extend("a").settled == 0


# -- what each settle does to each state


STATES = {
    # how message 0 came to be there, and what it counts as: held, settled, or why it is lost
    "held": ("held", lambda group: None),
    "past its deadline": ("held", lambda group: group.expire()),
    "settled": ("settled", lambda group: group.settle(ACK, "a")),
    "settled by a later lease": ("settled", lambda group: (group.expire(), group.lease("b", 1), group.settle(ACK, "b"))),
    "settled, a hole above the floor": ("settled", lambda group: (group.settle(ACK, "a"), reopen(group))),
    "leased by another": ("leased by b", lambda group: (group.expire(), group.lease("b", 1))),
    "dead": ("dead: rejected", lambda group: group.settle(REJECT, "a")),
    "routing": ("dead: rejected", lambda group: (group.settle(REJECT, "a"), freeze(group))),
    "given back": ("given back", lambda group: group.settle(NACK, "a")),
    "unread": ("unread", lambda group: seek(group, 0)),
    "skipped": ("skipped", lambda group: seek(group, 1)),
    "skipped after it was settled": ("settled", lambda group: (group.settle(ACK, "a"), seek(group, 1))),
    "skipped, then unread again": ("unread", lambda group: (seek(group, 1), seek(group, 0))),
}


def reopen(group: Group) -> None:
    """Puts a floor below message 0 again, as if another message before it were open."""
    group.ledger = Ledger.of(replace(group.ledger.head, floor=-1, forgotten=0), [Range(0, 0, SETTLED, 1), *group.ledger])


def freeze(group: Group) -> None:
    group.ledger, _ = rules_of.freeze_dead(group.ledger, "routing", 10)


def seek(group: Group, target: int) -> None:
    group.ledger = moving.seek(group.ledger, group.index, target)


@pytest.mark.parametrize("verb", [ACK, NACK, REJECT, RELEASE])
@pytest.mark.parametrize("by", ["whole lease", "sequence", "nothing"])
@pytest.mark.parametrize("case", STATES)
def test_a_settle_touches_what_its_lease_holds_and_tells_of_the_rest(case, by, verb):
    expected, prepare = STATES[case]
    group = Group(messages=3)
    assert group.lease("a", 1) == [0]
    prepare(group)
    before = group.ledger
    outcome = group.settle(verb, "a", {"whole lease": None, "sequence": [0], "nothing": []}[by])
    if by == "nothing":
        assert outcome == SettleOutcome()
    elif expected == "held":
        assert outcome == SettleOutcome(settled=1, ranges=[(0, 0)])
        assert group.state(0) == {ACK: "settled", REJECT: "dead"}.get(verb, "waiting")
        assert outcome.states == {group.state(0): 1}
        assert (outcome.next_due is not None) == (group.state(0) == "waiting")
        assert not group.ledger.count(group.ledger.held_by("a")), "nothing holds its id any more"
        return
    elif by == "whole lease":
        assert outcome == SettleOutcome(), "the lease holds nothing any more, and no message was named"
    elif expected == "settled":
        assert outcome == SettleOutcome(already_settled=1)
    else:
        assert outcome == SettleOutcome(lost=[(0, 0, expected)])
    assert group.ledger is before, "nothing done, nothing to commit"


def test_what_is_still_held_is_settled_though_the_rest_is_lost():
    group = Group(files=[DataFile(0, 6, "a", 6, 0), DataFile(sequence(2, 0), 2, "b", 2, 0)])
    group.lease("a", 2)
    group.lease("b", 2)
    group.settle(ACK, "a", [0])
    outcome = group.settle(ACK, "a", [0, 1, 2, 3, 5, 6, sequence(2, 0), sequence(3, 0)])
    assert (outcome.settled, outcome.already_settled, outcome.ranges) == (1, 1, [(1, 1)])
    assert outcome.lost == [
        (2, 3, "leased by b"),
        (5, 5, "unread"),
        (6, 6, "no message"),
        (sequence(2, 0), sequence(2, 0), "unread"),
        (sequence(3, 0), sequence(3, 0), "no message"),
    ]


def test_the_intervals_of_a_whole_lease_may_end_in_gaps():
    """What is left of a range after part of it was settled can begin past a commit's last message."""
    group = Group(files=[DataFile(0, 2, "a", 2, 0), DataFile(sequence(1, 0), 2, "b", 2, 0)])
    group.lease("a", 4)
    group.settle(ACK, "a", [1])
    group.fold("a")
    wanted = SettleCommand(ACK, "a", [(0, 0), (2, sequence(1, 1))], whole=True)
    group.ledger, outcome = settling.settle(group.ledger, group.index, group.now, group.rules, wanted)
    assert (outcome.settled, outcome.lost) == (3, [])


def test_named_sequences_cut_ranges_and_settled_neighbours_join():
    group = Group()
    group.lease("a", 10)
    group.settle(ACK, "a", [2, 3, 5, 7])
    assert group.states() == "LLSSLSLSLL"
    group.settle(ACK, "a", [4])
    assert [(r.first, r.last, r.message_count) for r in group.ledger if r.state == SETTLED] == [(2, 5, 4), (7, 7, 1)]
    group.settle(ACK, "a", [1, 0])
    assert (group.ledger.head.floor, group.ledger.head.forgotten) == (5, 6)
    assert group.states() == "SSSSSSLSLL"


def test_intervals_may_come_in_any_order_and_overlap():
    group = Group()
    group.lease("a", 10)
    wanted = SettleCommand(ACK, "a", [(7, 9), (0, 3), (2, 4)])
    group.ledger, outcome = settling.settle(group.ledger, group.index, group.now, group.rules, wanted)
    assert (outcome.settled, group.states()) == (8, "SSSSSLLSSS")


def test_an_extension_never_shortens_and_leaves_other_leases_alone():
    group = Group()
    group.lease("a", 2)
    group.lease("b", 2)
    was = group.at(0).expires_at
    assert group.extend("a", 1).settled == 2
    assert group.at(0).expires_at == was
    group.extend("a", 10 * TIMEOUT)
    assert (group.at(0).expires_at, group.at(2).expires_at) == (group.now + 10 * TIMEOUT, was)


def test_what_was_leased_again_is_not_extended():
    group = Group(messages=1)
    group.lease("a")
    group.expire()
    group.lease("b")
    assert group.extend("a").settled == 0
    assert group.at(0).lease_id == "b"


# -- caps


def test_max_in_flight_cuts_a_lease_to_what_fits_then_says_why():
    group = Group(rules=limits(max_in_flight=5))
    assert len(group.lease("a", 3)) == 3
    assert len(group.lease("b", 3)) == 2
    assert group.ask("c", 3) == Grant((), "max_in_flight")
    group.settle(ACK, "a", [0])
    assert group.lease("c", 3) == [5]


def test_max_in_flight_is_no_reason_where_nothing_is_due():
    group = Group(messages=2, rules=limits(max_in_flight=2))
    group.lease("a", 2)
    assert group.ask("b") == Grant((), "")


def test_a_full_ledger_stops_unread_and_says_why_but_waiting_work_goes_on():
    group = Group(rules=limits(max_ledger_ranges=2))
    group.lease("a", 1)
    group.lease("b", 1)
    assert group.ask("c") == Grant((), "max_ledger_ranges")
    group.settle(RELEASE, "a")
    assert group.lease("c", 10) == [0]
    group.settle(ACK, "c")
    group.settle(ACK, "b")
    assert group.lease("d") == [2]


def test_dead_routing_and_delayed_ranges_do_not_fill_a_ledger():
    group = Group(rules=limits(max_ledger_ranges=2))
    for lease_id, verb in (("a", REJECT), ("b", NACK), ("c", REJECT)):
        assert group.lease(lease_id)
        group.settle(verb, lease_id, delay=1000 * SECOND)
        if lease_id == "a":
            freeze(group)
    assert group.states().startswith("RWDU")
    assert group.lease("d") == [3]
    assert group.lease("e") == [4]
    assert group.ask("f").blocked_because == "max_ledger_ranges"
    group.now += 1000 * SECOND
    assert group.lease("f") == [1], "due now, so it goes on"


# -- Trigger.AvailableNow, sizes


def test_available_now_takes_nothing_past_its_end():
    group = Group()
    assert group.lease("a", 100, upto=3) == [0, 1, 2, 3]
    assert group.ask("b", 100, upto=3) == Grant((), "")


@pytest.mark.parametrize("how", [RELEASE, "expire"])
def test_available_now_cuts_a_waiting_range_at_its_end(how):
    group = Group()
    group.lease("a", 8)
    group.settle(RELEASE, "a") if how == RELEASE else group.expire()
    assert group.lease("b", 10_000, upto=0) == [0]
    assert group.lease("c", 10_000, upto=0) == []
    assert group.state(1) == "waiting"


def test_available_now_does_not_wait_for_what_became_due_later():
    group = Group(messages=4)
    start = group.now
    group.lease("a", 2)
    group.lease("b", 2)
    group.settle(NACK, "a", [0], delay=0)
    group.settle(NACK, "a", [1], delay=1)
    group.expire()
    assert group.lease("c", 100, due_by=start) == [0]
    assert group.lease("d", 100, due_by=start) == []
    assert group.lease("e", 100)


@pytest.mark.parametrize(("max_bytes", "taken"), [(0, 1), (9, 1), (10, 1), (35, 3), (100, 10), (1000, 10)])
def test_max_bytes_cuts_but_always_leaves_one(max_bytes, taken):
    group = Group()  # of 10 bytes a message
    assert len(group.lease("a", 100, max_bytes=max_bytes)) == taken
    assert group.states() == "L" * taken + "U" * (10 - taken)


def test_max_bytes_goes_by_the_sizes_of_the_files():
    group = Group(files=[DataFile(0, 2, "big", 2000, 0), DataFile(2, 100, "small", 100, 0)])
    assert len(group.lease("a", 1000, max_bytes=2010)) == 12
    group = Group(files=[DataFile(0, 100, "small", 100, 0), DataFile(100, 2, "big", 2000, 0)])
    assert len(group.lease("a", 1000, max_bytes=1100)) == 101


def test_what_max_bytes_leaves_out_goes_back_as_it_was():
    group = Group()
    group.lease("a", 6)
    group.settle(NACK, "a", [0, 4], delay=0)
    group.settle(RELEASE, "a")
    before = {seq: group.at(seq)._replace(first=0, last=0, message_count=0) for seq in range(6)}
    assert group.lease("b", 100, max_bytes=20) == [0, 1]
    assert {seq: group.at(seq)._replace(first=0, last=0, message_count=0) for seq in range(2, 6)} == {
        seq: before[seq] for seq in range(2, 6)
    }
    assert group.states() == "LLWWWWUUUU"


# -- replays of a stream's batch


def test_a_replay_takes_over_what_its_batch_holds_and_counts_it():
    group = Group()
    group.lease("s/1/x", 3)
    group.lease("s/11/x", 2)
    group.settle(ACK, "s/1/x", [0])
    assert group.take_over("s/1/", "s/1/y") == 2
    assert (group.at(1).lease_id, group.at(1).delivery_count, group.at(1).worker_id) == ("s/1/y", 2, "driver")
    assert group.at(3).lease_id == "s/11/x", "another batch"
    assert group.settle(ACK, "s/1/x", [1]).lost == [(1, 1, "leased by s/1/y")], "the zombie is refused"


def test_a_replay_takes_over_what_expired_but_never_what_was_nacked():
    group = Group()
    group.lease("s/1/x", 3)
    group.settle(NACK, "s/1/x", [0])
    group.expire()
    assert group.take_over("s/1/", "s/1/y") == 2
    assert group.states().startswith("WLL")


def test_what_others_have_leased_since_is_not_taken_over():
    group = Group(messages=3)
    group.lease("s/1/x", 3)
    group.expire()
    taken = group.lease("b", 3)
    assert group.take_over("s/1/", "s/1/y") == 3 - len(taken)


def test_a_batch_is_not_granted_a_second_replay():
    group = Group(messages=3)
    group.lease("s/1/x", 3)
    group.take_over("s/1/", "s/1/y")
    assert group.take_over("s/1/", "s/1/z", again=True) == 0
    back = group.at(0)
    assert (back.state, back.suspect, back.lease_id, back.available_at) == (WAITING, True, None, group.now)
    assert (back.delivery_count, back.failure_count) == (2, 1)
    assert group.settle(ACK, "s/1/y", [0]).lost


def test_a_replay_that_would_be_the_last_attempt_in_company_is_given_back_uncounted():
    group = Group(messages=2, rules=limits(max_delivery_attempts=2))
    group.lease("s/1/x", 2)
    assert group.take_over("s/1/", "s/1/y") == 0
    assert (group.at(0).state, group.at(0).suspect, group.at(0).delivery_count) == (WAITING, True, 1)


def test_a_replay_of_one_message_may_be_its_last_attempt():
    group = Group(messages=1, rules=limits(max_delivery_attempts=2))
    group.lease("s/1/x")
    assert group.take_over("s/1/", "s/1/y") == 1
    assert group.at(0).delivery_count == 2
    assert group.take_over("s/1/", "s/1/z", again=True) == 0
    assert (group.state(0), group.at(0).reason) == ("dead", "max_delivery_attempts")


def test_no_replay_delivers_past_the_limit():
    group = Group(messages=1, rules=limits(max_delivery_attempts=1))
    group.lease("s/1/x")
    assert group.take_over("s/1/", "s/1/y") == 0
    assert group.state(0) == "dead"


def test_an_empty_replay_changes_nothing():
    group = Group()
    before = group.ledger
    assert group.take_over("s/1/", "s/1/y") == 0
    assert group.ledger is before


# -- dead letters


def dead_ones() -> Group:
    group = Group()
    group.lease("a", 8)
    for seq in (1, 3, 5):
        group.settle(REJECT, "a", [seq], error=str(seq))
    return group


def test_freezing_sets_the_first_dead_ranges_aside_under_an_id():
    group = dead_ones()
    group.ledger, frozen = rules_of.freeze_dead(group.ledger, "r1", 2)
    assert [(r.first, r.state, r.lease_id, r.reason, r.error) for r in frozen] == [
        (1, ROUTING, "r1", "rejected", "1"),
        (3, ROUTING, "r1", "rejected", "3"),
    ]
    assert group.states() == "LRLRLDLLUU"


def test_routed_settles_its_id_only_and_once():
    group = dead_ones()
    group.ledger, _ = rules_of.freeze_dead(group.ledger, "r1", 2)
    group.ledger, _ = rules_of.freeze_dead(group.ledger, "r2", 2)
    group.ledger, total = rules_of.routed(group.ledger, "r1")
    assert (total, group.states(), group.ledger.head.counters) == (2, "LSLSLRLLUU", {"dead_lettered": 2})
    again, total = rules_of.routed(group.ledger, "r1")
    assert (total, again) == (0, group.ledger)


def test_a_routing_id_gives_no_right_to_settle():
    group = dead_ones()
    freeze(group)
    assert group.settle(ACK, "routing").settled == 0
    assert group.settle(ACK, "routing", [1]).lost == [(1, 1, "dead: rejected")]
    assert group.extend("routing").settled == 0


# -- seek


def test_a_seek_skips_all_before_and_makes_unread_all_after():
    group = Group()
    group.lease("a", 8)
    group.settle(ACK, "a", [0, 6])
    group.settle(NACK, "a", [1])
    seek(group, 5)
    assert group.states() == "SSSSSUUUUU"
    assert group.ledger.head.counters == {"acked": 2, "skipped": 4}
    assert group.settle(ACK, "a", [7]).lost == [(7, 7, "unread")], "its leases are fenced"
    assert group.lease("b", 100) == [5, 6, 7, 8, 9]
    assert group.at(5).delivery_count == 1


def test_a_seek_back_makes_settled_messages_unread_again():
    group = Group()
    group.lease("a", 8)
    group.settle(ACK, "a")
    seek(group, 2)
    assert (group.states(), group.ledger.head.floor, group.ledger.head.forgotten) == ("SSUUUUUUUU", 1, 2)
    assert "skipped" not in group.ledger.head.counters


def test_a_seek_counts_what_it_skips_where_a_settled_range_straddles_its_target():
    group = Group()
    group.lease("a", 8)
    group.settle(ACK, "a", [2, 3, 4, 5])
    seek(group, 4)
    assert group.ledger.head.counters == {"acked": 4, "skipped": 2}


def test_a_seek_leaves_routing_alone():
    group = dead_ones()
    group.ledger, _ = rules_of.freeze_dead(group.ledger, "r1", 2)
    seek(group, 2)
    assert group.states() == "SRWRUUUUUU", "what lies between is due since ever"
    assert group.ledger.head.counters == {"skipped": 1}
    assert group.lease("b", 3) == [2, 4, 5]
    seek(group, 9)
    assert group.states() == "SRSRSSSSSU"
    group.ledger, total = rules_of.routed(group.ledger, "r1")
    assert (total, group.ledger.head.floor, len(group.ledger)) == (2, 8, 0)


def test_a_seek_leaves_no_range_that_begins_or_ends_in_a_gap():
    group = Group(files=[DataFile(0, 2, "a", 2, 0), DataFile(sequence(2, 0), 2, "b", 2, 0)])
    group.lease("a", 4)
    group.settle(REJECT, "a", [1])
    freeze(group)
    seek(group, sequence(1, 0))
    assert [(r.first, r.state) for r in group.ledger] == [(1, ROUTING)]
    group.settle(REJECT, "a")
    group.lease("b", 4)
    group.settle(REJECT, "b", [sequence(2, 1)])
    freeze(group)
    seek(group, 0)
    assert [(r.first, r.last, r.state, r.message_count) for r in group.ledger] == [
        (0, 0, WAITING, 1),
        (1, 1, ROUTING, 1),
        (sequence(2, 0), sequence(2, 0), WAITING, 1),
        (sequence(2, 1), sequence(2, 1), ROUTING, 1),
    ]
