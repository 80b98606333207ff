"""Groups: their settings, what blocks them, dropping them, and what a queue's limits take from
them.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from support.clocks import SECOND
from support.handles import again, lease, leased, on_commit, once, take, trim
from support.having import having
from support.queues import Make
from support.rule_variants import returns, rule_variant
from support.tables import group_ledger_of, ledgers_of, on_write

from spark_mq import ConsumerGroup, PurgeResult, Queue
from spark_mq.errors import DataLossError, GroupBlocked, GroupNotFound, LeaseLost
from spark_mq.testing import ManualClock

# -- settings


def test_settings_are_stored_and_obeyed_by_other_handles(queue: Queue, clock: ManualClock) -> None:
    other = again(queue)
    queue.publish(["a", "b"])
    assert other.group().lease("w", max_messages=1) is not None
    before = queue.group().settings
    settings = queue.group().configure(visibility_timeout="5m", max_in_flight=3)
    expected = replace(before, visibility_timeout=timedelta(minutes=5), max_in_flight=3)
    assert settings == other.group().settings == expected
    assert lease(other).expires_at == clock() + timedelta(minutes=5)
    queue.group().configure(max_in_flight=None)
    assert queue.group().settings == replace(expected, max_in_flight=None)


def test_a_group_that_is_made_is_reported_once_and_warned_of_if_it_looks_misspelt(
    queue: Queue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", "spark_mq.operations.context")
    numbered = ("worker-1", "worker-2", "worker", "worker_10", "audit", "audit2")
    on_commit(monkeypatch, "leases", before=again(queue).group("billing").ensure)
    for name in ("billing", "billing", *numbered):
        queue.group(name).ensure()
    with rule_variant("LedgerTable.group_count", returns(100)):
        queue.group("biling", start="latest").lease("w")
    (billing, *others, biling) = caplog.records
    assert billing.getMessage() == f"group 'billing' is created in {queue.path}, at earliest"
    assert [record.levelname for record in (billing, *others)] == ["INFO"] * 7
    assert biling.levelname == "WARNING"
    assert "latest" in biling.getMessage()
    assert "Its name is like that of group 'billing'. If it is misspelt" in biling.getMessage()
    with pytest.raises(GroupNotFound, match="The queue has audit, audit2, biling,") as missing:
        queue.group("worker-3", create=False).stats()
    assert "Did you mean" not in str(missing.value)


def test_history_tells_what_finished_in_a_dropped_group(queue: Queue) -> None:
    queue.publish("a")
    lease(queue, group="billing").ack()
    with pytest.raises(GroupNotFound, match=r"'biling'.*billing"):
        queue.finished("biling")
    queue.drop_group("billing")
    assert queue.finished("billing").num_rows == 1


LOOKS: dict[str, Callable[[ConsumerGroup], Any]] = {
    "stats": lambda group: group.stats(),
    "expire": lambda group: group.expire(),
    "peek": lambda group: group.peek(),
    "leases": lambda group: group.leases(),
    "workers": lambda group: group.workers(),
    "last_errors": lambda group: group.last_errors(),
    "slowest": lambda group: group.slowest(),
    "most_failing": lambda group: group.most_failing(),
    "preview_seek": lambda group: group.preview_seek("latest"),
    "ack": lambda group: group.ack("lease"),
    "ack nothing": lambda group: group.ack("lease", []),
    "extend": lambda group: group.extend("lease"),
    "unblock": lambda group: group.unblock("retry"),
    "resume": lambda group: group.resume(),
    "discard": lambda group: group.discard(2**32),
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_group_that_is_not_there_is_named_with_the_nearest(queue: Queue, look: str) -> None:
    queue.publish("a")
    files = ledgers_of(queue).files.list_all("")
    with pytest.raises(GroupNotFound, match=r"no consumer group 'default'.*ensure"):
        LOOKS[look](queue.group())
    assert ledgers_of(queue).files.list_all("") == files
    queue.group("billing").ensure()
    for handle in (queue, again(queue)):
        with pytest.raises(GroupNotFound, match=r"'biling' in .*Did you mean 'billing'") as caught:
            LOOKS[look](handle.group("biling"))
        assert caught.value.data["group"] == "biling"
    assert queue.groups() == ["billing"]


def test_without_create_a_handle_creates_no_group(queue: Queue) -> None:
    with pytest.raises(GroupNotFound, match="'billing'"):
        queue.group("billing", create=False)
    queue.group("billing").ensure()
    group = queue.group("billing", create=False)
    queue.publish(["a", "b"])
    assert group.lease("w") is not None
    assert group.ensure().stats().leased == 1
    queue.drop_group("billing")
    for call in (group.lease, group.pause, group.ensure, group.stats):
        with pytest.raises(GroupNotFound, match="'billing'"):
            call()
    assert queue.groups() == []


def test_a_handle_without_create_stays_so_elsewhere(delta_queue: Make) -> None:
    queue = delta_queue()
    group = queue.group().ensure()
    copy = pickle.loads(pickle.dumps(queue.group(create=False)))
    queue.drop_group(group.name)
    with pytest.raises(GroupNotFound):
        copy.lease("w")
    assert pickle.loads(pickle.dumps(group)).lease("w") is None
    assert queue.groups() == ["default"]


# -- retry policies


def test_jitter_is_drawn_for_each_settle(make: Make) -> None:
    queue = make(retry="constant", retry_delay="100s", retry_jitter=0.5, max_delivery_attempts=None)
    sequences = queue.publish([str(n) for n in range(100)]).sequences
    taken = lease(queue, 100)
    for sequence in sequences:
        taken.nack([sequence])
    due = [r.available_at or 0 for r in group_ledger_of(queue.group()).current()]
    assert 10 * SECOND < max(due) - min(due) <= 50 * SECOND


# -- at the limit


def blocked(make: Make) -> Queue:
    """Messages 0 to 4, of which 1 has failed its last attempt."""
    queue = make(on_max_deliveries="block", max_failures=1)
    sequences = queue.publish([str(n) for n in range(5)]).sequences
    taken = lease(queue, 3)
    taken.nack([sequences[1]], error="no")
    taken.release()
    return queue


def test_a_group_that_blocks_leases_nothing_past_the_message_and_says_why(make: Make) -> None:
    queue = blocked(make)
    assert take(queue.group()) == ["0"]
    with pytest.raises(GroupBlocked, match="unblock"):
        queue.group().lease("w")
    stats = queue.group().stats()
    assert (stats.blocked, stats.backlog) == (1, 4)
    assert str(group_ledger_of(queue.group()).current().range_at(0).first) in stats.blocked_because
    assert queue.sweep().routed == 0, "it waits for someone, not for the DLQ"


def test_a_group_that_ceases_to_block_treats_what_blocked_as_it_now_wants(make: Make) -> None:
    queue = blocked(make)
    queue.group().configure(on_max_deliveries="drop")
    assert take(queue.group()) == ["0", "2", "3", "4"]
    assert queue.group().stats().dropped == 1


# -- dropping a group


def test_a_dropped_group_has_no_leases_and_holds_no_trim(make: Make, clock: ManualClock) -> None:
    queue = make(retention=0)
    queue.publish(["a"])
    old = queue.group("old")
    taken = old.lease("w")
    lease(queue, 1, group="new").ack()
    clock.advance("1s")
    assert trim(queue) == 0
    again(queue).drop_group("old")
    assert queue.groups() == ["new"]
    for call in (taken.ack, lambda: old.lease("w"), lambda: queue.drop_group("old")):
        with pytest.raises(GroupNotFound):
            call()
    assert trim(queue) == 1


def test_a_group_made_again_begins_anew_and_knows_no_old_lease(queue: Queue) -> None:
    taken = leased(queue, "a")
    queue.drop_group("default")
    assert lease(queue).messages == taken.messages
    with pytest.raises(LeaseLost):
        taken.ack()


# -- limits of the queue


@pytest.mark.parametrize("accept", ["lease", "seek"])
def test_a_group_that_a_hard_limit_cut_is_reported_until_it_accepts_the_loss(
    make: Make, clock: ManualClock, accept: str
) -> None:
    queue = make(hard_retention="1h", visibility_timeout="3h")
    leased(queue, "a", "b", "c", count=1)
    clock.advance("2h")
    assert trim(queue) == 1
    queue.publish(["d"])
    for handle in (queue, again(queue)):
        with pytest.raises(DataLossError, match="seek") as caught:
            handle.group().lease("w")
        assert caught.value.data["lost"] == 2, "what is leased may have been read"
    if accept == "lease":
        queue.group().lease("w", fail_on_data_loss=False).release()
        assert queue.group().stats().lost == 2
    else:
        queue.group().seek("earliest")
    assert take(again(queue).group()) == ["d"], "reported and accepted once, it is the past"


def leased_despite_loss(queue: Queue) -> list[bytes]:
    taken = queue.group().lease("w", max_messages=9, fail_on_data_loss=False)
    return [m.value for m in taken.messages]


@pytest.mark.parametrize("knows_file", [True, False])
def test_a_lease_that_meets_a_hard_limit_takes_no_trimmed_message(
    make: Make, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, knows_file: bool
) -> None:
    """The trim comes between the look of the lease and its commit."""
    queue = make()
    queue.publish(["a", "b"])
    lease(queue if knows_file else again(queue), 2).release()
    clock.advance("2h")

    def cut() -> None:
        other = again(queue)
        other.configure(hard_retention="1h")
        assert trim(other) == 1
        other.publish("c")

    on_write(monkeypatch, queue, once(before=cut))
    assert leased_despite_loss(queue) == [b"c"]
    assert queue.group().stats() == having(lost=2, dead=0, leased=1)


def test_a_message_that_a_hard_limit_drops_under_its_lease_is_lost_and_not_dead(
    make: Make, clock: ManualClock
) -> None:
    """Its holder has not read it yet."""
    queue = make(hard_retention="1h", visibility_timeout="3h")
    held = leased(queue, "a", "b")
    before = group_ledger_of(queue.group()).current()
    clock.advance("2h")
    assert trim(again(queue)) == 1
    group_ledger_of(queue.group()).index_for(before)  # its tables agree
    assert held.messages == []
    assert again(queue).sweep().routed == 0
    queue.publish("c")
    with pytest.raises(DataLossError):
        queue.group().lease("w")
    assert leased_despite_loss(queue) == [b"c"]
    assert queue.group().stats() == having(lost=2, dead=0, leased=1)


def test_a_purge_drops_all_for_all_groups_and_fences_leases(queue: Queue) -> None:
    assert queue.purge(queue.name) == PurgeResult(messages=0, files=0)
    taken = leased(queue, "a", "b", count=1)
    queue.group("other").ensure()
    assert again(queue).purge(queue.name) == PurgeResult(messages=2, files=1)
    with pytest.raises(LeaseLost, match="skipped"):
        taken.ack()
    assert (queue.group().stats().ready, queue.group("other").stats().skipped) == (0, 2)
    queue.publish(["c"])
    assert take(queue.group()) == ["c"]
    assert take(queue.group("new")) == ["c"], "a new group starts at the horizon"
