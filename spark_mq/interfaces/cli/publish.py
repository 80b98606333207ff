"""Publish lines of files or stdin with ``spark-mq publish``, and messages by a schedule."""

from __future__ import annotations

import base64
import codecs
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from spark_mq.errors import InvalidPayload, SparkMQError
from spark_mq.interfaces.cli.command import Invocation, argument, command, option, parse_pairs
from spark_mq.interfaces.cli.output import Pages, Rows, WrongCall, columns, track
from spark_mq.message import Json, Message
from spark_mq.operations.schedules import ScheduleInfo
from spark_mq.util.show import show_count, show_duration
from spark_mq.util.validation import parse_instant

_Chunk = tuple[list[Any], int]  # the messages of a commit, and the number of lines read so far

_JSON = Json()
_OTHER_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)  # and UTF-32-LE

# A commit ends with either.
_CHUNK_LINES = 10_000
_CHUNK_BYTES = 16 * 2**20

_SCHEDULE_COLUMNS: Final = columns(
    "name rule catch_up next_at last_at paused_at pause_reason",
    name="SCHEDULE", pause_reason="REASON",
)  # fmt: skip
_SCHEDULE_FACTS: Final = (
    "rule", "starts_at", "catch_up", "jitter", "next_at", "last_at", "paused_at", "pause_reason",
)  # fmt: skip
_SCHEDULE: Final = argument("The schedule.", metavar="SCHEDULE")


@dataclass(frozen=True, slots=True)
class _Format:
    """How a line becomes a message."""

    raw: bool = False
    envelope: bool = False
    key_field: str | None = None
    id_field: str | None = None
    dedup_field: str | None = None
    priority: int = 0


@command("publish")
def publish(
    ctx: Invocation,
    files: list[str] | None = argument("Files of lines. Default, and -: stdin.", default=None),
    raw: bool = option("Lines are any text, not JSON.", default=False),
    envelope: bool = option(
        "Lines are objects: value, key, headers, message_id, priority, as peek prints them. "
        "They may have a dedup_id.",
        default=False,
    ),
    key_field: str | None = option("The field of the object that is the key."),
    id_field: str | None = option("The field of the object that is the id."),
    dedup_field: str | None = option("The field of the object that is the dedup id."),
    priority: int = option(
        "A higher one is leased first. That of an envelope comes before it.",
        min=0,
        max=9,
        default=0,
    ),
    producer_id: str | None = option(
        "A name for this input. A repeated call continues after the last line published."
    ),
    batch_id: str | None = option("The message batch of the lines, which `close-batch` closes."),
) -> Mapping[str, Any]:
    """Publish JSON lines of files or stdin, one message a line.

    Blank lines are left out. Up to 10,000 lines are one commit. With --producer-id a call that was
    killed can be repeated with the same input, because it continues after the last line published.
    """
    lines = _Format(raw, envelope, key_field, id_field, dedup_field, priority)
    if raw and (envelope or key_field or id_field or dedup_field):
        raise WrongCall(
            "--raw lines have no fields: leave out --envelope, --key-field, --id-field and "
            "--dedup-field"
        )
    queue = ctx.queue
    done = published = duplicates = 0
    if producer_id is not None:
        done = queue.last_producer_sequence(producer_id) or 0
    with _inputs(files or ["-"]) as inputs, track("published") as progress:
        try:
            for chunk, at in _chunks(inputs, lines, done):
                numbered: dict[str, Any] = {}
                if producer_id is not None:
                    numbered = {"producer_id": producer_id, "producer_sequence": at}
                receipt = queue.publish(chunk, batch_id=batch_id, **numbered)
                published += receipt.published
                duplicates += len(receipt.duplicates)
                progress.finish(receipt.published, _share_read(inputs))
        except SparkMQError as error:
            raise _stopped(error, published, producer_id) from error
    return {
        "queue": queue.path,
        "published": published,
        "duplicates": duplicates,
        "skipped_lines": done,
    }


