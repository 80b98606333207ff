"""The jobs as people start them: as programs of their own, under spark-submit and under plain
Python.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.handles import lease, take, until
from support.harness import make_queue
from support.having import having
from support.limits import Limits
from support.tables import group_ledger_of

from spark_mq import Queue
from spark_mq.spark import for_each_batch
from spark_mq.spark.options import READ_OPTIONS

ROOT = Path(__file__).resolve().parents[2]
JOBS = ROOT / "jobs"
PLAIN = (sys.executable, JOBS / "worker.py")
PATIENCE = 240.0
"""Seconds until something counts as never coming: starting Spark on a busy machine takes a
minute.
"""

HANDLER = """
import pathlib, time

def process(batch, lease):
    home = pathlib.Path(__file__).parent
    with (home / "begun").open("a") as begun:
        begun.write(lease.lease_id + chr(10))
    time.sleep(3)
    with (home / "ended").open("a") as ended:
        ended.write(f"{batch.count()}" + chr(10))
"""
REJECTING = """
def process(batch, lease):
    plan = batch._jdf.queryExecution().executedPlan().toString()
    print("read by Spark:", "FileScan parquet" in plan)
    lease.reject(batch.where("key = '2'"), error="no such customer")
"""
AVAILABLE = ("--trigger", "available-now")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a program in tmp_path; what is left of it goes at the end, with all its processes."""
    running: list[subprocess.Popen[str]] = []

    def program(*command: object, **env: str) -> subprocess.Popen[str]:
        own = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), sys.executable)
        own["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        process = subprocess.Popen(
            [str(c) for c in command],
            cwd=tmp_path, env={**os.environ, **own, **env}, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        running.append(process)
        return process

    yield program
    for process in running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return make_queue(tmp_path / "queue")


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """Return a job in this process, with its arguments on the command line."""
    monkeypatch.syspath_prepend(JOBS)

    def module(name: str, *arguments: str) -> ModuleType:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
        return importlib.import_module(name)

    return module


def submit(job: str) -> list[object]:
    return [
        Path(sys.executable).with_name("spark-submit"),
        "--properties-file", ROOT / "conf/spark-defaults.conf",
        "--conf", f"spark.driver.extraClassPath={ROOT / 'conf'}",
        "--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1", JOBS / f"{job}.py",
    ]  # fmt: skip


def worker_of(*queues: Queue, handler: str) -> list[object]:
    """The arguments of a worker of group g, whose checkpoint is beside its queues."""
    places = [word for queue in queues for word in ("--queue", queue.path)]
    beside = Path(queues[0].path).with_name("checkpoint")
    return [*places, "--group", "g", "--handler", f"{handler}:process", "--checkpoint", beside]


def ended(process: subprocess.Popen[str], *codes: int, within: float = PATIENCE) -> str:
    """What a program printed, both streams."""
    out, err = process.communicate(timeout=within)
    assert process.returncode in codes, out + err
    return out + err


def wait_for(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    def holds() -> object:
        met = condition()
        assert met or process.poll() is None, "".join(process.communicate())
        return met

    until(holds, seconds=PATIENCE)


# -- before Spark starts: with no Java, it could not


@pytest.mark.parametrize("job", ["publish", "worker", "sweep"])
def test_help_shows_examples(start, job: str) -> None:
    reported = ended(start(sys.executable, JOBS / f"{job}.py", "--help", JAVA_HOME="/nowhere"), 0)
    assert "examples:" in reported
    assert "exit code:" in reported


WORKER = ("worker", "--checkpoint", "c", "--queue")
WRONG = """
sweep -> the following arguments are required: --queue
sweep --queue nowhere -> there is no queue at
sweep --queue queue --every soon -> argument --every: 'soon' is not a duration: give seconds, or 30s
sweep --queue queue --storage-option x -> 'x' is not NAME=VALUE
publish --queue nowhere a.jsonl -> nowhere: --create creates it
publish --queue queue --lanes 8 a.jsonl -> --lanes needs --create
publish --queue q --create --lanes 5000 a -> lanes=5000 is not valid: give a whole number from 0 to
publish --queue queue --format xml a -> invalid choice: 'xml'
publish --queue queue a.jsonl day.csv -> INPUT day.csv is a csv file by its name: give --format csv
WORKER queue --handler nothing -> --handler nothing: give MODULE:FUNCTION
WORKER queue --handler no:f -> the module cannot be imported (No module named 'no')
WORKER queue --handler handler:nope -> has no function 'nope'
WORKER queue --handler handler.py:one -> one(batch) cannot be called as one(batch, lease)
WORKER queue --handler gone.py:f -> there is no file gone.py
TWO --trigger now -> 'now' is neither default nor available-now nor a duration like '5 seconds'
TWO --visibility-timeout soon -> --visibility-timeout: 'soon' is not a duration
TWO --starting-position x -> startingPosition='x' is not valid
WORKER nowhere --handler handler:two -> there is no queue at
""".replace("TWO", "WORKER queue --handler handler:two").replace("WORKER", " ".join(WORKER))


@pytest.mark.parametrize("line", WRONG.strip().splitlines())
def test_wrong_arguments_are_reported_in_one_line(
    load: Callable[..., ModuleType], queue: Queue, line: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(Path(queue.path).parent)
    Path("handler.py").write_text("def one(batch): ...\ndef two(batch, lease): ...\n")
    monkeypatch.delitem(sys.modules, "handler", raising=False)
    monkeypatch.setattr("spark_mq.spark.session", lambda *_, **__: pytest.fail("Spark starts"))
    arguments, _, words = line.partition(" -> ")
    job, *options = arguments.split()
    main = load(job, *options).main
    with pytest.raises(SystemExit) as caught:
        importlib.import_module("_common").run(main)
    reported = capsys.readouterr().err
    assert words in reported
    assert (caught.value.code, reported.count("\n")) == (2, 1)
    assert reported.startswith(f"{job}.py: error: ")


@pytest.mark.parametrize(
    ("given", "mode"),
    [([], None), (["--ack", "manual"], "manual"), (["--ack", "on_receive"], None)],
)
def test_the_stream_of_a_worker_that_acks_by_itself_acks_nothing(
    load: Callable[..., ModuleType], given: list[str], mode: str | None
) -> None:
    worker = load(*WORKER, "q", "--handler", "m:f", *given)
    assert worker.source_options(worker.arguments()).get("ack") == mode


def test_the_worker_has_each_option_of_the_source_and_of_for_each_batch(
    load: Callable[..., ModuleType],
) -> None:
    worker = load("worker")
    # The others are --queue, --group and --ack, and outcomes is for spark.read.
    assert set(READ_OPTIONS) - set(worker.SOURCE) == {"path", "consumerGroup", "ack", "outcomes"}
    parameters = inspect.signature(for_each_batch).parameters
    assert set(parameters) - set(worker.BATCH) == {"group", "process", "more_groups"}
    flags = {action.dest for action in worker.options()._actions}
    assert {*worker.SOURCE, *worker.BATCH} <= flags


# -- with Spark


@pytest.fixture
def job(
    spark: Any, load: Callable[..., ModuleType], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[str, str]]:
    """Run a job on the queue in this session. Return what it printed: results, and the rest."""

    def run(name: str, *arguments: object) -> tuple[str, str]:
        load(name, "--queue", str(tmp_path / "queue"), *map(str, arguments)).main()
        return capsys.readouterr()

    return run


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """Three lines to publish, beside a handler that rejects the second one."""
    (tmp_path / "rejecting.py").write_text(REJECTING)
    path = tmp_path / "in.jsonl"
    path.write_text('{"no": 1}\n{"no": 2}\n{"no": 3}\n')
    return path


def rejecting(lines: Path) -> list[object]:
    handler, checkpoint = lines.with_name("rejecting.py"), lines.with_name("checkpoint")
    return ["--group", "g", "--handler", f"{handler}:process", "--checkpoint", checkpoint]


@pytest.mark.slow
def test_the_jobs_publish_process_and_sweep_in_a_session_that_is_there(
    job: Callable[..., tuple[str, str]], lines: Path, limits: Limits
) -> None:
    limits(plan_bytes=1)  # Spark also reads the few bytes of a test
    said, warned = job("publish", "--create", "--key-column", "no", lines)
    assert "published 3 messages to" in said
    assert "warning" not in warned
    said, _ = job("worker", *rejecting(lines), *AVAILABLE)
    assert "read by Spark: True" in said
    queue = Queue.open(lines.with_name("queue"))
    assert queue.group("g").stats() == having(acked=2, dead=1)
    assert "routed: 1" in job("sweep")[0]
    (letter,) = lease(queue.dead_letters).messages
    assert (letter.key, letter.headers["spark_mq.error"]) == ("2", "no such customer")


@pytest.mark.slow
def test_a_worker_rejects_values_that_do_not_fit_and_sweeps(
    job: Callable[..., tuple[str, str]], lines: Path
) -> None:
    columns = ["--key-column", "no", "--message-id-column", "nope"]
    _, said = job("publish", "--create", *columns, lines)
    assert "--message-id-column nope is null in all rows" in said
    assert "--key-column" not in said
    strict = ("--value-schema", "no STRING", "--invalid", "reject", "--sweep", "1m")
    job("worker", *rejecting(lines), *AVAILABLE, *strict)
    queue = Queue.open(lines.with_name("queue"))
    assert queue.group("g").stats().dead_lettered == 3, "it has swept"


def test_the_publish_job_creates_a_queue_and_publishes_lines_with_all_that_columns_say(
    job: Callable[..., tuple[str, str]], lines: Path
) -> None:
    given = [
        "--create", "--lanes", "8", "--key-column", "user.id", "--priority-column", "urgent",
        "--message-id-column", "no", "--header", "kind=kind", "--header", "source:=a test",
    ]  # fmt: skip
    plain = '{"no": "a1", "user": {"id": 7}, "kind": "buy"}'
    urgent = '{"no": "a2",   "n": 1.50, "urgent": 9}'
    lines.write_text(f"{plain}\n\n{urgent}")
    assert "published 2 messages to" in job("publish", *given, lines)[0]
    queue = Queue.open(lines.with_name("queue"))
    assert queue.settings.lanes == 8
    first, second = sorted(lease(queue).messages, key=lambda message: message.priority)
    assert (first.text, first.key, first.message_id) == (plain, "7", "a1")
    assert first.headers == {"kind": "buy", "source": "a test"}
    assert (second.text, second.key, second.message_id) == (urgent, None, "a2")
    assert second == having(headers={"source": "a test"}, priority=9)
    lines.write_text('{"n": 3, "urgent": "very"}\n')
    with pytest.raises(Exception, match="CAST_INVALID_INPUT"):
        importlib.import_module("publish").main()
    assert queue.stats()["published"] == 2


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "ends"),
    [
        (["nowhere*.jsonl"], (2, "INPUT nowhere*.jsonl: there is no such file or directory")),
        (
            ["--value-column", "body", "in.jsonl"],
            (1, '--value-column body: this line lacks it: {"text": "b"}'),
        ),
        (["--format", "csv", "--value-column", "body", "in.csv"], (2, "`body` cannot be resolved")),
    ],
    ids=["a missing input", "a field that a line lacks", "a column that is not there"],
)
def test_wrong_inputs_are_reported_and_nothing_is_published(
    start, queue: Queue, tmp_path: Path, arguments: list[str], ends: tuple[int, str]
) -> None:
    code, reported = ends
    (tmp_path / "in.jsonl").write_text('{"body": "a"}\n{"text": "b"}\n')
    (tmp_path / "in.csv").write_text("id\n1\n")
    publish = start(sys.executable, JOBS / "publish.py", "--queue", queue.path, *arguments)
    said = ended(publish, code)
    (line,) = [line for line in said.splitlines() if "publish.py: error: " in line]
    assert reported in line
    if reported.startswith("INPUT"):
        assert "\tat " not in said, "no stack traces of Spark's"
    assert queue.stats()["published"] == 0


@pytest.mark.slow
def test_publish_csv_and_parquet(
    job: Callable[..., tuple[str, str]], queue: Queue, tmp_path: Path
) -> None:
    (tmp_path / "in.csv").write_text("id,at,note\n1,NA,x\n2,5,NA\n3,6,z\n")
    rows = pa.table({"id": [4, 5, 6], "body": [b"\x00a", b"\x00b", b"\x00c"]})
    pq.write_table(rows, tmp_path / "in.parquet")
    csv = "--format csv --option nullValue=NA --key-column id"
    parquet = "--format parquet --value-column body --header id=id"
    job("publish", *csv.split(), tmp_path / "in.csv")
    job("publish", *parquet.split(), tmp_path / "in.parquet")
    messages = lease(queue).messages
    assert [json.loads(m.value) for m in messages[:3]] == [
        {"id": "1", "note": "x"}, {"id": "2", "at": "5"}, {"id": "3", "at": "6", "note": "z"}
    ]  # fmt: skip
    assert [m.key for m in messages] == ["1", "2", "3", None, None, None]
    assert [(m.value, m.headers) for m in messages[3:]] == [
        (body, {"id": n}) for body, n in zip(rows["body"].to_pylist(), "456", strict=True)
    ]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["spark-submit", "python"])
