"""Compare a ledger with the log, and undo what the log lacks.

A restore may leave ``messages/`` older than ``leases/``. Its next commits get the sequences of
messages that are gone. So a ledger remembers some data files that it has reached, as fingerprints
of its log. A log that lacks the newest one is not the log that the ledger was made from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.intervals import subtract
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import UNREAD, Ledger, LogFingerprint, Range

MAX_SEQUENCE: Final = 2**63 - 1
REWOUND: Final = "rewound"  # the event of messages whose state a ledger forgets
_MAX_FINGERPRINTS: Final = 8


def with_fingerprint(ledger: Ledger, index: MessageIndex) -> Ledger:
    """Return the ledger with a fingerprint for its newest reached file."""
    file = index.last_file_from(ledger.end_sequence)
    fingerprints = ledger.head.log_fingerprints
    if file is None or (fingerprints and fingerprints[-1].first >= file.first):
        return ledger
    kept = _thinned([*fingerprints, LogFingerprint(file.first, file.path)])
    head = replace(ledger.head, log_fingerprints=kept)
    return ledger.replaced(head, ledger.events)


def _thinned(fingerprints: Sequence[LogFingerprint]) -> tuple[LogFingerprint, ...]:
    """Drop a fingerprint if there are too many, so that the distances between old ones grow."""
    kept = list(fingerprints)
    if len(kept) > _MAX_FINGERPRINTS:
        # Sequences, not versions. One commit may have many files.
        firsts = [mark.first for mark in kept]

        def density(at: int) -> float:
            return (firsts[-1] - firsts[at]) / (firsts[at + 1] - firsts[at - 1])

        del kept[max(range(1, len(kept) - 1), key=density)]
    return tuple(kept)


def agreed_up_to(ledger: Ledger, index: MessageIndex) -> int | None:
    """Return the last sequence on which ledger and log surely agree, None if on all, or -1."""
    fingerprints, reached = ledger.head.log_fingerprints, index.last_sequence
    if not fingerprints or index.may_have(*fingerprints[-1]):
        return None if ledger.end_sequence <= reached else reached
    known = [mark for mark in fingerprints if index.may_have(*mark)]
    if not known:
        return -1
    file = index.last_file_from(known[-1].first)
    return index.forgotten_to if file is None else file.last


def forget(
    ledger: Ledger, index: MessageIndex, first: int, last: int = MAX_SEQUENCE
) -> tuple[Ledger, int]:
    """Forget the state of ``first..last``, and count the messages that the ledger had."""
    if ledger.end_sequence < first:
        return ledger, 0
    editor, head, total = LedgerEditor(ledger), ledger.head, 0
    for row in ledger.overlapping(first, last):
        (r,) = editor.remove([row])
        kept = [r.slice(r.first, first - 1, index), r.slice(last + 1, r.last, index)]
        for piece in kept:
            editor.add(piece, r)
        total += r.message_count - sum(max(0, piece.message_count) for piece in kept)
    if first <= head.start_sequence <= last:
        below = index.count(0, first - 1)
        total += max(0, head.settled_count - below)
        head = replace(head, start_sequence=first - 1, settled_count=below)
    whole = [(first, last)]
    skipped = tuple(subtract(head.skipped_intervals, whole))
    marks = head.log_fingerprints
    fingerprints = tuple(mark for mark in marks if not first <= mark.first <= last)
    editor.head = replace(head, skipped_intervals=skipped, log_fingerprints=fingerprints)
    end = min(last, ledger.end_sequence)
    editor.record_event(REWOUND, Range(first, end, UNREAD, total))
    return editor.build(), total
