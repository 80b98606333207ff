"""Commands that writers delegate, and the commits of other writers that run them.

The queue lies on a local disk here, and each handle acts as if it were on a machine of its own.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.byte_store import ByteStore, Call
from support.handles import again, notes, on_commit, sequences, take_all, until
from support.handles import lease as leased
from support.limits import Limits
from support.machines import end_requests, machines, pool, processes, sharing
from support.people import as_visitor
from support.tables import as_in_a_store, checkpoint, ledgers_of

from spark_mq import Lease, Queue, errors
from spark_mq.delta.actions import Change
from spark_mq.delta.object_store import ObjectStore
from spark_mq.ledger.acquire import Acquire
from spark_mq.ledger.commands import Command
from spark_mq.ledger.settle import ACK, NACK, Extend, Settle, SettlePart
from spark_mq.operations.command_json import decode_result, encode_command
from spark_mq.storage.commit_turn import CYCLE, LEADS, MAX_BYTES, SERVED, id_of, packed_of
from spark_mq.storage.delegated_commands import (
    FOLDER,
    LOOK_EVERY,
    DelegationTurn,
    Peers,
    delete_old_requests,
    plead,
)

MINUTE = 60.0
__all__ = ["machines", "pool", "processes"]

LEASE = "the id of a lease"
"""Stands for a lease that exists."""


pytestmark = pytest.mark.usefixtures("machines")


@pytest.fixture
def queue(delta_queue: Callable[..., Queue]) -> Queue:
    queue = delta_queue(visibility_timeout="1m")
    queue.publish([str(n) for n in range(20)])
    queue.group().ensure()
    return sharing(queue)


def delegate(queue: Queue, *commands: Command[Any], group: str = "default") -> DelegationTurn:
    return delegate_named(queue, *((group, command) for command in commands))


def delegate_named(queue: Queue, *commands: tuple[str, Command[Any]]) -> DelegationTurn:
    """Delegate commands and do no more, as a writer does that waits."""
    data = [(group, encode_command(command)) for group, command in commands]
    assert None not in dict(data).values()
    ledgers = ledgers_of(queue)
    ledgers.version()
    turn = DelegationTurn(ledgers.files, ledgers.log, json.loads(json.dumps(data)))
    turn.delegate()
    return turn


def lease_of(count: int = 5) -> Acquire:
    return Acquire("delegated", count)


def outcome(turn: DelegationTurn) -> Any:
    turn.wait(time.monotonic() + MINUTE)
    return turn.outcome


def granted(turn: DelegationTurn, at: int = 0) -> set[int]:
    """The messages of the delegated lease, by the commit of another writer."""
    grant = decode_result(lease_of(), outcome(turn)[at])
    return {sequence for r in grant.ranges for sequence in range(r.first, r.last + 1)}


def files(queue: Queue) -> list[Path]:
    return sorted(Path(queue.path, "leases", FOLDER).rglob("*.json"))


def on_look(byte_store: ByteStore, of: Queue, then: Callable[[], object]) -> None:
    """Let something happen when a handle has delegated and looks for the commits of others."""
    store, delegated = ledgers_of(of).files, list[bool]()

    def look(call: Call) -> Any:
        if call.verb == "write":
            delegated.append(call.path.startswith(FOLDER))
        elif delegated == [True]:
            delegated.append(False)
            then()
        return call.run()

    byte_store.on("write", "read", act=look, of=store)


def keep_requests(byte_store: ByteStore) -> None:
    """Let no request be deleted."""

    def delete(call: Call) -> None:
        assert threading.current_thread().daemon, "a process ends without it"
        if not call.args[0][0].startswith(FOLDER):
            call.run()

    byte_store.on("delete_many", act=delete)


def deleted(queue: Queue) -> bool:
    end_requests()
    return not files(queue)


@pytest.mark.parametrize("group", ["default", "b"])
def test_a_commit_runs_the_lease_that_another_writer_has_delegated(
    queue: Queue, group: str
) -> None:
    queue.group("b").ensure()
    checkpoint(ledgers_of(queue))  # the second writer knows no commit before the request
    turn = delegate(again(queue), lease_of(), group=group)
    before = ledgers_of(queue).version()
    own = leased(sharing(again(queue)), 5)
    assert ledgers_of(queue).version() == before + 1, "one commit for both"
    assert len(granted(turn)) == len(sequences(own)) == 5
    assert turn.shared
    assert granted(turn).isdisjoint(sequences(own)) == (group == "default")
    assert deleted(queue)
    leases = [(name, one) for name in ("default", "b") for one in again(queue).group(name).leases()]
    held = {(name, one.worker_id) for name, one in leases}
    assert held == {("default", "w"), (group, "delegated")}


def test_a_listing_is_enough_to_read_small_requests(
    queue: Queue, byte_store: ByteStore, limits: Limits
) -> None:
    held, other = leased(again(queue), 3), leased(again(queue), 2)
    settle = Settle((SettlePart(ACK, held.lease_id),))
    extend = Extend(((other.lease_id, None),), None)
    both, alone = delegate(again(queue), settle, lease_of(4)), delegate(again(queue), extend)
    assert {file.stat().st_size for file in files(queue)} == {0}
    assert max(len(file.name) for file in files(queue)) < 190
    shortest = min(len(bytes(file)) for file in files(queue))
    seen = byte_store.paths("read", of=ledgers_of(queue).files)
    own = leased(queue, 5)
    assert decode_result(settle, outcome(both)[0])[0].settled == 3
    assert len(granted(both, 1)) == 4
    assert not granted(both, 1) & sequences(own)
    assert outcome(alone) is not None
    assert queue.group().stats().leased == 4 + 2 + 5
    assert not [path for path in seen if path.startswith(FOLDER)]
    assert deleted(queue)
    limits(path_bytes=shortest)
    delegate(queue, extend)
    delegate(queue, settle, lease_of(4))
    assert sorted(packed_of(file.name) == "" for file in files(queue)) == [False, True]


LARGE = Extend(tuple((uuid.uuid4().hex, None) for _ in range(9)), None)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        pytest.param(LARGE, LARGE.targets[8][0].encode(), id="large"),
        # It may quote a message, and stores log the names of objects.
        pytest.param(Settle((SettlePart(NACK, "x", error="secret"),)), b"secret", id="an error"),
    ],
)
def test_what_is_large_or_may_be_secret_is_in_no_name(
    queue: Queue, command: Command[Any], text: bytes
) -> None:
    delegate(again(queue), command)
    (file,) = files(queue)
    assert text in file.read_bytes()
    assert not packed_of(file.name)


@pytest.mark.parametrize("packed", ["x", "A" * 150, "eJyrVkrLL8pNLFGyMqrV"])
def test_a_name_whose_commands_cannot_be_read_stops_nobody(
    queue: Queue, limits: Limits, packed: str
) -> None:
    name = f"{ledgers_of(queue).version():020d}-{uuid.uuid4().hex}-{packed}.json"
    put_request(queue, b"", name)
    assert len(sequences(leased(queue, 5))) == 5
    limits(turn_seconds=3600.0)
    assert len(sequences(leased(queue, 5))) == 5


def test_a_writer_that_meets_nobody_stops_delegating(queue: Queue, byte_store: ByteStore) -> None:
    seen = byte_store.paths("write", "delete_many", of=ledgers_of(queue).files)
    delegate(again(queue), lease_of(1))
    leased(queue, 1)
    end_requests()
    as_visitor("ann", lambda: leased(queue, 1))
    for _ in range(6):
        leased(queue, 1)
    end_requests()
    assert sum(path.startswith(FOLDER) for path in seen) == 3 + 3


def test_a_writer_that_meets_nobody_finds_a_request_soon(
    queue: Queue, byte_store: ByteStore
) -> None:
    """A writer alone wins each race over a store, because it does not look before it commits."""
    alone = again(queue)
    looks = byte_store.paths("list", of=ledgers_of(alone).files)
    for _ in range(2 * LOOK_EVERY - 1):
        leased(alone, 1)
    end_requests()
    assert looks == [FOLDER]
    turn = delegate(queue, lease_of(3))
    leased(alone, 1)
    end_requests()  # with the look
    leased(alone, 1)
    assert len(granted(turn)) == 3


def pleas(queue: Queue) -> list[Path]:
    return list(Path(queue.path, "leases", FOLDER).glob("plea-*"))


def test_a_writer_that_can_delegate_nothing_pleads_after_two_lost_races(
    queue: Queue, byte_store: ByteStore
) -> None:
    alone, seen, began = again(queue), list[list[int]](), time.monotonic()

    def lose(call: Call) -> Any:
        seen.append([int(path.name.split("-")[1]) for path in pleas(queue)])
        if len(seen) <= 4:
            leased(alone, 1)
        return call.run()

    byte_store.on("create", act=lose, of=ledgers_of(queue).files)
    as_visitor("ann", lambda: leased(queue, 5))
    assert [len(asked) for asked in seen] == [0, 0, 1, 1, 1]
    assert seen[2][0] <= 4_000 * (time.monotonic() - began), "about as long as two attempts"
    assert deleted(queue)
    assert not pleas(queue)


@pytest.mark.parametrize(
    ("pause", "foreign", "granted"),
    [(0.25, "plea-x", 0.75), (900.0, "plea-99999999-", 1.0), (0.1, "plea-99999-", 1.0)],
)
def test_a_plea_is_granted_once(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, pause: float, foreign: str, granted: float
) -> None:
    waits, peers = list[float](), Peers()
    monkeypatch.setattr(time, "sleep", waits.append)
    (path,) = ledgers_of(queue).ask_others(pause, 0.125)
    listed = [path, f"{FOLDER}/{foreign}{uuid.uuid4().hex}"]
    for _ in range(3):
        peers.read_names(listed)
        peers.grant_pleas()
    assert waits == [granted]


def test_a_lease_of_nothing_does_not_wait_for_the_writers_before_it(
    queue: Queue, limits: Limits
) -> None:
    """Of 32 workers that found a queue empty at once, the last one waited for 31 seconds."""
    leased(queue, 20)
    limits(turn_seconds=3600.0)
    for _ in range(3):
        delegate(again(queue), lease_of())
    assert queue.group().lease("w") is None


def test_a_request_that_cannot_change_all_of_its_groups_changes_none(queue: Queue) -> None:
    """Its writer would run it again, and a lease of the first run would be nobody's."""
    queue.group("b").ensure()
    held = queue.group("b").lease("w")
    assert held is not None
    held.ack()
    repeated = Settle((SettlePart("ack", held.lease_id),))
    turn = delegate_named(again(queue), ("default", lease_of(4)), ("b", repeated))
    own = leased(sharing(queue), 5)
    assert len(sequences(own)) == 5
    assert {lease.worker_id for lease in again(queue).group().leases()} == {"w"}
    assert turn.outcome is None
    turn.close()


