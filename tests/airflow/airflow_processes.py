"""A scheduler, a triggerer, a DAG processor and an API server of Airflow, as processes."""

from __future__ import annotations

import collections
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from support.handles import until
from support.servers import free_port

from spark_mq import Queue

__all__ = ["Airflow"]

AIRFLOW = Path(sys.executable).with_name("airflow")


class Airflow:
    """Airflow's processes over a database in a folder."""

    def __init__(self, home: Path, queue: Queue) -> None:
        self.home = home
        self.port = port = free_port()
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
            "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "5",
            "AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK": "False",
        }
        self.running: list[subprocess.Popen[bytes]] = []
        (home / "dags").mkdir(parents=True)

    def run(self, *words: str) -> str:
        """Run a command to its end, and return what it writes."""
        with (self.home / "commands.log").open("ab") as log:
            done = subprocess.run(
                [AIRFLOW, *words],
                env=self.env, stdout=subprocess.PIPE, stderr=log, check=True, timeout=300,
            )  # fmt: skip
        return done.stdout.decode()

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        if words[0] in ("scheduler", "triggerer"):
            words = (*words, "--skip-serve-logs")  # which would listen on all addresses
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

    def freeze(self, process: subprocess.Popen[bytes]) -> None:
        os.killpg(process.pid, signal.SIGSTOP)

    def thaw(self, process: subprocess.Popen[bytes]) -> None:
        os.killpg(process.pid, signal.SIGCONT)

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

    def states(self, dag: str) -> set[str]:
        """The states of the first task, `wait`, of all runs of a DAG."""
        asked = f"select state from task_instance where dag_id = '{dag}' and task_id = 'wait'"
        return {state for (state,) in self.rows(asked)}

    def files_with(self, text: str) -> list[str]:
        """Where a text is in any file of Airflow's: logs, database and the rest."""
        files = [path for path in self.home.rglob("*") if path.is_file()]
        return [str(path) for path in files if text.encode() in path.read_bytes()]

    def logs(self, length: int = 3_000) -> str:
        return "\n".join(
            f"== {log.name}\n{log.read_text(errors='replace')[-length:]}"
            for log in self.home.glob("*.log")
        )

    __str__ = logs

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition. If it never comes true, the logs are shown."""
        until(condition, self)
