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
from support.having import having
from support.limits import Limits
from support.tables import group_ledger_of

from spark_mq import Queue
from spark_mq.spark import for_each_batch
from spark_mq.spark.options import READ_OPTIONS

ROOT = Path(__file__).resolve().parents[2]
JOBS = ROOT / "jobs"
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

IN_ONE_SESSION = """
import sys
sys.path.insert(0, {jobs!r})
import _common, publish

def main():
    for arguments in {runs!r}:
        sys.argv = ["publish.py", *arguments]
        publish.main()

_common.run(main)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a program in tmp_path; what is left of it goes at the end, with all its processes."""
    running: list[subprocess.Popen[str]] = []

    def program(*command: object, **env: str) -> subprocess.Popen[str]:
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        spark = {
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": paths,
        }
        process = subprocess.Popen(
            [str(c) for c in command],
            cwd=tmp_path, env={**os.environ, **spark, **env}, text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
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
    return Queue.create(
        tmp_path / "queue", visibility_timeout="10m", clock_skew="0s", retry_delay="0s"
    )


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """Return a job in this process, with its arguments on the command line."""
    monkeypatch.syspath_prepend(JOBS)

    def module(name: str, *arguments: str) -> ModuleType:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
        return importlib.import_module(name)

    return module


@pytest.fixture
def refusal(
    load: Callable[..., ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., str]:
    """Run a job in tmp_path that refuses its arguments. Return what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "handler", raising=False)
    monkeypatch.setattr("spark_mq.spark.session", lambda *_, **__: pytest.fail("Spark starts"))

    def run(*arguments: str) -> str:
        job = load(*arguments)
        with pytest.raises(SystemExit) as caught:
            importlib.import_module("_common").run(job.main)
        assert caught.value.code == 2
        return capsys.readouterr().err

    return run


def submit(job: str) -> list[object]:
    settings = [
        f"spark.driver.extraClassPath={ROOT / 'conf'}",
        "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1",
    ]
    conf = [word for setting in settings for word in ("--conf", setting)]
    return [
        Path(sys.executable).with_name("spark-submit"),
        "--properties-file",
        ROOT / "conf/spark-defaults.conf",
        *conf,
        JOBS / f"{job}.py",
    ]


def ended(process: subprocess.Popen[str], *codes: int, within: float = PATIENCE) -> str:
    """What a program printed, both streams."""
    out, err = process.communicate(timeout=within)
    assert process.returncode in codes, out + err
    return out + err


def wait_for(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, "".join(process.communicate())
        assert time.monotonic() < deadline
        time.sleep(0.05)


# -- before Spark starts: with no Java, it could not


@pytest.mark.parametrize("job", ["publish", "worker", "sweep"])
def test_help_shows_examples(start, job: str) -> None:
    reported = ended(start(sys.executable, JOBS / f"{job}.py", "--help", JAVA_HOME="/nowhere"), 0)
    assert "examples:" in reported
    assert "exit code:" in reported


WORKER = ("worker", "--checkpoint", "c", "--queue")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("sweep",), "the following arguments are required: --queue"),
        (("sweep", "--queue", "nowhere"), "there is no queue at"),
        (
            ("sweep", "--queue", "queue", "--every", "soon"),
            "argument --every: 'soon' is not a duration: give seconds, or 30s",
        ),
        (("sweep", "--queue", "queue", "--storage-option", "x"), "'x' is not NAME=VALUE"),
        (("publish", "--queue", "nowhere", "a.jsonl"), "nowhere: --create creates it"),
        (("publish", "--queue", "queue", "--lanes", "8", "a.jsonl"), "--lanes needs --create"),
        (
            ("publish", "--queue", "new", "--create", "--lanes", "5000", "a.jsonl"),
            "lanes=5000 is not valid: give a whole number from 0 to 1,024",
        ),
        (("publish", "--queue", "queue", "--format", "xml", "a"), "invalid choice: 'xml'"),
        (
            ("publish", "--queue", "queue", "a.jsonl", "day.csv"),
            "INPUT day.csv is a csv file by its name: give --format csv",
        ),
        (("publish", "--queue", "queue", "export/x.parquet"), "give --format parquet"),
        ((*WORKER, "queue", "--handler", "nothing"), "--handler nothing: give MODULE:FUNCTION"),
        (
            (*WORKER, "queue", "--handler", "not_there:f"),
            "the module cannot be imported (No module named 'not_there')",
        ),
        ((*WORKER, "queue", "--handler", "handler:nope"), "has no function 'nope'"),
        (
            (*WORKER, "queue", "--handler", "handler.py:one"),
            "one(batch) cannot be called as one(batch, lease)",
        ),
        ((*WORKER, "queue", "--handler", "gone.py:f"), "there is no file gone.py"),
        (
            (*WORKER, "queue", "--handler", "handler:two", "--trigger", "now"),
            "'now' is neither default nor available-now nor a duration like '5 seconds'",
        ),
        (
            (*WORKER, "queue", "--handler", "handler:two", "--visibility-timeout", "soon"),
            "--visibility-timeout: 'soon' is not a duration",
        ),
        (
            (*WORKER, "queue", "--handler", "handler:two", "--max-messages", "0"),
            "maxMessagesPerTrigger='0' is not valid",
        ),
        (
            (*WORKER, "queue", "--handler", "handler:two", "--starting-position", "x"),
            "startingPosition='x' is not valid",
        ),
        ((*WORKER, "nowhere", "--handler", "handler:two"), "there is no queue at"),
    ],
)
def test_wrong_arguments_are_reported_in_one_line(
    refusal: Callable[..., str],
    queue: Queue,
    tmp_path: Path,
    arguments: tuple[str, ...],
    words: str,
) -> None:
    (tmp_path / "handler.py").write_text("def one(batch): ...\ndef two(batch, lease): ...\n")
    reported = refusal(*arguments)
    assert words in reported
    assert reported.startswith(f"{arguments[0]}.py: error: ")
    assert reported.count("\n") == 1


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


AVAILABLE = ("--trigger", "available-now")
REJECTING = """
def process(batch, lease):
    plan = batch._jdf.queryExecution().executedPlan().toString()
    print("read by Spark:", "FileScan parquet" in plan)
    lease.reject(batch.where("key = '2'"), error="no such customer")
"""


@pytest.fixture
def job(
    spark: Any, load: Callable[..., ModuleType], capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[str, str]]:
    """Run a job on a queue in this session. Return what it printed: results, and the rest."""

    def run(name: str, queue: Path, *arguments: str) -> tuple[str, str]:
        load(name, "--queue", str(queue), *arguments).main()
        found = capsys.readouterr()
        return found.out, found.err

    return run


@pytest.mark.slow
def test_the_jobs_publish_process_and_sweep_in_a_session_that_is_there(
    job: Callable[..., tuple[str, str]], tmp_path: Path, limits: Limits
) -> None:
    limits(plan_bytes=1)  # Spark also reads the few bytes of a test
    (tmp_path / "in.jsonl").write_text('{"no": 1}\n{"no": 2}\n{"no": 3}\n')
    (tmp_path / "rejecting.py").write_text(REJECTING)

    lines, path = str(tmp_path / "in.jsonl"), tmp_path / "queue"
    said, warned = job("publish", path, "--create", "--key-column", "no", lines)
    assert "published 3 messages to" in said
    assert "warning" not in warned
    worker = ("--group", "g", "--handler", f"{tmp_path}/rejecting.py:process")
    said, _ = job("worker", path, *worker, "--checkpoint", str(tmp_path / "c"), *AVAILABLE)
    assert "read by Spark: True" in said
    queue = Queue.open(path)
    assert (queue.group("g").stats().acked, queue.group("g").stats().dead) == (2, 1)
    assert "routed: 1" in job("sweep", path)[0]
    (letter,) = queue.dead_letters.group("look").lease("w", max_messages=9).messages
    assert (letter.key, letter.headers["spark_mq.error"]) == ("2", "no such customer")


@pytest.mark.slow
def test_a_worker_rejects_values_that_do_not_fit_and_sweeps(
    job: Callable[..., tuple[str, str]], tmp_path: Path
) -> None:
    (tmp_path / "in.jsonl").write_text('{"no": 1}\n{"no": 2}\n{"no": 3}\n')
    (tmp_path / "rejecting.py").write_text(REJECTING)
    path = tmp_path / "queue"
    columns = ["--key-column", "no", "--message-id-column", "nope"]
    _, said = job("publish", path, "--create", *columns, str(tmp_path / "in.jsonl"))
    assert "--message-id-column nope is null in all rows" in said
    assert "--key-column" not in said
    worker = ("--group", "g", "--handler", f"{tmp_path}/rejecting.py:process")
    strict = ("--value-schema", "no STRING", "--invalid", "reject", "--sweep", "1m")
    job("worker", path, *worker, "--checkpoint", str(tmp_path / "c"), *AVAILABLE, *strict)
    assert Queue.open(path).group("g").stats().dead_lettered == 3, "it has swept"


def test_the_publish_job_creates_lanes_and_publishes_priorities(
    job: Callable[..., tuple[str, str]], tmp_path: Path
) -> None:
    path = tmp_path / "queue"
    (tmp_path / "in.jsonl").write_text('{"n": 1, "k": "a"}\n{"n": 2, "k": "b", "urgent": 9}\n')
    given = ["--create", "--lanes", "8", "--key-column", "k", "--priority-column", "urgent"]
    said, _ = job("publish", path, *given, str(tmp_path / "in.jsonl"))
    assert "published 2 messages" in said
    queue = Queue.open(path)
    assert queue.settings.lanes == 8
    group = queue.group("g")
    group.configure(order="key")
    lease = group.lease("w", max_messages=1)
    assert [m.key for m in lease.messages] == ["b"]
    (tmp_path / "in.jsonl").write_text('{"n": 3, "urgent": "very"}\n')
    with pytest.raises(Exception, match="CAST_INVALID_INPUT"):
        importlib.import_module("publish").main()
    assert queue.stats()["published"] == 2


@pytest.mark.spark
@pytest.mark.slow
def test_publish_json_lines(start, tmp_path: Path) -> None:
    lines = ['{"no": "a1", "user": {"id": 7}, "kind": "buy"}', "", '{"no": "a2",   "n": 1.50}']
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    run = start(
        *submit("publish"), "--queue", tmp_path / "queue", "--create", "--key-column", "user.id",
        "--message-id-column", "no",
        "--header", "kind=kind", "--header", "source:=a test", "in.jsonl"
    )  # fmt: skip
    assert "published 2 messages to" in ended(run, 0)
    first, second = Queue.open(tmp_path / "queue").group("g").lease("w", max_messages=9).messages
    assert (first.value.decode(), second.value.decode()) == (lines[0], lines[2])
    assert first == having(key="7", message_id="a1", headers={"kind": "buy", "source": "a test"})
    assert (second.key, second.message_id, second.headers) == (None, "a2", {"source": "a test"})


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
    said = ended(
        start(sys.executable, JOBS / "publish.py", "--queue", queue.path, *arguments), code
    )
    (line,) = [line for line in said.splitlines() if "publish.py: error: " in line]
    assert reported in line
    if reported.startswith("INPUT"):
        assert "\tat " not in said, "no stack traces of Spark's"
    assert queue.stats()["published"] == 0


@pytest.mark.spark
@pytest.mark.slow
def test_publish_csv_and_parquet(start, queue: Queue, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id,at,note\n1,NA,x\n2,5,NA\n3,6,z\n")
    pq.write_table(
        pa.table({"id": [4, 5, 6], "body": [b"\x00a", b"\x00b", b"\x00c"]}), tmp_path / "in.parquet"
    )
    csv = "--format csv --option nullValue=NA --key-column id in.csv"
    parquet = "--format parquet --value-column body --header id=id in.parquet"
    runs = [["--queue", queue.path, *words.split()] for words in (csv, parquet)]
    program = IN_ONE_SESSION.format(jobs=str(JOBS), runs=runs)
    ended(start(sys.executable, "-c", program), 0)
    messages = queue.group("other").lease("w", max_messages=9).messages
    assert [json.loads(m.value) for m in messages[:3]] == [
        {"id": "1", "note": "x"},
        {"id": "2", "at": "5"},
        {"id": "3", "at": "6", "note": "z"},
    ]
    assert [m.key for m in messages] == ["1", "2", "3", None, None, None]
    assert [(m.value, m.headers) for m in messages[3:]] == [
        (b"\x00a", {"id": "4"}),
        (b"\x00b", {"id": "5"}),
        (b"\x00c", {"id": "6"}),
    ]


@pytest.mark.spark
@pytest.mark.slow
def test_a_worker_goes_on_after_a_batch_of_which_it_rejected_all(
    start, queue: Queue, tmp_path: Path
) -> None:
    (tmp_path / "strict.py").write_text(
        """
def process(batch, lease):
    rows = batch.selectExpr("*", "CAST(value AS STRING) AS word").persist()
    lease.reject(rows.where("word = ''"), error="empty")
    lease.append(rows.where("word <> ''").selectExpr("word AS value"))
"""
    )
    sink = Queue.create(tmp_path / "sink")
    queue.group("g").configure(sink=sink.path)
    for texts in (["", ""], ["a", ""]):
        queue.publish(texts)
        worker = start(
            sys.executable, JOBS / "worker.py", "--queue", queue.path, "--group", "g",
            "--handler", "strict:process", "--checkpoint", tmp_path / "checkpoint",
            "--trigger", "available-now", "--on-error", "raise",
        )  # fmt: skip
        assert "LeaseLost" not in ended(worker, 0)
    stats = queue.group("g").stats()
    assert (stats.acked, stats.dead, stats.leased) == (1, 3, 0)
    assert [m.text for m in sink.group("look").lease("w", max_messages=9).messages] == ["a"]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["spark-submit", "python"])
def test_sigterm_lets_the_batch_in_hand_finish(
    start, queue: Queue, tmp_path: Path, launcher: str
) -> None:
    (tmp_path / "slowly.py").write_text(HANDLER)
    queue.publish([f"m{n}" for n in range(25)])
    command = (
        submit("worker") if launcher == "spark-submit" else [sys.executable, JOBS / "worker.py"]
    )
    worker = start(
        *command, "--queue", queue.path, "--group", "g", "--handler", "slowly:process",
        "--checkpoint", tmp_path / "checkpoint",
        "--max-messages", "10", "--worker-id", "w1"
    )  # fmt: skip
    wait_for((tmp_path / "begun").exists, worker)
    worker.send_signal(signal.SIGTERM)
    reported = ended(worker, 143 if launcher == "spark-submit" else 0, within=45)
    assert "worker w1 has ended after SIGTERM" in reported
    assert (tmp_path / "begun").read_text().count("\n") == 1
    assert (tmp_path / "ended").read_text() == "10\n"
    assert (tmp_path / "checkpoint" / "commits" / "0").exists()

    stats = queue.group("g").stats()
    assert (stats.acked, stats.leased, stats.ready, stats.delayed) == (10, 0, 15, 0)
    left = queue.group("g").lease("w2", max_messages=100).messages
    assert [(m.value, m.delivery_count) for m in left] == [
        (f"m{n}".encode(), 1) for n in range(10, 25)
    ]


@pytest.mark.spark
@pytest.mark.slow
def test_a_batch_that_outlasts_the_grace_keeps_its_count_and_is_left_to_expire(
    start, queue: Queue, tmp_path: Path
) -> None:
    other = Queue.create(tmp_path / "other", visibility_timeout="10m", clock_skew="0s")
    (tmp_path / "hung.py").write_text(HANDLER.replace("time.sleep(3)", "time.sleep(600)"))
    queue.publish(["a", "b"])
    other.publish(["c"])
    worker = start(
        sys.executable, JOBS / "worker.py", "--queue", queue.path, "--queue", other.path, "--group",
        "g", "--handler", "hung:process",
        "--checkpoint", tmp_path / "checkpoint", "--shutdown-timeout", "1s",
    )  # fmt: skip
    wait_for((tmp_path / "begun").exists, worker)
    worker.send_signal(signal.SIGTERM)
    reported = ended(worker, 143, within=45)
    assert "runs again" in reported
    assert not (tmp_path / "ended").exists()
    for where, messages in ((queue, 2), (other, 1)):
        (held,) = group_ledger_of(where.group("g")).current()
        assert (held.state, held.message_count, held.delivery_count) == ("leased", messages, 1)


WAITING = """
import pathlib, time

def process(batch, lease):
    home = pathlib.Path(__file__).parent
    (home / "begun").touch()
    while not (home / "go").exists():
        time.sleep(0.05)
    with (home / "ended").open("a") as ended:
        ended.write(f"{batch.count()}" + chr(10))
"""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("what", ["the JVM", "all of it"])
def test_a_frozen_worker_loses_its_lease_and_goes_on_with_what_is_left(
    start, queue: Queue, tmp_path: Path, what: str
) -> None:
    """The rest of a worker whose JVM is frozen extends the lease, but not for ever.

    What is frozen as a whole extends nothing.
    """
    (tmp_path / "waiting.py").write_text(WAITING)
    queue.publish(["a", "b", "c"])
    worker = start(
        sys.executable, JOBS / "worker.py", "--queue", queue.path, "--group", "g", "--handler",
        "waiting:process", "--checkpoint",
        tmp_path / "checkpoint", "--visibility-timeout", "1s", "--max-lease-duration", "3s",
    )  # fmt: skip
    wait_for((tmp_path / "begun").exists, worker)
    children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
    jvm = next(
        int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text().strip() == "java"
    )
    freeze = (
        (lambda number: os.kill(jvm, number))
        if what == "the JVM"
        else (lambda number: os.killpg(worker.pid, number))
    )
    freeze(signal.SIGSTOP)
    group, taken = queue.group("g"), []
    wait_for(lambda: taken.append(group.lease("other", max_messages=10)) or taken[-1], worker)
    assert [m.delivery_count for m in taken[-1].messages] == [2, 2, 2]
    (tmp_path / "go").touch()
    freeze(signal.SIGCONT)
    queue.publish(["d"])
    wait_for(lambda: group.ensure().stats().acked == 1, worker)
    assert taken[-1].ack().settled == 3
    worker.send_signal(signal.SIGTERM)
    ended(worker, 0)


@pytest.mark.spark
@pytest.mark.slow
def test_sweep_again_and_again_until_sigterm(start, queue: Queue, tmp_path: Path) -> None:
    queue.publish(["good", "bad"])
    lease = queue.group("g").lease("w", max_messages=2)
    lease.reject([lease.messages[1].sequence], error="bad")
    sweep = start(*submit("sweep"), "--queue", queue.path, "--every", "1")
    wait_for(lambda: queue.group("g").ensure().stats().dead_lettered == 1, sweep)
    time.sleep(2)
    sweep.send_signal(signal.SIGTERM)
    reported = ended(sweep, 143, within=45)
    reports = [line for line in reported.splitlines() if line.startswith(f"swept {queue.path}: ")]
    assert len(reports) > 1
    assert "routed: 1" in reports[0]
    assert [
        m.value for m in queue.dead_letters.group("look").lease("w", max_messages=9).messages
    ] == [b"bad"]
