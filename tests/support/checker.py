"""Checks a queue's past from its tables alone: nothing lost, nothing owned twice, each delivery
counted, each message ended once.

Plain Python over rows, and no code of spark_mq: it must be able to find the ledger wrong.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSelector, PyFileSystem

Row = Mapping[str, Any]
"""A row of ``history/``."""

Options = Mapping[str, str]
"""Storage options of the queue's tables."""

NONE: Final[Options] = {}

PRECISION = timedelta(milliseconds=2)
"""Of the times of Delta's commits."""


TAKEN_BACK = {
    *("given_back", "fenced", "skipped", "seek", "lost"),
    *("exhausted", "expired", "routed", "unblocked"),
}
"""The events after which nobody holds a message, without a word from its holder."""


@dataclass
class Findings:
    """What was found wrong, and how much was looked at."""

    wrong: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def expect(self, good: object, what: str) -> None:
        if not good:
            self.wrong.append(what)


@dataclass
class Life:
    """One message in one group, from its events."""

    holder: str | None = None
    expired: str | None = None
    """The lease that ran out and may still settle, as long as nobody has leased since."""
    free_at: datetime | None = None
    """Not to be leased before: the deadline and the margin of a lease that ran out."""
    deliveries: int = 0
    ends: int = 0


def check(
    published: Iterable[int],
    rows: Iterable[Row],
    *,
    skew: timedelta,
    drained: Iterable[str],
) -> Findings:
    """Follows each message through the events. In `drained` groups, every one must have ended."""
    found, sequences = Findings(), sorted(published)
    lives: dict[tuple[str, int], Life] = defaultdict(Life)
    for row in rows:
        if row["event"] is not None:
            for seq in between(sequences, row["first"], row["last"]):
                found.counts[row["event"]] += 1
                _step(found, lives[row["consumer_group"], seq], row, seq, skew)
    for group in drained:
        for seq in sequences:
            ends = lives[group, seq].ends
            found.expect(ends == 1, f"group {group}: message {seq} ended {ends} times")
    found.counts["messages"] = len(sequences)
    return found


def between(sequences: list[int], first: int, last: int) -> list[int]:
    return sequences[bisect_left(sequences, first) : bisect_right(sequences, last)]


def _step(found: Findings, life: Life, row: Row, seq: int, skew: timedelta) -> None:
    event, lease = row["event"], row["lease_id"]
    of = f"version {row['version']}: message {seq} of group {row['consumer_group']}"
    where, holder = f"{of}: {event} by {lease}", f"but {life.holder or 'nobody'} holds it"
    found.expect(life.ends == 0 or event == "seek", f"{where}, but it had ended")
    if event in ("leased", "replayed"):
        found.expect(life.holder is None or event == "replayed", f"{where}, {holder}")
        early = life.free_at is not None and row["leased_at"] + PRECISION < life.free_at
        found.expect(
            not early,
            f"{where} at {row['leased_at']}, but the lease before ran until {life.free_at}",
        )
        life.deliveries += 1
        found.expect(
            row["delivery_count"] == life.deliveries,
            f"{where}: counted {row['delivery_count']}, delivered {life.deliveries} times",
        )
        life.holder, life.expired, life.free_at = lease, None, None
    elif event in ("acked", "nacked", "rejected", "released", "returned", "extended"):
        mine = lease is not None and lease in (life.holder, life.expired)
        found.expect(mine, f"{where}, {holder}")
        life.deliveries -= event in ("released", "returned") and life.holder is not None
        life.holder, life.expired, life.free_at = (
            (lease, None, None) if event == "extended" else (None, None, None)
        )
    elif event == "lease_expired":
        found.expect(lease == life.holder, f"{where}, {holder}")
        deadline = row["available_at"] or row["expires_at"]
        if deadline is not None:
            found.expect(
                row["committed_at"] + PRECISION > deadline + skew,
                f"{where} before its deadline {deadline} and the margin",
            )
            life.free_at = deadline + skew
        life.holder, life.expired = None, lease
    elif event == "other_group":
        delivered = life.deliveries or life.holder
        found.expect(not delivered, f"{where}, but it was delivered to this group")
    elif event in TAKEN_BACK:
        life.holder = life.expired = life.free_at = None
        if event in ("seek", "unblocked", "fenced"):
            life.deliveries = 0
        life.ends = 0 if event == "seek" else life.ends
    elif event not in ("breaker_opened", "breaker_closed"):  # of the group
        found.expect(False, f"{where}: an event that nobody knows")
    life.ends += row["state"] == "settled"


# -- from the tables


def _read(path: str | Path, options: Options) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """(version, actions) of each commit in the log of a table."""
    files = PyFileSystem(DeltaStorageHandler(str(path), dict(options)))
    for found in sorted(info.path for info in files.get_file_info(FileSelector("_delta_log"))):
        name = found.rpartition("/")[2]
        if name.endswith(".json") and name[:-5].isdigit():
            with files.open_input_file(found) as file:
                yield int(name[:-5]), [json.loads(line) for line in file.read().splitlines()]


def added_files(path: str | Path, options: Options = NONE) -> Iterator[tuple[int, str, int, int]]:
    """Yield (version, path, rows, rows of the commit before it) of the files of ``messages/``.

    A file counts once, in the first commit without removes that adds it.
    """
    seen: set[str] = set()
    for version, actions in _read(path, options):
        adds = [
            a["add"]
            for a in actions
            if "add" in a and a["add"].get("dataChange", True) and a["add"]["path"] not in seen
        ]
        before = 0
        for add in adds if not any("remove" in a for a in actions) else []:
            rows = json.loads(add["stats"])["numRecords"]
            yield version, add["path"], rows, before
            before += rows
        seen |= {add["path"] for add in adds}


def published(path: str | Path, options: Options = NONE) -> list[int]:
    """Return the sequences of all messages: the version and ordinal of each row."""
    return [
        (version << 32) + before + row
        for version, _, rows, before in added_files(f"{path}/messages", options)
        for row in range(rows)
    ]


def history(path: str | Path, options: Options = NONE) -> list[Row]:
    """All of ``history/``, in the order in which it happened."""
    table = DeltaTable(f"{path}/history", storage_options=dict(options))
    rows = table.to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: (row["version"], row["ordinal"]))


def dead_letters(path: str | Path, options: Options = NONE) -> Counter[tuple[str, int]]:
    """How often each message of each group lies in the DLQ."""
    table = DeltaTable(f"{path}/dead_letters/messages", storage_options=dict(options))
    letters = map(dict, table.to_pyarrow_table(columns=["headers"])["headers"].to_pylist())
    return Counter((one["spark_mq.group"], int(one["spark_mq.sequence"])) for one in letters)


def check_queue(
    path: str | Path, options: Options = NONE, *, skew: timedelta, drained: Iterable[str]
) -> Findings:
    """Checks a whole queue whose ledger has been archived. Groups start at the earliest message."""
    rows, sequences = history(path, options), published(path, options)
    found = check(sequences, rows, skew=skew, drained=drained)
    routed = Counter(
        (row["consumer_group"], seq)
        for row in rows
        if row["outcome"] == "dead_lettered"
        for seq in between(sorted(sequences), row["first"], row["last"])
    )
    letters = dead_letters(path, options)
    found.expect(
        routed == letters,
        f"dead-lettered {routed - letters} and not in the DLQ; there and not dead-lettered "
        f"{letters - routed}",
    )
    versions = {row["version"] for row in rows}
    found.expect(
        versions == set(range(min(versions), max(versions) + 1)),
        "versions of the ledger are missing in the history",
    )
    found.counts["dead letters"] = sum(letters.values())
    return found
