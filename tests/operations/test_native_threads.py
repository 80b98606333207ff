"""No call leaves a thread of pyarrow, which may free a Python buffer while the process ends.

Such a thread aborted one of a hundred processes on a busy machine: "terminate called without an
active exception".
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CALLS = """
import json, os, sys, threading
import pyarrow
from spark_mq import Message, Queue

seen, started = set(), []

def look(call):
    python = {thread.native_id for thread in threading.enumerate()}
    new = {int(name) for name in os.listdir("/proc/self/task")} - python - seen
    seen.update(new)
    if new:
        started.append(call)

queue = Queue.create(sys.argv[1], durable=False)
look("begin")  # the threads of pyarrow's memory pool and of numpy are there now
for _ in range(3):
    queue.publish([Message("text", key=str(n), message_id=str(n)) for n in range(1000)])
look("publish")
group = queue.group("billing")
lease = group.lease(max_messages=2000)
messages = list(lease.messages)
look("lease")
lease.ack([messages[0].sequence])
lease.nack([messages[1].sequence], error="again")
lease.reject([message.sequence for message in messages[2:9]], error="bad")
look("settle")
queue.sweep()
look("sweep")
for call in (queue.peek, queue.health, queue.describe, queue.list_dead_letters, queue.changes,
             queue.throughput, queue.newest_dead_letters, queue.failures, group.workers,
             group.last_errors, group.most_failing):
    call()
    look(call.__name__)
queue.trace(messages[2].sequence)
look("trace")
queue.find(message_id="7")
look("find")
queue.finished("billing")
look("finished")
queue.redrive()  # without SQL: DuckDB reads Arrow tables by threads of pyarrow
look("redrive")
Queue.open(queue.path).sweep()
look("second sweep")
print(json.dumps(started))
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are listed on Linux")
def test_no_call_leaves_a_thread_of_pyarrow(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CALLS, str(tmp_path / "orders")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2_000:]
    assert json.loads(done.stdout) in ([], ["begin"])
