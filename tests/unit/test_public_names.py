"""What completion offers: public members only, each of them documented."""

from __future__ import annotations

import spark_mq
from spark_mq import BufferedPublisher, ConsumerGroup, Lease, Queue, errors
from spark_mq.spark import BatchLease
from spark_mq.testing import memory_queue


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def test_a_queue_shows_its_public_members() -> None:
    assert public(memory_queue()) == {
        "create", "dead_letters", "drop_group", "finished", "group", "groups", "horizon", "last_producer_sequence", "name", "open",
        "path", "publish", "publisher", "purge", "redrive", "settings", "stats", "sweep", "trace",
    }  # fmt: skip


def test_a_group_shows_its_public_members() -> None:
    assert public(memory_queue().group()) == {
        "ack", "blocked_because", "configure", "ensure", "exists", "expire", "extend", "for_each_batch", "lease", "nack", "name",
        "pause", "reject", "release", "resume", "seek", "settings", "stats", "unblock", "work",
    }  # fmt: skip


def test_a_lease_shows_its_public_members() -> None:
    queue = memory_queue()
    queue.publish("a")
    assert public(queue.group().lease("w")) == {
        "ack", "expires_at", "extend", "keep_alive", "lease_id", "messages", "nack", "reject", "release", "table", "worker_id",
    }  # fmt: skip


def test_a_batch_lease_shows_its_public_members() -> None:
    assert public(BatchLease) == {"ack", "delta_options", "lease_id", "nack", "read", "reject"}


def test_public_methods_say_what_they_do() -> None:
    for kind in (Queue, ConsumerGroup, Lease, BufferedPublisher):
        for name in public(kind):
            assert getattr(kind, name).__doc__, f"{kind.__name__}.{name}"


def test_the_package_exports_all_errors() -> None:
    assert set(errors.__all__) <= set(spark_mq.__all__)
    for name in errors.__all__:
        assert getattr(spark_mq, name) is getattr(errors, name)