def test_sigterm_lets_the_batch_in_hand_finish(
    start, queue: Queue, tmp_path: Path, launcher: str
) -> None:
    (tmp_path / "slowly.py").write_text(HANDLER)
    queue.publish([f"m{n}" for n in range(25)])
    command = submit("worker") if launcher == "spark-submit" else PLAIN
    given = worker_of(queue, handler="slowly")
    worker = start(*command, *given, "--max-messages", "10", "--worker-id", "w1")
    wait_for((tmp_path / "begun").exists, worker)
    worker.send_signal(signal.SIGTERM)
    reported = ended(worker, 143 if launcher == "spark-submit" else 0, within=45)
    assert "worker w1 has ended after SIGTERM" in reported
    assert (tmp_path / "begun").read_text().count("\n") == 1
    assert (tmp_path / "ended").read_text() == "10\n"
    assert (tmp_path / "checkpoint" / "commits" / "0").exists()

    assert queue.group("g").stats() == having(acked=10, leased=0, ready=15, delayed=0)
    left = lease(queue, 100, "g").messages
    assert [(m.text, m.delivery_count) for m in left] == [(f"m{n}", 1) for n in range(10, 25)]


@pytest.mark.spark
@pytest.mark.slow
def test_a_batch_that_outlasts_the_grace_keeps_its_count_and_is_left_to_expire(
    start, queue: Queue, tmp_path: Path
) -> None:
    other = make_queue(tmp_path / "other")
    (tmp_path / "hung.py").write_text(HANDLER.replace("time.sleep(3)", "time.sleep(600)"))
    queue.publish(["a", "b"])
    other.publish(["c"])
    given = worker_of(queue, other, handler="hung")
    worker = start(*PLAIN, *given, "--shutdown-timeout", "1s")
    wait_for((tmp_path / "begun").exists, worker)
    worker.send_signal(signal.SIGTERM)
    reported = ended(worker, 143, within=45)
    assert "runs again" in reported
    assert not (tmp_path / "ended").exists()
    for where, messages in ((queue, 2), (other, 1)):
        (held,) = group_ledger_of(where.group("g")).current()
        assert held == having(state="leased", message_count=messages, delivery_count=1)


@pytest.mark.spark
@pytest.mark.slow
def test_sweep_again_and_again_until_sigterm(start, queue: Queue, tmp_path: Path) -> None:
    queue.publish(["good", "bad"])
    held = lease(queue, group="g")
    held.reject([held.messages[1].sequence], error="bad")
    sweep = start(*submit("sweep"), "--queue", queue.path, "--every", "1")
    wait_for(lambda: queue.group("g").ensure().stats().dead_lettered == 1, sweep)
    time.sleep(2)
    sweep.send_signal(signal.SIGTERM)
    reported = ended(sweep, 143, within=45)
    reports = [line for line in reported.splitlines() if line.startswith(f"swept {queue.path}: ")]
    assert len(reports) > 1
    assert "routed: 1" in reports[0]
    assert take(queue.dead_letters.group()) == ["bad"]
