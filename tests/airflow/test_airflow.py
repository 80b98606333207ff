"""DAGs of the example, with a triggerer that is killed."""

from __future__ import annotations

import pytest
from airflow_processes import Airflow

from spark_mq import Queue

DAGS = "examples/airflow/orders.py"


@pytest.mark.slow
def test_no_message_is_lost_when_the_triggerer_is_killed(airflow: Airflow, queue: Queue) -> None:
    triggerer = airflow.start("triggerer")
    first = set(queue.publish([f"order {n}" for n in range(5)]).sequences)
    watcher, shipping = queue.group("watcher"), queue.group("shipping")
    packing = queue.group("packing")
    airflow.until(lambda: watcher.exists() and watcher.stats().acked == len(first))
    assert first == set(airflow.events())

    # Between the lease and the ack.
    second = set(queue.publish([f"order {n}" for n in range(5, 55)]).sequences)
    airflow.until(lambda: watcher.stats().leased)
    airflow.kill(triggerer)
    acked = watcher.stats().acked
    assert acked < len(first | second), "the triggerer was killed too late"
    airflow.start("triggerer")

    airflow.until(lambda: watcher.stats().acked == len(first | second))
    events = airflow.events()
    assert set(events) == first | second
    print(f"acked before the kill: {acked}, events: {events.total()} of {len(events)} messages")
    # A run of the last events may be missing, but each message has had a run after it.
    airflow.until(lambda: packing.exists() and packing.stats().acked == len(first | second))
    # Airflow may start no run for the last events of a burst before the next event comes.
    third = set(queue.publish(["one more"]).sequences)
    airflow.until(lambda: airflow.in_successful_runs() >= first | second | third)
    airflow.until(lambda: shipping.exists() and shipping.stats().acked >= 1)
