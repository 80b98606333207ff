"""Options of a lease: the name of its worker."""

from __future__ import annotations

import os
import socket

import pytest

from spark_mq import Queue
from spark_mq.errors import InvalidOption


@pytest.mark.parametrize(
    ("host", "named"),
    [("mill.example", "mill.example"), ("mühle 3", "m-hle-3"), ("m" * 250, "m" * 100)],
)
def test_a_lease_without_a_worker_id_names_host_and_process(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, host: str, named: str
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    queue.publish(["a", "b"])
    group = queue.group()
    lease = group.lease()
    assert lease is not None
    name = lease.worker_id
    assert name == f"{named}-{os.getpid()}"
    assert [held.worker_id for held in group.leases()] == [name]
    again = group.lease(name)
    assert again is not None, "the name is valid where one is given"


def test_lease_and_work_choose_the_same_name(queue: Queue) -> None:
    queue.publish(["a", "b"])
    group, names = queue.group(), list[str]()
    lease = group.lease()
    assert lease is not None
    group.work(lambda lease: names.append(lease.worker_id), until="empty")
    assert names == [lease.worker_id]


def test_an_empty_worker_id_is_refused(queue: Queue) -> None:
    with pytest.raises(InvalidOption, match="worker_id=''"):
        queue.group().lease("")
    with pytest.raises(InvalidOption, match="worker_id=''"):
        queue.group().work(print, worker_id="", until="empty")
