"""Delegated commands over an object store that fails or loses its replies."""

from __future__ import annotations

import urllib.request
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest
from faulty_store import AFTER, BEFORE, RESET, FaultyStore
from support.handles import again, sequences
from support.limits import Limits
from support.machines import machines, pool, processes, sharing
from support.stores import RemoteStore
from support.tables import context_of, ledgers_of

from spark_mq import Queue
from spark_mq.storage.delegated_commands import FOLDER, DelegationTurn

__all__ = ["machines", "pool", "processes"]


@pytest.fixture
def queue(proxy: FaultyStore, remote: RemoteStore, limits: Limits) -> Queue:
    """A queue behind the proxy, whose handle thinks that others compete."""
    limits(turn_seconds=0.0)
    options = {**proxy.options, "backoff_config.init_backoff": "1ms"}
    queue = Queue.create(remote.new_path(), storage_options=options)
    queue.publish([str(n) for n in range(20)])
    queue.group().ensure()
    return sharing(queue)


@pytest.mark.parametrize("fault", [BEFORE, AFTER, RESET])
@pytest.mark.parametrize(
    ("method", "part"),
    [
        ("PUT", FOLDER), ("GET", FOLDER), ("LIST", ""), ("PUT", "leases/_delta_log"),
        ("PUT", "leases/consumer_group"), ("DELETE", ""),
    ],
)  # fmt: skip
def test_a_fault_at_any_request_runs_each_operation_once(
    queue: Queue, proxy: FaultyStore, limits: Limits, *, fault: str, method: str, part: str
) -> None:
    if (method, part) == ("GET", FOLDER):
        limits(name_bytes=0)  # so that requests have content
    other = again(queue)
    ledgers, data = ledgers_of(other), {"lease": {"worker_id": "delegated", "max_messages": 3}}
    DelegationTurn(ledgers.files, ledgers.log, [["default", data]]).delegate()
    proxy.once(fault, method, part)
    lease = queue.group().lease("w", max_messages=4)
    assert len(sequences(lease)) == 4
    held = {one.worker_id: one.messages for one in other.group().leases()}
    # A request whose file cannot be read is left to its own writer.
    assert held in ({"w": 4, "delegated": 3}, {"w": 4})
    assert proxy.met() == 1 or method == "DELETE"


@pytest.mark.usefixtures("machines")
def test_competing_writers_over_a_store_that_fails_all_the_time_lose_nothing(
    queue: Queue, proxy: FaultyStore, remote: RemoteStore, pool: ThreadPoolExecutor
) -> None:
    """Four writers with locks of their own, as on four machines."""
    options = context_of(queue).storage_options
    queue.publish([f"more {n}" for n in range(60)])

    def work(number: int) -> list[int]:
        group, done = Queue.open(queue.path, storage_options=options).group(), list[int]()
        while (lease := group.lease(f"w{number}", max_messages=5)) is not None:
            found = sequences(lease)
            assert lease.ack().settled == len(found)
            done.extend(found)
        return done

    proxy.often(0.02, 7)
    done = [sequence for each in pool.map(work, range(4)) for sequence in each]
    assert len(done) == len(set(done)) == 80
    stats = Queue.open(queue.path, storage_options=remote.options).group().stats()
    assert (stats.acked, stats.leased, stats.dead) == (80, 0, 0)


@pytest.mark.only_on("gcs")  # versitygw keeps files, which cannot have such names
@pytest.mark.parametrize("name", ["/x", "./x", "../leases/./x"])
def test_a_foreign_name_that_hides_the_requests_stops_nobody(
    queue: Queue, remote: RemoteStore, name: str
) -> None:
    """Then the store's client can list nothing in the folder."""
    full = f"{queue.path.removeprefix(remote.root)[1:]}/leases/{FOLDER}/{name}"
    upload = f"{remote.url}/upload/storage/v1/b/queues/o?uploadType=media&name={quote(full)}"
    with urllib.request.urlopen(upload, data=b"x", timeout=30) as reply:
        assert reply.status == 200
    with pytest.raises(OSError, match="invalid path"):
        ledgers_of(queue).files.list(FOLDER)
    lease = queue.group().lease("w", max_messages=5)
    assert lease.ack().settled == 5
