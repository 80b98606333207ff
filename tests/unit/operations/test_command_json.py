"""The JSON of delegated commands: what it does not hold stays with its own process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest

from spark_mq.ledger.acquire import Acquire
from spark_mq.ledger.commands import Command
from spark_mq.ledger.settle import NACK, REJECT, Extend, Settle, SettlePart
from spark_mq.ledger.stream_batch import StreamBatch
from spark_mq.operations.command_json import _COMMANDS, decode_command, encode_command

LEASE = "5f0c3f4e-9d3e-4a39-8f0b-000000000001"
OTHER = "5f0c3f4e-9d3e-4a39-8f0b-000000000002"
PART = SettlePart(NACK, LEASE)
BASE: dict[str, Command[Any]] = {
    Acquire.name: Acquire("worker", 5),
    Settle.name: Settle((PART,)),
    Extend.name: Extend(((LEASE, None),), None),
}
# A value of each field that differs from the one above. A new field needs one, too.
OTHERS: dict[str, Any] = {
    "worker_id": "other",
    "max_messages": 7,
    "timeout": 1_000_000,
    "fail_on_data_loss": False,
    "max_bytes": 1_000,
    "max_timeout": 2_000_000,
    "max_sequence": 99,
    "due_by": 1_700_000_000_000_000,
    "batch": StreamBatch("stream", 3, "runner"),
    "intervals": [(3, 4), (8, 8)],
    "targets": ((LEASE, [(1, 2)]), (OTHER, None)),
    "verb": REJECT,
    "lease_id": OTHER,
    "whole": True,
    "delay": 5,
    "error": "it failed",
    "reason": "requested",
    "jitter": 0.5,
    "handler_failed": True,
}
OWN = {"max_sequence", "due_by", "batch"}
"""Fields of a command that only its own process can run."""


def changed() -> Iterator[Any]:
    """Yield each command with each of its fields changed, those of a settle's parts, too."""
    for name, command in BASE.items():
        for field in fields(command):  # type: ignore[arg-type]
            if field.name != "parts":
                one = replace(command, **{field.name: OTHERS[field.name]})  # type: ignore[type-var]
                yield pytest.param(one, field.name in OWN, id=f"{name}-{field.name}")
    for field in fields(SettlePart):
        part = replace(PART, **{field.name: OTHERS[field.name]})
        yield pytest.param(Settle((PART, part)), False, id=f"part-{field.name}")


def test_every_command_that_others_run_is_tried() -> None:
    assert set(BASE) == set(_COMMANDS)


@pytest.mark.parametrize(("command", "stays"), list(changed()))
def test_another_process_runs_the_same_command_or_none(command: Command[Any], stays: bool) -> None:
    encoded = encode_command(command)
    assert (encoded is None) == stays
    if not stays:
        assert decode_command(json.loads(json.dumps(encoded))) == command
