"""Parse and check the JSON of Delta commits, which another engine may have written."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote

from spark_mq.util.json_text import parse_foreign

__all__ = ["Action", "checked_action", "parse"]

Action = dict[str, Any]

_LAST_MILLISECOND: Final = 253_402_300_799_000  # that a datetime can hold
_MAX_ROWS: Final = 2**32  # of one commit, which has as many ordinals


def parse(text: bytes) -> list[Action]:
    """Parse and check the actions of a commit. Raise ValueError or RecursionError if it is none."""
    actions = []
    # Split at line feeds alone. Python also takes other characters for line ends, and a JSON text
    # may hold them.
    for line in text.decode("utf-8").split("\n"):
        if line.strip():
            action = parse_foreign(line)
            if not isinstance(action, dict):
                raise ValueError(f"an action is a {type(action).__name__}, not an object")
            given = ((name, value) for name, value in action.items() if value is not None)
            actions.append({name: checked_action(name, value) for name, value in given})
    rows = sum(a["add"]["stats"].get("numRecords") or 0 for a in actions if "add" in a)
    if rows > _MAX_ROWS:
        raise ValueError(f"it adds {rows} rows, more than a commit may have")
    return actions


_FILE: Final = {"path": (str, True), "dataChange": (bool, False), "partitionValues": (dict, False)}
# Each field that spark_mq uses, with its type and whether it is required.
_FIELDS: Final[dict[str, dict[str, tuple[type, bool]]]] = {
    "add": {
        **_FILE,
        "size": (int, False),
        "modificationTime": (int, False),
        "stats": (str, False),
        "deletionVector": (dict, False),
        "tags": (dict, False),
    },
    "remove": _FILE,
    "txn": {"appId": (str, True), "version": (int, True)},
    "commitInfo": {"timestamp": (int, False)},
    "protocol": {
        "minReaderVersion": (int, True),
        "minWriterVersion": (int, True),
        "readerFeatures": (list, False),
        "writerFeatures": (list, False),
    },
    "metaData": {},
}


def checked_action(name: str, value: Any) -> Any:
    """Return an action without its null fields. Raise ValueError if it is malformed."""
    if name not in _FIELDS:
        return value
    _expect(isinstance(value, dict), name, "an object")
    kept = {field: given for field, given in value.items() if given is not None}
    for field_name, (kind, required) in _FIELDS[name].items():
        if field_name not in kept:
            _expect(not required, f"{name}.{field_name}", "there")
            continue
        given, full = kept[field_name], f"{name}.{field_name}"
        _expect(
            isinstance(given, kind) and (kind is bool or not isinstance(given, bool)),
            full,
            kind.__name__,
        )
        _expect(kind is not int or 0 <= given < 2**63, full, "within 64 bits")
    for field_name in ("timestamp", "modificationTime"):
        if name != "txn" and field_name in kept:
            kept[field_name] = min(kept[field_name], _LAST_MILLISECOND)
    if name in ("add", "remove"):
        kept["path"] = unquote(kept["path"])
        values = kept.get("partitionValues", {}).values()
        _expect(
            all(v is None or isinstance(v, str) for v in values),
            f"{name}.partitionValues",
            "of strings",
        )
    if name == "add":
        kept["stats"] = _stats(kept.get("stats") or "{}")
    return kept


def _stats(text: str) -> dict[str, Any]:
    stats: dict[str, Any] = parse_foreign(text)
    _expect(isinstance(stats, dict), "add.stats", "an object")
    rows = stats.get("numRecords")
    counted = rows is None or (isinstance(rows, int) and not isinstance(rows, bool) and rows >= 0)
    _expect(counted, "add.stats.numRecords", "a count")
    _expect(isinstance(stats.get("nullCount") or {}, dict), "add.stats.nullCount", "an object")
    return stats


def _expect(holds: bool, name: str, kind: str) -> None:
    if not holds:
        raise ValueError(f"{name} is not {kind}")