def _stopped(error: SparkMQError, published: int, producer_id: str | None) -> SparkMQError:
    """Return the error of a publish, with the number of messages published before it."""
    text = str(error)
    if published:
        rest = "Publish the rest only" if producer_id is None else "Run the same command again"
        text += f". Published before: {show_count(published, 'message')}. {rest}"
    return type(error)(text, **error.data)


@contextmanager
def _inputs(names: list[str]) -> Iterator[Sequence[tuple[str, BinaryIO]]]:
    """Open all inputs, so that a missing one is found before anything is published."""
    with ExitStack() as stack:
        opened: list[tuple[str, BinaryIO]] = []
        for name in names:
            if name == "-":
                opened.append(("stdin", sys.stdin.buffer))
                continue
            try:
                opened.append((name, stack.enter_context(Path(name).open("rb"))))
            except OSError as error:
                raise WrongCall(
                    f"{name} cannot be read: {error.strerror}. Give files of lines, or - for stdin"
                ) from error
        yield opened


def _share_read(inputs: Sequence[tuple[str, BinaryIO]]) -> float | None:
    """Return which share of the files is read, or None with stdin or a pipe."""
    files = [file for _, file in inputs if file is not sys.stdin.buffer and file.seekable()]
    if len(files) < len(inputs):
        return None
    return sum(file.tell() for file in files) / sum(
        os.fstat(opened.fileno()).st_size for opened in files
    )


def _chunks(inputs: Iterable[tuple[str, BinaryIO]], lines: _Format, skip: int) -> Iterator[_Chunk]:
    chunk: list[Any] = []
    size = number = 0
    for name, file in inputs:
        for at, line in enumerate(file, 1):
            number += 1
            text = line.rstrip(b"\r\n")
            if at == 1:
                text = _without_mark(text, f"{name}:{at}")
            if number <= skip or not text.strip():
                continue
            chunk.append(_message(text, f"{name}:{at}", lines))
            size += len(text)
            if len(chunk) >= _CHUNK_LINES or size >= _CHUNK_BYTES:
                yield chunk, number
                chunk, size = [], 0
    if chunk:
        yield chunk, number


def _without_mark(line: bytes, where: str) -> bytes:
    """Return the first line of a file without a byte order mark, which is no part of its text."""
    if line.startswith(_OTHER_MARKS):
        raise _bad_line(where, "is in UTF-16 or UTF-32: convert the file to UTF-8, as by iconv")
    return line.removeprefix(codecs.BOM_UTF8)


def _message(line: bytes, where: str, lines: _Format) -> Any:
    if lines.raw:
        return Message(line, priority=lines.priority) if lines.priority else line
    line = line.removeprefix(codecs.BOM_UTF8)  # of a file that was appended to another one
    try:
        data = _JSON.decode(line)
    except InvalidPayload as error:
        why = str(error).removeprefix("not JSON: ")
        text = f"is not JSON: {why}. Repair it, or give --raw for any text"
        raise _bad_line(where, text) from None
    if lines.envelope:
        return _from_envelope(data, where, lines.priority)
    fields = (lines.key_field, lines.id_field, lines.dedup_field)
    if fields == (None, None, None) and not lines.priority:
        return line
    return Message(
        line,
        key=_field(data, lines.key_field, where),
        message_id=_field(data, lines.id_field, where),
        dedup_id=_field(data, lines.dedup_field, where),
        priority=lines.priority,
    )


def _from_envelope(data: Any, where: str, priority: int) -> Any:
    if not isinstance(data, Mapping) or "value" not in data:
        raise _bad_line(where, "is not an object with a value")
    value = data["value"]
    if isinstance(value, Mapping) and set(value) == {"base64"}:
        value = base64.b64decode(value["base64"])
    elif not isinstance(value, str):
        value = json.dumps(value)
    return Message(
        value,
        key=data.get("key"),
        headers=dict(data.get("headers") or {}),
        message_id=data.get("message_id"),
        dedup_id=data.get("dedup_id"),
        priority=priority if (own := data.get("priority")) is None else own,
    )


