"""A scheduler, a triggerer, a DAG processor and an API server of Airflow, as processes."""

from __future__ import annotations

import collections
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_mq import Queue

ROOT = Path(__file__).parents[2]
AIRFLOW = Path(sys.executable).with_name("airflow")


class Airflow:
    """Airflow's processes over a database in a folder."""

    def __init__(self, home: Path, queue: Queue) -> None:
        self.home = home
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = port = found.getsockname()[1]
        self.env = {
            **os.environ,
            "ORDERS_QUEUE": queue.path,
            "AIRFLOW_HOME": str(home),
            "PATH": f"{AIRFLOW.parent}:{os.environ['PATH']}",
            "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__PARALLELISM": "2",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API_AUTH__JWT_SECRET": "of this test alone, of 64 bytes or more " * 2,
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": "0",
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": "0",
            "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "5",
            "AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK": "False",
        }
        self.running: list[subprocess.Popen[bytes]] = []
        (home / "dags").mkdir(parents=True)

    def run(self, *words: str) -> None:
        log = self.home / "migrate.log"
        with log.open("wb") as out:
            subprocess.run(
                [AIRFLOW, *words], env=self.env, stdout=out, stderr=out, check=True, timeout=300
            )

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        with (self.home / f"{words[0]}.log").open("ab") as out:
            process = subprocess.Popen(
                [AIRFLOW, *words], env=self.env, stdout=out, stderr=out, start_new_session=True
            )
        self.running.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a process and those that it has started."""
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self.running.remove(process)

    def answers(self) -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self.port)) == 0

    def rows(self, query: str) -> list[tuple]:
        place = f"file:{self.home / 'airflow.db'}?mode=ro"
        with sqlite3.connect(place, uri=True, timeout=30) as connection:
            return connection.execute(query).fetchall()

    def events(self) -> collections.Counter[int]:
        """How many asset events each message has."""
        extras = [json.loads(extra) for (extra,) in self.rows("select extra from asset_event")]
        return collections.Counter(extra["payload"]["sequence"] for extra in extras)

    def in_successful_runs(self) -> set[int]:
        """The messages whose events have been part of a run that succeeded."""
        found = self.rows(
            "select e.extra from asset_event e join dagrun_asset_event d on d.event_id = e.id "
            "join dag_run r on r.id = d.dag_run_id where r.state = 'success'"
        )
        return {json.loads(extra)["payload"]["sequence"] for (extra,) in found}

    def logs(self) -> str:
        return "\n".join(
            f"== {log.name}\n{log.read_text(errors='replace')[-3_000:]}"
            for log in self.home.glob("*.log")
        )

    def until(self, holds: Callable[[], object], seconds: float = 180) -> None:
        """Wait for a condition."""
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, self.logs()
            time.sleep(0.05)


@pytest.fixture
def airflow(tmp_path: Path, queue: Queue) -> Iterator[Airflow]:
    made = Airflow(tmp_path / "home", queue)
    try:
        shutil.copy(ROOT / "examples" / "airflow" / "orders.py", made.home / "dags")
        made.run("db", "migrate")
        made.start("api-server")
        made.until(made.answers)  # a task that starts before would fail
        made.start("scheduler")
        made.start("dag-processor")
        yield made
    finally:
        for process in list(made.running):
            made.kill(process)


def test_no_message_is_lost_when_the_triggerer_is_killed(airflow: Airflow, queue: Queue) -> None:
    triggerer = airflow.start("triggerer")
    first = set(queue.publish([f"order {n}" for n in range(5)]).sequences)
    watcher, shipping = queue.group("watcher"), queue.group("shipping")
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
    # Airflow may start no run for the last events of a burst before the next event comes.
    third = set(queue.publish(["one more"]).sequences)
    airflow.until(lambda: airflow.in_successful_runs() >= first | second | third)
    airflow.until(lambda: shipping.exists() and shipping.stats().acked >= 1)
