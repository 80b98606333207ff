"""Dead letters are discarded: no redrive finds them again, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from letters import die_in_a_redrive, with_dead
from support.handles import again, killed, lease, on_commit
from support.having import having
from support.limits import Limits
from support.queues import Make
from support.tables import messages_of

from spark_mq import InvalidOption, Queue


def left(queue: Queue) -> list[Any]:
    return again(queue).list_dead_letters()["message_id"].to_pylist()


def test_discarded_letters_are_gone_for_each_view_and_no_redrive_finds_them(
    queue: Queue, limits: Limits
) -> None:
    limits(discard_chunk=1)
    with_dead(queue, ["spam", "spam", "bad"])
    trial = queue.discard_dead_letters(where="error = 'spam'", dry_run=True)
    (_, newest, _) = queue.list_dead_letters()["dead_letter_sequence"].to_pylist()
    assert trial == having(messages=2, groups={"default": 2}, newest=newest)
    assert left(queue) == ["id-0", "id-1", "id-2"], "a dry run changes nothing"
    done = queue.discard_dead_letters(where="error = 'spam'")
    assert done == trial
    assert left(queue) == ["id-2"]
    assert queue.describe().dead_letters == 1
    assert [failure.error for failure in queue.failures()] == ["bad"]
    assert queue.newest_dead_letters()["message_id"].to_pylist() == ["id-2"]
    assert queue.redrive().messages == 1
    assert queue.stats()["published"] == 4, "only the other one was published"
    assert queue.discard_dead_letters(where="true").messages == 0


def test_a_condition_that_fails_at_a_later_letter_discards_nothing(
    queue: Queue, limits: Limits
) -> None:
    limits(discard_chunk=1)
    with_dead(queue, ["7", "seven"])
    with pytest.raises(InvalidOption, match="ConversionException for a message"):
        queue.discard_dead_letters(where="CAST(error AS INT) = 7")
    assert left(queue) == ["id-0", "id-1"]


@pytest.mark.parametrize("dies", ["before", "after"])
def test_a_killed_discard_is_finished_by_the_next(make: Make, limits: Limits, dies: str) -> None:
    queue = with_dead(make(), ["spam", "bad", "spam", "spam"])
    limits(discard_chunk=2)
    with killed("dead_letters/leases", at=2, when=dies):
        queue.discard_dead_letters(where="error = 'spam'")
    rest = 2 if dies == "before" else 0
    assert again(queue).discard_dead_letters(where="error = 'spam'").messages == rest
    assert left(queue) == ["id-1"]


@pytest.mark.parametrize("take", [Queue.redrive, die_in_a_redrive])
def test_a_letter_that_a_redrive_takes_meanwhile_is_published_and_not_counted(
    make: Make, monkeypatch: pytest.MonkeyPatch, take: Callable[..., object]
) -> None:
    queue = with_dead(make(), ["a", "b"])
    other = again(queue)
    on_commit(monkeypatch, "dead_letters/leases", before=lambda: take(other, limit=1))
    assert queue.discard_dead_letters(where="true").messages == 1
    again(queue).redrive()
    assert [message.message_id for message in lease(queue, 9).messages] == ["id-0"]
    assert left(queue) == []


def test_a_letter_without_a_payload_can_be_discarded(delta_queue: Make) -> None:
    queue = delta_queue()
    queue.publish("x")
    index = messages_of(queue).index()
    file = Path(queue.path, "messages", index.file_at(index.first_at_or_after(0)).path)
    file.write_bytes(bytes(file.stat().st_size))
    fresh = again(queue)
    fresh.group().lease("w")
    fresh.sweep()
    assert fresh.describe().dead_letters == 1
    assert fresh.redrive().messages == 0
    assert fresh.discard_dead_letters(where="true", before=0).messages == 0
    assert fresh.discard_dead_letters(where="true", before=2**63 - 1).messages == 1
    assert fresh.describe().dead_letters == 0