def _field(data: Any, name: str | None, where: str) -> str | None:
    if name is None:
        return None
    if not isinstance(data, Mapping) or name not in data:
        raise _bad_line(where, f"has no field {name!r}")
    value = data[name]
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _bad_line(where: str, problem: str) -> WrongCall:
    return WrongCall(f"line {where} {problem}")


@command("schedule list")
def list_schedules(ctx: Invocation) -> Rows:
    """List the schedules with their next and last instants."""
    return Rows(ctx.queue.schedules(), _SCHEDULE_COLUMNS, _schedule_cells)


def _schedule_cells(schedule: ScheduleInfo) -> Mapping[str, Any]:
    return {name: getattr(schedule, name) for _, name in _SCHEDULE_COLUMNS}


@command("schedule add")
def add(
    ctx: Invocation,
    name: str = _SCHEDULE,
    message: str = argument("The payload. -: all of stdin."),
    cron: str | None = option("Five fields, such as '0 2 * * *'."),
    every: str | None = option("A period, such as 15m, instead of --cron."),
    timezone: str | None = option("The zone of --cron, such as Europe/Berlin. UTC without it."),
    catch_up: str = option("After a time without sweeps: latest, all or none.", default="latest"),
    jitter: str = option("Delay each message by a part of this duration.", default="0s"),
    starts_at: str | None = option("No instant is earlier.", metavar="INSTANT"),
    key: str | None = option("The key of the messages."),
    header: list[str] | None = option("A header. Repeatable.", metavar="NAME=VALUE"),
    priority: int = option("A higher one is leased first.", min=0, max=9, default=0),
) -> Pages:
    """Make or change a schedule, whose messages the sweep publishes.

    Repeating the same definition changes nothing.
    """
    value: bytes | str = message
    if message == "-":
        value = sys.stdin.buffer.read().removeprefix(codecs.BOM_UTF8)  # a mark of text files
    made = ctx.queue.schedule(
        name,
        message=Message(value, key, parse_pairs("--header", header), priority=priority),
        cron=cron,
        every=every,
        timezone=timezone,
        catch_up=catch_up,
        jitter=jitter,
        starts_at=None if starts_at is None else parse_instant("--starts-at", starts_at),
    )
    return _shown_schedule(made)


@command("schedule pause")
def pause(
    ctx: Invocation, name: str = _SCHEDULE, reason: str | None = option("Why, for people.")
) -> Pages:
    """Publish no message of a schedule until `schedule resume`. Its instants are skipped."""
    return _shown_schedule(ctx.queue.pause_schedule(name, reason))


@command("schedule resume")
def resume(ctx: Invocation, name: str = _SCHEDULE) -> Pages:
    """End a pause of a schedule, from now on."""
    return _shown_schedule(ctx.queue.resume_schedule(name))


@command("schedule remove", asks=True)
def remove(ctx: Invocation, name: str = _SCHEDULE) -> Mapping[str, Any]:
    """Remove a schedule. Asks first. Messages that it has published stay."""
    queue = ctx.queue
    ctx.confirm(f"Remove schedule {name} of {queue.path}?")
    queue.remove_schedule(name)
    return {"queue": queue.path, "removed": name}


def _shown_schedule(made: ScheduleInfo) -> Pages:
    return Pages([made], lambda schedule: [_schedule_facts(schedule)])


def _schedule_facts(schedule: ScheduleInfo) -> Mapping[str, Any]:
    facts = {name: getattr(schedule, name) for name in _SCHEDULE_FACTS}
    return {"schedule": schedule.name, **facts, "jitter": show_duration(schedule.jitter)}