@pytest.mark.parametrize("group", ["default", "b"])
def test_a_writer_delegates_after_a_lost_race_or_a_commit_to_another_group(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, byte_store: ByteStore, group: str
) -> None:
    """The second one conflicts with nothing, but each of them costs requests."""
    queue.group("b").ensure()
    alone, other = again(queue), again(queue)
    written = byte_store.paths("write", of=ledgers_of(alone).files)
    leased(alone, 1)
    on_commit(monkeypatch, "leases", before=lambda: leased(other, 1, group), at=1)
    leased(alone, 1)
    assert sum(path.startswith(FOLDER) for path in written) == (group == "default")
    leased(alone, 1)
    assert sum(path.startswith(FOLDER) for path in written) == 1 + (group == "default")


@pytest.mark.parametrize("leads", [True, False, None])
def test_a_leader_that_meets_another_one_stops(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, byte_store: ByteStore, leads: bool | None
) -> None:
    other, log, turns = again(queue), ledgers_of(again(queue)).log, list[DelegationTurn]()

    def delegate_one_more(call: Call) -> Any:
        if call.path.startswith(FOLDER) and len(turns) < 4:
            turns.append(delegate(other, lease_of(1)))
        return call.run()

    def lead_too() -> None:
        log.commit(Change("rival", {"group": "b", LEADS: leads}), log.refresh().version)

    byte_store.on("list", act=delegate_one_more, of=ledgers_of(queue).files)
    on_commit(monkeypatch, "leases", before=lead_too, at=2)
    before = ledgers_of(queue).version()
    leased(queue, 1)
    end_requests()
    assert ledgers_of(queue).version() == before + (3 if leads else 5)


