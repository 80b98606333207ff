"""The JSON of delegated commands: what it does not hold stays with its own process."""

from __future__ import annotations

import json
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
# A value of each field that no command below has. A new field needs one, too.
OTHERS: dict[str, Any] = {
    "worker_id": "other",
    "max_messages": 7,
    "timeout": 1_000_000,
    "fail_on_data_loss": False,
    "max_bytes": 1_000,
    "max_timeout": 2_000_000,
    "intervals": [(3, 4), (8, 2**63 - 1)],
    "targets": ((LEASE, [(0, 2)]), (OTHER, None)),
    "verb": REJECT,
    "lease_id": OTHER,
    "whole": True,
    "delay": 5,
    "error": "it failed",
    "reason": "requested",
    "jitter": 0.5,
    "handler_failed": True,
}
OWN: dict[str, Any] = {
    "max_sequence": 99,
    "due_by": 1_700_000_000_000_000,
    "batch": StreamBatch("stream", 3, "runner"),
}
"""Fields with which only its own process can run a command."""


def changed(kind: Any) -> Any:
    """Return a command, or a part of one, with other values of all fields."""
    names = [field.name for field in fields(kind) if field.name not in OWN]
    return kind(**{name: OTHERS[name] for name in names})


COMMANDS: list[Command[Any]] = [
    Acquire("worker", 5),
    changed(Acquire),
    Settle((SettlePart(NACK, LEASE), changed(SettlePart))),
    Extend(((LEASE, None),), None),
    changed(Extend),
]


def test_every_command_that_others_run_is_tried() -> None:
    assert set(map(type, COMMANDS)) == set(_COMMANDS.values())


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_another_process_runs_the_same_command(command: Command[Any]) -> None:
    assert decode_command(json.loads(json.dumps(encode_command(command)))) == command


@pytest.mark.parametrize("field", OWN)
def test_what_is_not_encoded_stays_with_its_own_process(field: str) -> None:
    assert encode_command(replace(Acquire("worker", 5), **{field: OWN[field]})) is None
