"""A redrive goes to the group in which a message died, and the other groups skip it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from letters import die_in_a_redrive
from support.handles import again, lease, take_all
from support.having import having
from support.queues import Make
from support.tables import messages_of, put_back

from spark_mq import Message, Queue
from spark_mq.testing import ManualClock


def get(queue: Queue, group: str) -> list[str]:
    """Ack all that a group can get, and return the values in order."""
    return take_all(queue.group(group))


def reject(queue: Queue, group: str) -> None:
    """Let a group reject all that it can get, and route it."""
    lease(queue, 100, group).reject(error="no")
    queue.sweep()


def with_letters(queue: Queue, texts: str = "ab") -> Queue:
    """A queue whose group `mail` has rejected all that `lake` has acked."""
    queue.publish([Message(text, key=text) for text in texts])
    assert get(queue, "lake") == list(texts)
    reject(queue, "mail")
    return queue


def test_letters_of_several_groups_go_to_each_in_one_commit(queue: Queue) -> None:
    with_letters(queue, "abc")
    queue.publish("d")
    for name in ("mail", "lake"):
        reject(queue, name)
    before = messages_of(queue).index()
    trial = queue.redrive(dry_run=True)
    assert (trial.messages, trial.groups) == (5, {"mail": 4, "lake": 1})
    assert trial.destination == "4 to group mail, 1 to group lake"
    discarded = queue.discard_dead_letters(where="true", dry_run=True)
    assert queue.redrive().groups == discarded.groups == {"mail": 4, "lake": 1}
    after = messages_of(queue).index()
    assert (len(after.files), after.version) == (len(before.files) + 2, before.version + 1)
    assert len(queue.trace(after.last_sequence).chain()) == 2, "not with its other copy"
    assert [queue.group(name).stats().ready for name in ("mail", "lake")] == [4, 1]
    assert get(queue, "mail") == ["a", "b", "c", "d"]
    assert get(queue, "lake") == ["d"]
    assert get(queue, "new") == ["a", "b", "c", "d"], "it begins at the earliest, and skips both"


def test_the_others_have_nothing_to_do_and_skip_one_range(queue: Queue) -> None:
    with_letters(queue)
    queue.redrive()
    for stats in (queue.group("lake").stats(), queue.describe().groups["lake"]):
        assert stats == having(ready=0, unread=0, backlog=0, oldest_unsettled_age=None)
    assert queue.group("mail").stats().ready == queue.describe().groups["mail"].ready == 2
    assert get(queue, "lake") == []
    stats = queue.group("lake").stats()
    assert (stats.acked, stats.skipped, stats.start_sequence) == (2, 2, stats.latest_sequence)
    (copy, _) = [m.sequence for m in queue.group("mail").lease("w", max_messages=9).messages]
    (skip,) = [event for event in queue.trace(copy).events if event.group == "lake"]
    assert (skip.event, skip.outcome, skip.operation) == ("other_group", "skipped", "skip")
    queue.publish("c")
    assert queue.group("lake").stats().ready == queue.describe().groups["lake"].ready == 1
    assert get(queue, "lake") == ["c"]


def test_an_idle_group_that_has_not_skipped_it_is_named_by_what_holds_the_trim(
    queue: Queue, clock: ManualClock
) -> None:
    with_letters(queue)
    queue.redrive()
    assert get(queue, "mail") == ["a", "b"]
    clock.advance("30d")
    (blocker,) = [blocker for blocker in queue.blockers() if blocker.blocks == "trim"]
    assert (blocker.group, blocker.because) == ("lake", "unread")


def test_a_seek_delivers_only_what_is_for_the_group(queue: Queue) -> None:
    with_letters(queue)
    queue.redrive()
    assert get(queue, "lake") == []
    queue.group("lake").seek("earliest")
    queue.group("mail").seek("earliest")
    assert get(queue, "lake") == ["a", "b"]
    assert get(queue, "mail") == ["a", "b", "a", "b"]
    replayed = queue.replay(lambda message: None, "lake", mode="message").table
    assert replayed.num_rows == 2, "no handler of the group would ever get the others"


@pytest.mark.parametrize("order", ["none", "key", "fair"])
@pytest.mark.parametrize("filter", [None, "key_prefix=a"])
def test_order_and_filters_count_as_before(make: Make, order: str, filter: str | None) -> None:
    queue = make(lanes=4)
    for name in ("lake", "mail"):
        queue.group(name).ensure()
        queue.group(name).configure(order=order, filter=filter)
    queue.publish([Message("a1", key="a"), Message("a2", key="a")])
    taken = lease(queue, 2, "mail")
    taken.reject(taken.messages[:1])
    taken.release()
    queue.sweep()
    queue.redrive()
    queue.publish(Message("a3", key="a"))
    assert get(queue, "mail") == ["a2", "a1", "a3"], "it stands at the end of its key"
    assert get(queue, "lake") == ["a1", "a2", "a3"]


@pytest.mark.parametrize("settings", [{"dedup_window": "1h"}, {"dedup_until": "settled"}])
def test_ids_neither_stop_a_redrive_nor_are_held_by_it(make: Make, settings: Any) -> None:
    queue = make(**settings)
    queue.publish([Message("a", dedup_id="one")])
    assert get(queue, "lake") == ["a"]
    reject(queue, "mail")
    assert queue.redrive().messages == 1
    receipt = queue.publish([Message("again", dedup_id="one")])
    assert bool(receipt.duplicates) is ("dedup_window" in settings)


def test_a_letter_whose_group_is_gone_stays(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    with_letters(queue)
    queue.publish("c")
    reject(queue, "lake")
    queue.drop_group("mail")
    for dry_run in (True, False):
        caplog.clear()
        result = queue.redrive(limit=2, dry_run=dry_run)
        assert (result.messages, result.groups) == (1, {"lake": 1})
        assert result.without_group == {"mail": 2}
        assert len(caplog.messages) == 1, "a session of the command line has its text"
    assert len(queue.list_dead_letters()) == 2
    assert get(queue, "lake") == ["c"]
    assert queue.redrive(to_all_groups=True).messages == 2
    assert get(queue, "lake") == ["a", "b"]


def test_a_new_group_of_the_same_name_gets_it(queue: Queue) -> None:
    with_letters(queue)
    queue.drop_group("mail")
    assert queue.redrive().messages == 0
    queue.group("mail", start="latest").ensure()
    assert queue.redrive().groups == {"mail": 2}
    assert get(queue, "mail") == ["a", "b"]
    queue.drop_group("mail")
    assert get(queue, "mail") == ["a", "b", "a", "b"], "it begins at the earliest"


@pytest.mark.parametrize("all_groups", [False, True])
def test_a_group_that_is_dropped_during_a_redrive_loses_no_letter(
    make: Make, all_groups: bool
) -> None:
    queue = with_letters(make())
    queue.publish("c")
    reject(queue, "lake")
    die_in_a_redrive(queue, to_all_groups=all_groups)
    queue.drop_group("lake")
    files = messages_of(queue).files.list("")
    assert again(queue).redrive().messages == (3 if all_groups else 2)
    assert len(queue.list_dead_letters()) == (0 if all_groups else 1)
    assert len(messages_of(queue).files.list("")) == len(files) + 1, "none of the first try"
    assert get(queue, "mail") == ["c", "a", "b", *("c" if all_groups else "")]


@pytest.mark.parametrize("all_groups", [False, True])
@pytest.mark.parametrize("transform", [None, "value"])
def test_a_recovery_publishes_what_was_lost_to_the_same_groups(
    delta_queue: Make, all_groups: bool, transform: str | None
) -> None:
    queue = with_letters(delta_queue())
    with put_back(queue, "messages"):
        queue.redrive(to_all_groups=all_groups, transform=transform)
    restored = again(queue)
    assert restored.recover().redriven == 2
    assert get(restored, "mail") == ["a", "b"]
    assert get(restored, "lake") == (["a", "b"] if all_groups else [])


def test_another_queue_and_plain_readers_see_all(delta_queue: Make, tmp_path: Path) -> None:
    queue, other = with_letters(delta_queue()), Queue.create(tmp_path / "other")
    assert queue.redrive(to=other, limit=1).groups == {}
    assert get(other, "any") == ["a"]
    queue.redrive()
    rows = DeltaTable(f"{queue.path}/messages").to_pyarrow_table()
    headers = [dict(row or ()) for row in rows["headers"].to_pylist()]
    assert sorted(one.get("spark_mq.group", "") for one in headers) == ["", "", "mail"]


def test_what_a_sweep_has_indexed_and_others_have_rewritten_stays_for_the_group(
    delta_queue: Make, clock: ManualClock
) -> None:
    queue = with_letters(delta_queue())
    queue.redrive()
    table = DeltaTable(f"{queue.path}/messages")
    table.create_checkpoint()
    table.optimize.compact()
    clock.advance("1d")
    queue.sweep()
    fresh = again(queue)
    assert get(fresh, "lake") == []
    assert get(fresh, "mail") == ["a", "b"]
    fresh.recover()
    fresh.group("lake").seek("earliest")
    assert get(again(fresh), "lake") == ["a", "b"]
