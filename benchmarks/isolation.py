"""Count the leases that isolate a batch that killed its worker twice.

The rules are those of the package, with a clock of their own, so the counts are exact and no
message exists. Compare pieces that grow with pieces of one size, and with pieces that double after
each success without a limit.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from spark_mq import GroupSettings
from spark_mq.ledger import lane_selector, transitions
from spark_mq.ledger.acquire import AcquireRequest, acquire
from spark_mq.ledger.isolation import isolation_size
from spark_mq.ledger.message_index import DataFile, MessageIndex
from spark_mq.ledger.ranges import DEAD, Ledger, LedgerHeader
from spark_mq.ledger.settle import ACK, SettlePart, settle

MINUTE = 60_000_000
READERS = {"worker, 5 attempts": (5, 0), "stream, 5 attempts": (5, 1), "stream, 8 attempts": (8, 1)}
POISONS = {"none": (), "one": (0.5,), "three": (0.16, 0.5, 0.84)}  # where, as a share of the batch


def count(messages: int, attempts: int, reserved: int, poison: set[int]) -> tuple[int, int]:
    """Return the leases after the second death, and how many of them died."""
    index = MessageIndex([DataFile(0, messages, "a", messages, 0)], 1)
    rules = GroupSettings.decoded({"max_delivery_attempts": attempts})
    ledger, now, leases, deaths = Ledger(LedgerHeader()), 0, 0, 0
    while True:
        now += 10 * MINUTE
        ledger = transitions.expire_leases(ledger, now, rules)
        request = AcquireRequest(
            f"lease {leases}", "worker", messages, now + MINUTE, reserved_attempts=reserved
        )
        ledger, grant = acquire(ledger, index, now, rules, request)
        if not grant.ranges:
            assert ledger.count((DEAD,)) == len(poison)
            return leases - 2, deaths - 2
        leases += 1
        if leases <= 2 or any(r.first <= at <= r.last for r in grant.ranges for at in poison):
            deaths += 1
        else:
            ledger, _ = settle(ledger, index, now, rules, SettlePart(ACK, request.lease_id))


def unlimited_size(
    limit: int,
    deliveries: int,
    attempts: int,
    failed: int | None = None,
    *,
    settled: int = 0,
    waiting: int = 0,
) -> int:
    """Return a size that doubles after each success, without a limit."""
    size = isolation_size(limit, deliveries, attempts, failed)
    return size if size == 1 else max(size, min(limit, size + settled, waiting // 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=50_000)
    messages = parser.parse_args().messages
    variants: dict[str, dict[str, Callable[..., Any]]] = {
        "of one size": {"settled_since": lambda ledger, r: 0},
        "growing": {"isolation_size": isolation_size},
        "doubling without a limit": {"isolation_size": unlimited_size},
    }
    print("| reader | poison | " + " | ".join(variants) + " | deaths |")
    print("| --- | --- |" + " --- |" * (len(variants) + 1))
    for reader, (attempts, reserved) in READERS.items():
        for name, places in POISONS.items():
            poison = {int(share * messages) for share in places}
            found = []
            for rules in variants.values():
                with patch.multiple(lane_selector, **rules):
                    found.append(count(messages, attempts, reserved, poison))
            leases = " | ".join(f"{leases:,}" for leases, _ in found)
            print(f"| {reader} | {name} | {leases} | {found[1][1]} |", flush=True)


if __name__ == "__main__":
    main()
