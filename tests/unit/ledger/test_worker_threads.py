"""A process ends with all its leases, and only the message that ended it dies."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from support.ledger_group import SECOND, TIMEOUT, Group, limits

from spark_mq.ledger.settle import ACK

POISON = {9, 12, 25, 31}
BUSY = "last_attempt: a message that may end its worker is leased alone"


@dataclass
class Process:
    """A process with some threads, each with a lease, which it keeps alive.

    Its workers have two names, which those of all other processes have too.
    """

    name: str
    leases: dict[str, list[int]] = field(default_factory=dict)


def run(
    group: Group, poison: set[int], *, threads: int, size: int, processes: int, seed: int = 0
) -> int:
    """Work until all messages are acked or dead. Return how many processes ended."""
    chance, number, ended = random.Random(seed), 0, 0
    workers = [Process(f"process {n}") for n in range(processes)]
    for _ in range(20_000):
        worker = chance.choice(workers)
        idle = len(worker.leases) < threads
        if idle and chance.random() < 0.7:
            number += 1
            name = f"{worker.name}~{'vw'[number % 2]}"
            if taken := group.lease(f"lease {number}", size, worker=name):
                worker.leases[f"lease {number}"] = taken
        elif worker.leases:
            lease_id = chance.choice(list(worker.leases))
            if poison.isdisjoint(worker.leases.pop(lease_id)):
                assert group.settle(ACK, lease_id).settled, "a process that lives keeps its leases"
            else:
                ended += 1
                workers[workers.index(worker)] = Process(f"{worker.name}'")
        elif all(not one.leases for one in workers):
            acked = group.ledger.head.counters.get("acked", 0)
            if acked + group.ledger.count(("dead",)) == group.messages:
                return ended
            group.now += TIMEOUT // 3
        for lease_id in (lease for one in workers for lease in one.leases):
            group.extend(lease_id)
        group.now += chance.randrange(3 * SECOND)
    raise AssertionError("no end to it")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("attempts", [2, 3, 5])
@pytest.mark.parametrize("size", [1, 5, 40])
@pytest.mark.parametrize("processes", [1, 2])
def test_only_poison_dies_in_processes_of_four_threads(processes, size, attempts, seed):
    group = Group(messages=40, rules=limits(clock_skew=0, max_delivery_attempts=attempts))
    run(group, POISON, threads=4, size=size, processes=processes, seed=seed)
    assert {seq for seq in range(40) if group.state(seq) == "dead"} == POISON


@pytest.mark.parametrize(
    ("workers", "suspect"),
    [
        (("v", "w"), False),
        (("1~w", "2~w"), False),  # of two processes
        (("1~v", "1~w"), True),  # of one process, under any name
    ],
)
def test_only_leases_of_one_process_are_company(workers, suspect):
    group = Group()
    for lease_id, worker in zip("ab", workers, strict=True):
        group.lease(lease_id, worker=worker)
    group.expire()
    assert [group.at(seq).suspect for seq in (0, 1)] == [suspect, suspect]


def failed_in_company(group: Group) -> None:
    """Let messages 0 and 1 expire with one worker until they have one attempt left."""
    for attempt in range(2):
        group.lease(f"a{attempt}", worker=f"w{attempt}", intervals=[(0, 0)])
        group.lease(f"b{attempt}", worker=f"w{attempt}", intervals=[(1, 1)])
        group.expire()


def test_a_suspect_on_its_last_attempt_waits_until_its_worker_holds_nothing():
    group = Group(rules=limits(clock_skew=0, max_delivery_attempts=3))
    failed_in_company(group)
    assert group.lease("named", worker="w", intervals=[(5, 5)]) == [5]
    refused = group.ask("more", worker="w")
    assert (refused.ranges, refused.blocked_because) == ((), BUSY)
    assert refused.blocked_for_now
    assert not refused.breaker_stops
    assert group.lease("another", worker="v") == [0], "another worker holds nothing"
    assert group.ask("more", worker="v").blocked_because == BUSY
    group.settle(ACK, "named")
    assert group.lease("last", worker="w") == [1]
    assert group.ask("more", worker="w").blocked_because == BUSY
    group.settle(ACK, "last")
    assert group.lease("more", worker="w") == [2]


def test_two_processes_of_one_name_do_not_wait_for_each_other():
    group = Group(rules=limits(clock_skew=0, max_delivery_attempts=3))
    failed_in_company(group)
    assert group.lease("last", worker="1~w") == [0]
    assert group.ask("more", worker="1~v").blocked_because == BUSY
    assert group.lease("other last", worker="2~w") == [1]
    assert group.lease("old", worker="w") == [2], "a version that kept the name alone"