@pytest.mark.parametrize("behind", [0.0, 30.0])
def test_a_writer_that_ran_a_request_also_runs_what_is_delegated_meanwhile(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, byte_store: ByteStore, behind: float
) -> None:
    """Its own caller does not wait for that, and the store's clock may be behind its own."""
    other, late = again(queue), again(queue)
    first, returned = delegate(other, lease_of()), threading.Event()
    store, later = ledgers_of(as_in_a_store(queue)).files, list[DelegationTurn]()
    leads, waits = list[bool](), list[float]()

    def list_requests(call: Call) -> Any:
        leads.append(ledgers_of(queue).peers.leads)
        if len(looks) == 3:  # the first one after its commit
            plead(store, 0.5)
            assert returned.wait(30)
            later.append(delegate(late, lease_of(3)))
            raise OSError("503")
        return [one._replace(modified=one.modified - behind) for one in call.run()]

    byte_store.on("list", act=list_requests, of=store)
    before, began = ledgers_of(queue).version(), time.monotonic()
    monkeypatch.setattr(time, "sleep", waits.append)
    looks = byte_store.paths("list", "read", of=store)
    own = leased(queue, 5)
    returned.set()
    assert outcome(first) is not None
    assert deleted(queue)
    assert len(looks) == 6, "it reads the log only before it leads, and ends after two listings"
    assert [*leads, ledgers_of(queue).peers.leads] == [False, *[True] * 4, False]
    assert waits.count(0.5) == 1, "it grants a plea"
    assert outcome(later[0]) is not None
    commits = list(ledgers_of(queue).log.commits(before + 1, ledgers_of(queue).version()))
    assert [one.note[LEADS] for one in commits] == [True, True]
    assert CYCLE not in commits[0].note
    assert 0 < commits[1].note[CYCLE] < time.monotonic() - began
    assert later[0].request_id in commits[1].note[SERVED]
    assert len(sequences(own)) == 5
    assert queue.group().stats().leased == 5 + 5 + 3


