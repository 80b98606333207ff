"""JSON of all commands: raw values in one form, where tables have texts for people."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.commands import Run, parameters_of_commands, run_program

from spark_mq import Message, Queue

HANDLER = "def good(lease):\n    return None\n"
# Texts for people: nothing, a duration, separated thousands, a percentage, a time with a blank.
SHOWN = re.compile(
    r"-|(\d+(\.\d+)?(us|ms|s|m|h|d) ?)+|\d{1,3}(,\d{3})+(\.\d+)?|\d+(\.\d+)?%"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d.*"
)
HOMONYMS = {"retained"}  # how many messages are, and whether one is
# One call of each command that prints data, in an order in which each has something to show.
CALLS = (
    "queue list .", "queue create new --set retention=3d", "queue describe orders",
    "queue configure orders", "queue describe orders groups", "group describe billing -q orders",
    "group configure fresh -q orders --create",
    "group configure billing -q orders --set retry_delay=5m",
    "peek -q orders -g billing", "peek -q orders -f --after earliest -n 1",
    "group describe billing leases -q orders", "trace -q orders --now --message-id id-leased",
    "trace -q orders --message-id id-leased", "group describe billing lanes -q orders",
    "top -q orders --count 2 --interval 1ms",
    "top -q . --count 1", "throughput -q orders", "changes -q orders", "check -q orders",
    "schedule add nightly run -q orders --every 5m --jitter 90s", "schedule list -q orders",
    "schedule pause nightly -q orders", "schedule resume nightly -q orders",
    "schedule remove nightly -q orders --yes", "queue describe orders batches",
    "close-batch day -q orders --to orders", "dlq list -q orders", "dlq failures -q orders",
    "dlq list -q orders --message-id id-bad", "publish -q orders lines.jsonl", "sweep -q orders",
    "work h:good -q orders -g fresh --until empty --max-messages 100",
    "replay h:good -q orders -g fresh", "dlq redrive -q orders --dry-run",
    "dlq redrive -q orders --dry-run --transform value",
    "dlq redrive -q orders --yes", "dlq discard -q orders --where true --yes",
    "sql SELECT/**/consumer_group,state/**/FROM/**/ranges -q orders",
    "queue describe orders workers", "group pause billing -q orders --until 30m",
    "group resume billing -q orders", "group resolve billing -q orders --blocked --to retry",
    "group seek billing -q orders --to earliest",
    "group resolve fresh -q orders --to discard --key kleased --yes",
    "group resolve fresh -q orders --to retry --key kleased",
    "group resolve fresh -q orders --to dead_letter --key kleased --yes",
    "group drop fresh -q orders --yes",
    "queue purge orders --yes", "queue drop orders --yes",
)  # fmt: skip


ALL_IN_ONE = """
import runpy, sys
codes = set()
for call in {calls}:
    sys.argv = ["spark-mq", *call.split(), "-o", "{output}"]
    try:
        runpy.run_module("spark_mq", run_name="__main__")
    except SystemExit as end:
        codes.add(end.code)
print("ended with", codes, file=sys.stderr)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a queue that has leases, delays, dead letters, a batch and lanes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "h.py").write_text(HANDLER)
    (tmp_path / "lines.jsonl").write_text('{"a": 1}\n')
    queue = Queue.create("orders", durable=False, lanes=4)
    queue.publish([
        Message(name, key="k" + name, message_id=f"id-{name}", headers={"a": "b"})
        for name in ("bad", "nacked", "leased")
    ])  # fmt: skip
    group = queue.group("billing")
    group.configure(order="key")
    taken = group.lease("w", max_messages=3, visibility_timeout="1h")
    held = {message.text: message.sequence for message in taken.messages}
    taken.reject([held["bad"]], error="boom 1 äπ😀")
    taken.nack([held["nacked"]], error="boom 2 äπ😀", delay="1h")
    queue.publish([Message("late äπ😀", deliver_at="5 minutes"), "x"], batch_id="day")
    queue.sweep()
    return tmp_path


def test_json_has_no_texts_for_people_and_one_form_of_each_value(folder: Path, run: Run) -> None:
    kinds: dict[str, dict[str, str]] = {}
    for call in CALLS:
        for row in run(*call.split(), "-o", "json").rows:
            for name, value in values_in(row):
                assert not (isinstance(value, str) and SHOWN.fullmatch(value)), (call, name, value)
                assert name != "priority" or type(value) is int, call
                assert name != "headers" or isinstance(value, dict), call
                if not isinstance(value, list | dict | None):
                    kinds.setdefault(name, {}).setdefault(kind_of(value), call)
    mixed = {name: found for name, found in kinds.items() if len(found) > 1}
    assert mixed.keys() == HOMONYMS, mixed


def values_in(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and name == "headers":
        yield name, value
    elif isinstance(value, dict):
        for inner, one in value.items():
            yield from values_in(one, inner)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for one in value:
            yield from values_in(one, name)
    elif name != "value":  # the payload
        yield name, value


def kind_of(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number"
    return type(value).__name__


def test_each_command_that_prints_data_is_called() -> None:
    printing = {name for name, known in parameters_of_commands().items() if "output" in known}
    called = {name for name in printing for call in CALLS if f"{call} ".startswith(f"{name} ")}
    assert printing - called == set()


@pytest.mark.slow
def test_only_the_commands_that_the_reference_names_make_commits(folder: Path, run: Run) -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
    text = " ".join(page.read_text(encoding="utf-8").split())
    (sentence,) = re.findall(r"These commands make commits: (.*?)\. All others only read", text)
    named = re.findall(r"`([a-z]+(?:[ -][a-z]+)*)[^`]*`", sentence)
    made = set()
    for call in CALLS:
        before = commits_below(folder)
        run(*call.split(), "-o", "json")
        if commits_below(folder) != before:
            made.add(next((name for name in named if f"{call} ".startswith(f"{name} ")), call))
    # The letters were redriven before, so there is none to discard.
    assert made == {name.strip() for name in named} - {"web", "dlq discard"}


def commits_below(folder: Path) -> set[Path]:
    return set(folder.rglob("_delta_log/*.json"))


@pytest.mark.slow
@pytest.mark.parametrize("variables", [
    {"PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "latin-1"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("output", ["table", "json"])
def test_no_command_fails_because_stdout_lacks_a_character(
    folder: Path, variables: dict[str, str], output: str
) -> None:
    done = run_program(ALL_IN_ONE.format(calls=CALLS, output=output), **variables)
    assert done.err.splitlines()[-1] == "ended with {0}", done.err
    assert done.code == 0
    if output == "json":
        texts = [text for row in done.rows for _, text in values_in(row) if isinstance(text, str)]
        assert "boom 1 äπ😀" in texts
    elif variables.get("PYTHONIOENCODING") == "ascii":
        assert "boom 1 \\xe4\\u03c0\\U0001f600" in done.out
