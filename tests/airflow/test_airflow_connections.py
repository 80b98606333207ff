"""Queues by connections with secrets, deferred tasks, and triggerers that are killed or frozen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from airflow_processes import Airflow

from spark_mq import Queue

DAGS = "tests/airflow/dags/connected.py"
SECRET = "hunter2-of-this-test"


def beside(airflow: Airflow, name: str) -> str:
    return str(airflow.home.parent / name)


def prepare(airflow: Airflow) -> None:
    """Add the connections. Local queues ignore storage options, and a lost store has no server."""
    Queue.create(beside(airflow, "published"))
    keys = {"access_key_id": "known", "secret_access_key": SECRET}
    lost = {**keys, "endpoint": "http://127.0.0.1:1", "allow_http": "true", "region": "eu-west-1"}
    places = {
        "orders": (beside(airflow, "orders"), keys),
        "published": (beside(airflow, "published"), keys),
        "missing": (beside(airflow, "missing"), keys),
        "lost": ("s3://bucket/queue", lost),
    }
    connections = {
        name: {"conn_type": "spark_mq", "extra": {"path": path, "storage_options": options}}
        for name, (path, options) in places.items()
    }
    # The command `connections add` would leave the secret in Airflow's audit log.
    given = Path(beside(airflow, "connections.json"))
    given.write_text(json.dumps(connections))
    airflow.run("connections", "import", str(given))


def test_airflow_lists_the_provider(queue: Queue, tmp_path: Path) -> None:
    airflow = Airflow(tmp_path / "home", queue)
    (found,) = [one for one in json.loads(airflow.run("providers", "list", "--output", "json"))
                if one["package_name"] == "spark-mq"]  # fmt: skip
    assert found["description"].startswith("Acknowledged message queues")
    hooks = json.loads(airflow.run("providers", "hooks", "--output", "json"))
    assert [one["class"] for one in hooks if one["connection_type"] == "spark_mq"] == [
        "spark_mq.integrations.airflow.hooks.SparkMQHook"
    ]


@pytest.mark.slow
def test_deferred_tasks_and_watchers_outlive_triggerers_and_show_no_secret(
    airflow: Airflow, queue: Queue, tmp_path: Path
) -> None:
    first = airflow.start("triggerer")
    waiting, watcher = queue.group("waiting"), queue.group("watcher")
    airflow.until(lambda: airflow.states("impatient") == {"failed"})
    airflow.until(lambda: airflow.states("wait") == {"deferred"})
    airflow.until(watcher.exists)
    assert waiting.stats().leased == 0

    # A task that is deferred waits on with the next triggerer.
    airflow.kill(first)
    published = set(queue.publish(["a"]).sequences)
    second = airflow.start("triggerer")
    airflow.until(lambda: waiting.stats().acked == 1)
    airflow.until(lambda: watcher.stats().acked == 1)
    reader = Queue.open(tmp_path / "published").group().ensure()
    airflow.until(lambda: reader.stats().ready >= 2)
    lease = reader.lease(max_messages=2)
    assert [(m.text, m.key) for m in lease.messages] == [("by publish", None), ("b", "k")]

    # One that was frozen wakes up, and finds that another has its watchers.
    published |= set(queue.publish([f"b{n}" for n in range(20)]).sequences)
    airflow.until(lambda: watcher.stats().leased)
    airflow.freeze(second)
    held = watcher.stats().leased
    airflow.start("triggerer")
    published |= set(queue.publish(["c"]).sequences)
    airflow.until(lambda: watcher.stats().acked == len(published))
    airflow.thaw(second)
    published |= set(queue.publish(["d"]).sequences)
    airflow.until(lambda: watcher.stats().acked == len(published))
    events = airflow.events()
    assert set(events) == published
    print(f"held when frozen: {held}, events: {events.total()} of {len(events)} messages")

    # A queue may be created after its watcher, and a store be out of reach.
    missing = Queue.create(tmp_path / "missing")
    late = set(missing.publish(["late"]).sequences)
    airflow.until(lambda: late <= set(airflow.events()))
    airflow.until(lambda: "the queue cannot be read, trying again" in airflow.logs(1_000_000))
    assert airflow.files_with(SECRET) == []
    assert airflow.files_with("the queue cannot be read"), "the logs are among these files"