def test_a_writer_leads_only_for_some_time_after_a_commit_of_its_own(
    queue: Queue, byte_store: ByteStore, limits: Limits
) -> None:
    limits(lead_seconds=0.3)
    queue.publish([str(n) for n in range(10_000)])
    other, log, notes = again(queue), ledgers_of(queue).log, list[bool]()

    def delegate_one_more(call: Call) -> Any:
        if call.path.startswith(FOLDER):
            delegate(other, lease_of(1))
        return call.run()

    byte_store.on("list", act=delegate_one_more, of=ledgers_of(queue).files)
    before = ledgers_of(queue).version()
    leased(queue, 1)

    def ended() -> bool:
        notes[:] = [one.note[LEADS] for one in log.commits(before + 1, log.refresh().version)]
        return False in notes

    until(ended, 10)
    assert deleted(queue), "those that it served, too"
    assert ended()
    assert notes.index(False) == len(notes) - 1 > 0


def test_a_writer_looks_when_the_next_commit_of_the_leader_is_due(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, byte_store: ByteStore, limits: Limits
) -> None:
    """Each request takes 0.1 s. The leader does not run that of this writer, and then it dies."""
    ledgers, log = ledgers_of(as_in_a_store(queue)), ledgers_of(again(queue)).log
    now, commits, made, peers = 0.0, [3.0, 2.0, 1.0, 0.1], list[float](), Peers()
    limits(turn_seconds=5.0)
    one_by_one = threading.Lock()

    def sleep(seconds: float) -> None:
        nonlocal now
        end = now + seconds
        while commits and commits[-1] <= end:
            now = commits.pop()
            served = {turn.request_id: None} if now > 4 else {}
            note = {LEADS: now < 4, CYCLE: 1.0, SERVED: served}
            log.commit(Change(str(now), note), log.refresh().version)
        now = end

    def request(call: Call) -> Any:
        with one_by_one:
            made.append(round(now, 2))
            sleep(0.1)
        return call.run()

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(ObjectStore, "now", lambda _: now)
    ledgers.version()
    byte_store.on("read", "write", act=request, of=ledgers.files)
    peers.follow_leader({LEADS: True}, 1.5)
    turn = DelegationTurn(ledgers.files, ledgers.log, [], peers)
    assert outcome(turn) is None, "it commits itself"
    assert made == [0.0, 0.3, 0.4, 0.55, 0.7, 0.85, 1.0, 2.0, 3.0, 3.1, 3.2], "two at a time"
    turn.find_more_requests(0)
    assert made[11:] == [3.5], "after those that the commit served"
    commits.append(4.5)
    next_turn = DelegationTurn(ledgers.files, ledgers.log, [], peers)
    assert outcome(next_turn) is None
    assert made[12:16] == [3.6, 4.0, 4.15, 4.25], "ten requests and 0.1 s after its last commit"
    assert made[16:] == [4.35, 4.5, 4.6], "it waits for the commit of the one before it at 4.5"


