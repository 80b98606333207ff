"""Reach the tables of a queue, as the tests of storage, faults and maintenance need them.

Only this module knows where a queue keeps them.
"""

from __future__ import annotations

from spark_mq import ConsumerGroup, Queue
from spark_mq.operations.context import QueueContext
from spark_mq.operations.group_ledger import GroupLedger
from spark_mq.storage.ledger_table import LedgerTable
from spark_mq.storage.message_table import MessageTable

__all__ = ["context_of", "group_ledger_of", "ledgers_of", "messages_of"]


def context_of(queue: Queue) -> QueueContext:
    return queue._context


def messages_of(queue: Queue) -> MessageTable:
    return queue._context.messages


def ledgers_of(queue: Queue) -> LedgerTable:
    return queue._context.ledgers


def group_ledger_of(group: ConsumerGroup) -> GroupLedger:
    return group._ledger
