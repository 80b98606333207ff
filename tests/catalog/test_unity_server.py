"""Queues in volumes and tables of a Unity Catalog server, over a store that ends keys for real."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

import obstore
import pytest
from support.handles import until
from support.harness import Stream, numbered, publish, values
from unity_server import UnityServer

from spark_mq import Queue
from spark_mq.integrations.unity_catalog import locate


def let_keys_end(unity: UnityServer) -> None:
    """Wait until the store refuses all keys that the catalog has given so far."""
    given = list(unity.keys.given)
    until(lambda: set(given) <= set(unity.keys.ended), "the keys do not end")


def s3_store(unity: UnityServer, keys: dict[str, Any]) -> Any:
    return obstore.store.S3Store(
        "queues",
        config={
            "endpoint": unity.store,
            "region": "us-east-1",
            "access_key_id": keys["access_key_id"],
            "secret_access_key": keys["secret_access_key"],
        },
        client_options={"allow_http": "true"},
    )


def test_the_store_ends_the_keys_that_the_catalog_gave(unity: UnityServer) -> None:
    """Or the tests below would show nothing."""
    keys = locate(f"uc://{unity.new_volume()}", unity.options, {}).credentials()
    assert keys["expires_at"].timestamp() - time.time() <= unity.keys.life
    store = s3_store(unity, keys)
    obstore.put(store, "data/x", b"x")
    let_keys_end(unity)
    with pytest.raises(obstore.exceptions.BaseError):
        obstore.put(store, "data/x", b"x")


def test_a_queue_lives_in_a_volume(unity: UnityServer) -> None:
    path = f"uc://{unity.new_volume()}/queues/orders"
    queue = Queue.create(path, storage_options=unity.options)
    queue.publish(["a", "b"])
    assert queue.path == path
    lease = Queue.open(path, storage_options=unity.options).group("g").lease("w", max_messages=9)
    assert [message.value for message in lease.messages] == [b"a", b"b"]
    lease.ack()
    queue.sweep()
    assert list(Queue.find_all(path.rpartition("/")[0], storage_options=unity.options)) == [path]


def test_a_queue_lives_where_an_external_table_is_registered(unity: UnityServer) -> None:
    path = f"uc://{unity.new_table()}"
    queue = Queue.create(path, storage_options=unity.options)
    queue.publish(["a"])
    queue.group("g").lease("w").ack()


def test_a_worker_outlives_its_keys(unity: UnityServer, caplog: pytest.LogCaptureFixture) -> None:
    queue = Queue.create(f"uc://{unity.new_volume()}/q", storage_options=unity.options)
    before, stop, done = len(unity.keys.ended), threading.Event(), list[bytes]()
    group = queue.group("g")
    group.ensure()
    summary: list[Any] = []

    def work() -> None:
        handler = lambda lease: done.extend(m.value for m in lease.messages)  # noqa: E731
        summary.append(group.work(handler, mode="batch", poll_interval="200ms", stop=stop))

    with caplog.at_level(logging.WARNING):
        worker = threading.Thread(target=work)
        worker.start()
        sent = 0
        try:
            while len(unity.keys.ended) < before + 3:
                queue.publish([f"{sent:03d}"])
                sent += 1
                until(lambda sent=sent: len(done) == sent, "the worker stands still")
        finally:
            stop.set()
            worker.join()
    assert [value.decode() for value in done] == [f"{n:03d}" for n in range(sent)]
    assert group.stats().acked == sent
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.slow
def test_sink_source_and_batch_function_outlive_their_keys(
    unity: UnityServer, spark: Any, tmp_path: Path
) -> None:
    queue = Queue.create(f"uc://{unity.new_volume()}/q", storage_options=unity.options)
    options = {f"storageOptions.{name}": value for name, value in unity.options.items()}
    stream = Stream(spark, queue, tmp_path / "checkpoint", minPartitions="2", **options)
    queue.group("g").ensure()
    seen: list[str] = []

    def process(batch: Any, lease: Any) -> None:
        let_keys_end(unity)  # after the lease, before tasks read and the driver settles
        seen.extend(values(batch))

    for turn in range(2):
        rows = spark.range(20, numPartitions=2).selectExpr(
            f"format_string('%03d', id + {20 * turn}) AS value"
        )
        publish(rows, queue.path, **options)
        stream.settle_with(process)
        let_keys_end(unity)
    assert sorted(seen) == numbered(40)
    assert stream.group.stats().acked == 40
    plan = stream.frame()._jdf.queryExecution().toString()
    secrets = [unity.options["databricks_token"], *unity.keys.given]
    assert not [secret for secret in secrets if secret in plan]
    for path in (tmp_path / "checkpoint").rglob("*"):
        assert not path.is_file() or not [s for s in secrets if s.encode() in path.read_bytes()]