def test_a_request_runs_once_although_its_file_is_still_there(
    queue: Queue, byte_store: ByteStore
) -> None:
    other = again(queue)
    turn = delegate(other, lease_of())
    keep_requests(byte_store)
    first = leased(queue, 5)
    third = leased(again(queue), 5)  # it knows the note, and of others, only from the log
    assert len(files(queue)) == 3, "each delegates"
    assert outcome(turn) is not None
    assert not sequences(first) & sequences(third)
    assert queue.group().stats().leased == 15


def test_of_two_commits_that_run_a_request_only_one_lands(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one finds the request in the note of the first, and computes again without it."""
    asking, third = again(queue), sharing(again(queue))
    turn = delegate(asking, lease_of())
    raced: list[Lease] = []
    on_commit(monkeypatch, "leases", before=lambda: raced.append(leased(third, 3)))
    own = leased(queue, 4)
    assert outcome(turn) is not None
    assert queue.group().stats().leased == 5 + 3 + 4
    assert not sequences(own) & sequences(raced[0])
    assert sum(turn.request_id in note.get(SERVED, {}) for note in notes(queue)) == 1


def test_a_commit_that_is_lost_withdraws_nothing_of_others(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = again(queue)
    turn = delegate(asking, lease_of())
    fault = on_commit(monkeypatch, "leases", fail=PermissionError(13, "no"), at=1)
    fault.real = lambda *_, **__: None  # nothing is written
    with pytest.raises(errors.StorageError):
        leased(queue, 4)
    monkeypatch.undo()
    end_requests()
    assert turn.request_id in str(files(queue))


NO_LEASE = {"lease": {"worker_id": "w", "max_messages": 1, "intervals": []}}
"""A lease of nothing. Only its own writer looks for the reason."""


@pytest.mark.parametrize(
    "commands",
    [
        [{"lease": {"worker_id": "w", "max_messages": "many"}}],
        [{"lease": {"worker": "w"}}],
        [{"settle": 3}],
        [{"settle": {"parts": [{"verb": "burn", "lease_id": "x"}]}}],
        [{"lease": {"worker_id": "w", "max_messages": 1, "max_bytes": "much"}}],
        [{"lease": {"worker_id": "w", "max_messages": 1, "intervals": [[0, 2**40], [9, 1]]}}],
        [{"lease": {"worker_id": "a/b", "max_messages": 1}}],
        [{"lease": {"worker_id": "w", "max_messages": 1, "fail_on_data_loss": []}}],
        [{"extend": {"targets": [[LEASE, None]], "timeout": 2**63}}],
        [{"extend": {"targets": [[LEASE, [[0, 2**70]]]], "timeout": None}}],
        [{"settle": {"parts": [{"verb": "nack", "lease_id": LEASE, "delay": 2**63}]}}],
        [{"settle": {"parts": [{"verb": "nack", "lease_id": LEASE, "jitter": "much"}]}}],
        [{"settle": {"parts": [{"verb": "reject", "lease_id": LEASE, "reason": 5}]}}],
        [{"settle": {"parts": [{"verb": "reject", "lease_id": LEASE, "error": ["e"]}]}}],
        [{"settle": {"parts": [{"verb": "ack", "lease_id": LEASE, "intervals": [[0, 2**63]]}]}}],
        [{"settle": {"parts": [{"verb": "ack", "lease_id": LEASE}]}}, NO_LEASE],
        [{"lease": {}, "settle": []}],
        ["lease"],
        None,
    ],
)
def test_a_request_that_makes_no_sense_runs_nothing(queue: Queue, commands: Any) -> None:
    held = leased(again(queue), 2).lease_id
    if isinstance(commands, list):
        commands = [["default", command] for command in commands]
    text = json.dumps({"format": 2, "commands": commands}).replace(LEASE, held)
    put_request(queue, text.encode())
    own = leased(queue, 5)
    assert len(sequences(own)) == 5
    stats = queue.group().stats()
    assert (stats.leased, stats.dead, stats.ready) == (7, 0, 13)


def put_request(queue: Queue, data: bytes, name: str | None = None) -> str:
    """Write a file into the folder of requests. By default, its name is that of a request."""
    ledgers = ledgers_of(queue)
    name = name or f"{ledgers.version():020d}-{uuid.uuid4().hex}.json"
    path = f"{FOLDER}/{name}"
    ledgers.files.write(path, data)
    return path


NAMES = [
    "x.json",
    "0" * 20 + "-x.json",
    "\N{ARABIC-INDIC DIGIT ZERO}" * 20 + "-" + "a" * 32 + ".json",
    "0" * 20 + "-" + "a" * 32 + ".v2",
    "-" * 57 + "\x9b",
]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        *(pytest.param(name, b"{}", id=ascii(name)) for name in NAMES),
        pytest.param(None, b" " * (MAX_BYTES + 1), id="without end"),
    ],
)
def test_a_file_that_is_no_request_is_neither_read_nor_waited_for(
    queue: Queue, byte_store: ByteStore, limits: Limits, name: str | None, data: bytes
) -> None:
    limits(turn_seconds=3600.0)
    path = put_request(queue, data, name)
    seen = byte_store.paths("read", of=ledgers_of(queue).files)
    assert len(sequences(leased(queue, 5))) == 5
    assert path not in seen


def with_format(number: int, *commands: Any) -> bytes:
    return json.dumps({"format": number, "commands": commands}).encode()


LEASE_OF_ONE = {"lease": {"worker_id": "w", "max_messages": 1}}
NO_REQUESTS = {
    "nothing": b"",
    "a list": b"[]",
    "no commands": b'{"format":2}',
    "a newer format": with_format(3, ["default", LEASE_OF_ONE]),
    "no group": with_format(2, LEASE_OF_ONE),
    "a group that nobody has": with_format(2, ["x", LEASE_OF_ONE]),
    "a reserved group": with_format(2, ["__horizon", LEASE_OF_ONE]),
    "no text": b"\xff",
    "as much as a request may have": b" " * MAX_BYTES,
    "deep": b'{"format":2,"commands":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "an unknown operation": with_format(2, ["default", {"burn": {}}], ["default", LEASE_OF_ONE]),
    "a settle of nobody's lease": with_format(
        2, ["default", {"settle": {"parts": [{"verb": "ack", "lease_id": "x"}]}}]
    ),
}


@pytest.mark.parametrize("data", NO_REQUESTS.values(), ids=NO_REQUESTS)
def test_a_request_that_cannot_run_is_remembered_and_left_to_its_writer(
    queue: Queue, byte_store: ByteStore, limits: Limits, data: bytes
) -> None:
    path = put_request(queue, data)
    seen = byte_store.paths("read", of=ledgers_of(queue).files)
    assert len(sequences(leased(queue, 5))) == 5
    assert seen.count(path) == 1
    limits(turn_seconds=3600.0)
    assert len(sequences(leased(queue, 5))) == 5
    assert len(sequences(leased(queue, 5))) == 5
    assert seen.count(path) == 1, "nobody reads it again, or waits for it"
    assert queue.group().stats().leased == 15, "it leases nothing"


def test_a_writer_whose_requests_nobody_can_run_commits_itself(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, byte_store: ByteStore, limits: Limits
) -> None:
    """It is of a newer version, and works beside older ones."""
    limits(name_bytes=0)

    def newer(call: Call) -> None:
        path, data = call.args
        format_3 = bytes(data).replace(b'"format":2', b'"format":3')
        call.run(path, format_3 if b'"newer"' in format_3 else data)

    byte_store.on("write", act=newer)
    got: list[Lease | None] = []
    other = sharing(again(queue))
    on_commit(
        monkeypatch,
        "leases",
        before=lambda: got.append(other.group().lease("newer", max_messages=3)),
    )
    own = leased(queue, 5)
    assert got[0] is not None
    assert len(sequences(got[0])) == 3
    assert not sequences(got[0]) & sequences(own)
    assert {one.worker_id for one in queue.group().leases()} == {"w", "newer"}
    assert deleted(queue)


def test_an_outcome_that_cannot_be_read_is_an_error(queue: Queue, byte_store: ByteStore) -> None:
    held = leased(queue, 5)
    assert deleted(queue)
    log = ledgers_of(again(queue)).log

    def answer() -> None:
        (file,) = files(queue)
        served = {id_of(file.name): [{"settled": "all"}]}
        log.commit(Change("newer", {"operation": "ack", SERVED: served}), log.refresh().version)

    on_look(byte_store, sharing(queue), answer)
    with pytest.raises(errors.StorageError, match="one version of spark_mq") as raised:
        held.ack()
    assert raised.value.landed


def test_the_request_of_a_dead_writer_is_not_run_and_goes(queue: Queue) -> None:
    other = again(queue)
    delegate(other, lease_of())
    (file,) = files(queue)
    os.utime(file, (time.time() - MINUTE, time.time() - MINUTE))
    leased(queue, 5)
    assert queue.group().stats().leased == 5
    assert deleted(queue)


def test_an_interrupted_writer_withdraws_its_request(queue: Queue, byte_store: ByteStore) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    on_look(byte_store, queue, interrupt)
    with pytest.raises(KeyboardInterrupt):
        leased(queue, 5)
    assert deleted(queue)
    assert len(sequences(leased(queue, 5))) == 5


# -- an outage of a writer whose commands are delegated


def test_what_another_writer_has_run_is_reported_although_the_store_failed(
    queue: Queue, byte_store: ByteStore
) -> None:
    other = again(queue)
    held = leased(other, 5)

    def run_it_and_fail() -> None:
        leased(queue, 1)
        raise OSError("503")

    on_look(byte_store, sharing(other), run_it_and_fail)
    assert held.ack().settled == 5


def test_an_operation_whose_post_failed_may_be_run_by_others(
    queue: Queue, byte_store: ByteStore
) -> None:
    other = again(queue)
    held = leased(other, 5)
    sharing(other)
    byte_store.inject("write", of=ledgers_of(other).files, fail=OSError("503"))
    keep_requests(byte_store)
    with pytest.raises(errors.StorageError) as raised:
        held.ack()
    assert raised.value.landed is None
    leased(queue, 1)
    assert queue.group().stats().acked == 5


def test_a_writer_that_lost_all_races_does_not_claim_that_nothing_was_changed(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, byte_store: ByteStore, limits: Limits
) -> None:
    other = again(queue)
    held = leased(other, 5)
    sharing(other)

    def hide_requests(call: Call) -> Any:
        return [] if call.path.startswith(FOLDER) else call.run()

    on_commit(monkeypatch, "leases", fail=FileExistsError("412"), before=lambda: leased(queue, 1))
    byte_store.on("list", act=hide_requests)
    keep_requests(byte_store)
    limits(commit_seconds=0.0)
    with pytest.raises(errors.StorageError, match="other workers may still run it") as raised:
        held.ack()
    assert raised.value.landed is None


def test_a_sweep_deletes_old_requests(queue: Queue) -> None:
    other = again(queue)
    delegate(other, lease_of())
    (file,) = files(queue)
    foreign = [Path(file.parent, name) for name in ("x.json", "below/\x9b", "a\nb")]
    for one in foreign:
        one.parent.mkdir(exist_ok=True)
        one.write_bytes(b"")
    assert delete_old_requests(ledgers_of(queue).files) == 0
    for one in (file, *foreign):
        os.utime(one, (time.time() - 7200, time.time() - 7200))
    assert delete_old_requests(ledgers_of(queue).files) == 3
    assert [one for one in file.parent.rglob("*") if one.is_file()] == foreign[2:], "no valid name"


@pytest.mark.parametrize(
    ("named", "known"), [(0.2, 0.35), (-3.0, 0.25), (1e9, 0.75), (float("inf"), 0.75), ("x", 0.5)]
)
def test_the_cycle_that_a_commit_names_stops_nobody_for_long(named: Any, known: float) -> None:
    peers = Peers()
    peers.follow_leader({LEADS: True, CYCLE: 0.5}, MINUTE)
    peers.follow_leader({LEADS: True, CYCLE: named}, MINUTE)
    peers.looked(100.0, 7.0)
    assert peers.due_at == pytest.approx(100.0 + known)


def test_a_writer_that_has_looked_late_looks_earlier_for_the_next_commit() -> None:
    """One that has not looked for two cycles of the leader reads all its commits."""
    peers = Peers()
    peers.follow_leader({LEADS: True, CYCLE: 1.0}, MINUTE)
    for at, written_at, due_at in (
        (100.0, 7.0, 101.0),
        (101.4, 8.0, 102.0),  # 0.4 s late
        (101.9, 8.9, 102.9),
        (102.8, 9.9, 103.8),  # 0.1 s earlier than ever
        (200.0, 70.0, 201.0),  # another leader, whose clock is behind
        (201.0, 900.0, 202.0),  # and one whose clock is ahead
    ):
        peers.looked(at, written_at)
        assert peers.due_at == pytest.approx(due_at)
    assert [peers.knows_all(at) for at in (201.0, 202.9, 203.0)] == [True, True, False]
    peers.looked(203.1, None)
    assert peers.due_at < 203.1, "nobody knows when the next one comes"


def test_writers_that_meet_share_commits_and_lose_nothing(
    queue: Queue, pool: ThreadPoolExecutor
) -> None:
    """Six handles, as on six machines, drain a queue at once."""
    queue.publish([f"more {n}" for n in range(280)])

    def work(_: int) -> list[str]:
        return take_all(again(queue).group(), count=10)

    done = [text for each in pool.map(work, range(6)) for text in each]
    assert len(done) == len(set(done)) == 300
    stats = queue.group().stats()
    assert (stats.ready, stats.leased) == (0, 0)
    assert deleted(queue)
