"""Commands that run on, their signals, variables and completion. Some run as a process."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import threading
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.commands import Run, Terminal, parameters_of_commands, started
from support.handles import until
from support.stocked_queue import stocked_queue

from spark_mq import Message, Queue

HANDLER = """
import pathlib
import threading

from spark_mq import Reject

def one(message):
    if message.value == b"bad":
        raise Reject("bad")

async def one_async(message):
    one(message)

def slow(lease):
    pathlib.Path("started").touch()
    while not pathlib.Path("go_on").exists():
        threading.Event().wait(0.01)
"""


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    def message(name: str) -> Message:
        return Message(name, key=f"key-{name}", message_id=f"id-{name}")

    (tmp_path / "handlers.py").write_text(HANDLER)
    return stocked_queue(tmp_path / "orders", message, "bad")


def test_what_peek_prints_can_be_published_again(run: Run, queue: Queue, tmp_path: Path) -> None:
    queue.publish(Message(b"\xff\x00", headers={"kind": "odd"}))
    shown = run("peek", "-q", queue.path, "-o", "json").out
    Queue.create(tmp_path / "copy")
    run("publish", "-q", tmp_path / "copy", "--envelope", stdin=shown)
    copy = Queue.open(tmp_path / "copy").peek()
    original = queue.peek()
    assert [one.value for one in copy] == [one.value for one in original]
    assert [one.message_id for one in copy] == [one.message_id for one in original]
    assert copy[-1].headers == {"kind": "odd"}


def test_work_calls_a_function_for_each_message_until_all_are_settled(
    run: Run, queue: Queue
) -> None:
    words = ("work", "-q", queue.path, "-o", "json")
    how = {"one": ("--threads", 4), "one_async": ("--concurrency", 4)}
    for function, more in how.items():
        group = ("-g", f"new-{function}", "--until", "settled")
        row = run(*words, f"handlers:{function}", *group, *more).row
        assert (row["acked"], row["rejected"]) == (4, 1)


@pytest.mark.timeout(60)
def test_sigterm_ends_a_command_whose_thread_holds_the_lock_of_its_event(
    run: Run, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = threading.Event.wait

    def wait(event: threading.Event, timeout: float | None = None) -> bool:
        if timeout == 3600:
            with event._cond:  # type: ignore[attr-defined]
                signal.raise_signal(signal.SIGTERM)
        return real(event, timeout)

    monkeypatch.setattr(threading.Event, "wait", wait)
    run("sweep", "--every", "1h", "-q", queue.path)


@pytest.mark.slow
@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_ends_work_with_130_and_without_a_traceback(
    queue: Queue, tmp_path: Path, presses: int
) -> None:
    words = ("work", "handlers:slow", "--mode", "batch", "-q", queue.path, "-g", "new")
    process = started(*words, folder=tmp_path)
    until((tmp_path / "started").exists)
    process.send_signal(signal.SIGINT)
    assert "waiting up to 30 s for 1 handler: lease " in process.stderr.readline()
    if presses == 1:
        (tmp_path / "go_on").touch()
    else:
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert f"spark-mq: interrupted: leases=1 failed=0 settled={int(presses == 1)} " in err
    stats = queue.group("new").stats()
    assert (stats.acked, stats.ready, stats.leased) == ((1, 4, 0) if presses == 1 else (0, 5, 0))


def test_a_port_in_use_is_refused(run: Run, queue: Queue) -> None:
    pytest.importorskip("starlette")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = run("web", queue.path, "--port", port, expect=2).err
    assert error.startswith(f"spark-mq: error: cannot listen on 127.0.0.1:{port}: ")
    assert "--port" in error


def test_a_number_of_thousands_of_digits_is_no_sequence(run: Run, queue: Queue) -> None:
    refused = run("peek", "-f", "-q", queue.path, "--after", "9" * 5_000, expect=2)
    assert "--after" in refused.err


def environment_variables() -> dict[str, set[str]]:
    """The variables that options and arguments of each command read."""
    return {
        name: {parameter.envvar for parameter in parameters.values()} - {None}
        for name, parameters in parameters_of_commands().items()
    }


def test_each_variable_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/cli.md").read_text()
    table = page.partition("## Environment")[2].partition("## ")[0].partition("| --- |")[2]
    root = {"SPARK_MQ_DEBUG", "SPARK_MQ_VERBOSE", "SPARK_MQ_WEB_PASSWORD", "SPARK_MQ_WEB_TOKEN"}
    read = set().union(*environment_variables().values(), root)
    assert set(re.findall(r"SPARK_MQ_[A-Z_]+", table)) == read


def test_a_variable_is_never_an_argument_of_what_destroys(run: Run, queue: Queue) -> None:
    """`group drop -y` dropped the group of the worker whose variables were set."""
    asking = {name for name, known in parameters_of_commands().items() if "yes" in known}
    assert asking > {"queue drop", "queue purge", "group drop", "group resolve", "dlq discard"}
    for name in (*asking, "group seek"):
        assert not environment_variables()[name]
    variables = {
        "SPARK_MQ_" + name.upper().replace("-", "_"): value
        for name, value in (("queue", queue.path), ("group", "billing"), ("yes", "1"),
                            ("force", "1"), ("execute", "1"), ("where", "true"))
    }  # fmt: skip
    for words in ("group drop -y", "group drop audit -y", f"group drop audit -q {queue.path}",
                  "queue drop -y", "queue purge -y", "dlq discard -y",
                  "group seek latest"):  # fmt: skip
        run(*words.split(), expect=2, **variables)
    assert Queue.open(queue.path).groups() == queue.groups()


@pytest.mark.slow
def test_a_pipe_that_closes_early_is_no_error(queue: Queue) -> None:
    Queue.open(queue.path).publish(["x" * 1000] * 3_000)
    process = started("peek", "-q", queue.path, "-n", "5000", "-o", "json")
    assert json.loads(process.stdout.readline())["value"] == "acked"
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(60) == 0
    process.stderr.close()


@pytest.mark.slow
def test_completion_offers_the_groups_of_the_queue(queue: Queue) -> None:
    here = f"--queue {queue.path} --group"
    assert completion_of(f"spark-mq replay {here} ") == ["audit", "billing"]
    assert completion_of(f"spark-mq peek {here} billing --state d") == ["delayed", "dead"]


def completion_of(text: str) -> list[str]:
    """What bash shows for a line that ends where the cursor is."""
    place = str(len(text.split(" ")) - 1)
    words = {"COMP_WORDS": text, "COMP_CWORD": place, "_SPARK_MQ_COMPLETE": "complete_bash"}
    return started(**words).communicate(timeout=120)[0].split()


@pytest.mark.slow
def test_completion_offers_the_settings_that_a_command_changes() -> None:
    given = "spark-mq group configure billing -q x --set retry_d"
    assert completion_of(given) == ["retry_delay=", "retry_delay=10s"]
    assert completion_of("spark-mq queue configure x --set retry_d") == []


def exit_code(*words: str) -> Any:
    """Run a command in this process, with its streams and signals as they are."""
    main = entry_points(name="spark-mq")["spark-mq"].load()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["spark-mq", *words])
        with pytest.raises(SystemExit) as end:
            main()
    return end.value.code


@pytest.mark.parametrize(("words", "ends"), [(["-v", "work", "a:b"], True), (["peek"], False)])
def test_sigterm_ends_a_command_well_that_still_starts(
    monkeypatch: pytest.MonkeyPatch, words: list[str], ends: bool
) -> None:
    starting = ModuleType("spark_mq.interfaces.cli.app")
    taken: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: taken.append(number))
    monkeypatch.setattr(
        starting, "run", lambda _: signal.raise_signal(signal.SIGTERM), raising=False
    )
    monkeypatch.setitem(sys.modules, starting.__name__, starting)
    try:
        assert not exit_code(*words)
        assert bool(taken) is not ends, "another command leaves the signal as it is"
    finally:
        signal.signal(signal.SIGTERM, before)


def test_ctrl_c_ends_a_redrive_after_the_letters_in_hand(
    run: Run, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.sweep()
    real = Queue.redrive

    def interrupted(self: Queue, *, stop: threading.Event, **given: Any) -> Any:
        found = real(self, stop=stop, **given)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(30)
        return found

    monkeypatch.setattr(Queue, "redrive", interrupted)
    ended = run("dlq", "redrive", "-q", queue.path, "--yes", expect=130)
    assert "interrupted. Redriven: 1. Run it again for the rest" in ended.err


def test_no_to_a_question_changes_nothing_and_is_no_error(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert exit_code("group", "drop", "audit", "-q", queue.path) == 130
    said = capsys.readouterr().err
    assert said.endswith("spark-mq: nothing was changed\n")
    assert "error" not in said
    assert "audit" in queue.groups()
