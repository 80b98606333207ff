"""The commits of a Delta table's log, as their JSON tells them. Whoever wrote it: what is no commit is refused, by its version."""

from __future__ import annotations

import json
from typing import Any, Final

from spark_mq.delta.files import Files
from spark_mq.errors import CorruptLog

__all__ = ["landed_since", "log_path", "parse", "read_commit", "restore_hint"]

OPERATION_ID: Final = "spark_mq_operation_id"
"""Key in a commit's ``commitInfo``: tells, after any failure, whether a commit landed all the same."""

_LATEST: Final = 253_402_300_799_000
"""The last millisecond that a datetime can tell."""
_MOST_ROWS: Final = 2**32
"""Of a commit: as many as there are ordinals."""


def log_path(version: int) -> str:
    return f"_delta_log/{version:020d}.json"


def restore_hint(path: str, version: int) -> str:
    """What to do about a commit of the table at `path` that is gone or broken."""
    if version == 0:
        return f"Restore {log_path(version)} from a backup"  # the table's schema and settings stand there
    hint = f"Restore {log_path(version)} from a backup; without one, "
    table = path.rstrip("/").rpartition("/")[2]
    if table == "messages":
        return hint + 'give up the messages that it published: put a file with the line {"commitInfo":{}} in its place'
    if table == "leases":
        return hint + f"stop the workers and remove version {version} and all later ones from that log: what was settled since comes again"
    return hint + "remove that table, if what it tells may be lost"


def read_commit(files: Files, version: int, path: str) -> list[dict[str, Any]]:
    """The actions of one commit of the log of the table at `path`, in order.

    Raises FileNotFoundError where the log no longer has it, CorruptLog where it is not readable.
    """
    text = files.read(log_path(version))
    try:
        return parse(text)
    except (ValueError, RecursionError) as error:
        raise CorruptLog(
            f"commit {version} of {path} cannot be read ({error}). {restore_hint(path, version)}", path=path, version=version
        ) from error


def parse(text: bytes) -> list[dict[str, Any]]:
    """The actions of a commit, from its JSON, with all that spark_mq looks at in its type; an add's ``stats`` as an object.

    Raises ValueError, RecursionError.
    """
    actions = []
    # By line feeds alone: text inside may hold what else Python takes for the end of a line.
    for line in text.decode("utf-8").split("\n"):
        if line.strip():
            action = json.loads(line)
            if not isinstance(action, dict):
                raise ValueError(f"an action is no object but {type(action).__name__}")
            actions.append({name: _checked(name, value) for name, value in action.items() if value is not None})
    rows = sum(a["add"]["stats"].get("numRecords") or 0 for a in actions if "add" in a)
    if rows > _MOST_ROWS:
        raise ValueError(f"it adds {rows} rows, more than a commit may have")
    return actions


def _checked(name: str, value: Any) -> Any:
    if name not in _FIELDS:
        return value
    _expect(isinstance(value, dict), name, "an object")
    kept = {field: given for field, given in value.items() if given is not None}
    for field, (kind, needed) in _FIELDS[name].items():
        if field not in kept:
            _expect(not needed, f"{name}.{field}", "there")
        else:
            given = kept[field]
            _expect(isinstance(given, kind) and (kind is bool or not isinstance(given, bool)), f"{name}.{field}", kind.__name__)
            _expect(kind is not int or 0 <= given < 2**63, f"{name}.{field}", "within 64 bits")
    for field in ("timestamp", "modificationTime"):
        if name != "txn" and field in kept:
            kept[field] = min(kept[field], _LATEST)
    if name == "add":
        kept["stats"] = _stats(kept.get("stats") or "{}")
    return kept


_FILE: Final = {"path": (str, True), "dataChange": (bool, False)}
_FIELDS: Final[dict[str, dict[str, tuple[type, bool]]]] = {
    "add": {
        **_FILE, "size": (int, False), "modificationTime": (int, False), "stats": (str, False),
        "partitionValues": (dict, False), "deletionVector": (dict, False),
    },
    "remove": _FILE,
    "txn": {"appId": (str, True), "version": (int, True)},
    "commitInfo": {"timestamp": (int, False)},
    "protocol": {
        "minReaderVersion": (int, True), "minWriterVersion": (int, True), "readerFeatures": (list, False), "writerFeatures": (list, False),
    },
    "metaData": {},
}  # fmt: skip
"""What spark_mq looks at: the type, and whether it must be there."""


def _stats(text: str) -> dict[str, Any]:
    stats: dict[str, Any] = json.loads(text)
    _expect(isinstance(stats, dict), "add.stats", "an object")
    rows = stats.get("numRecords")
    _expect(rows is None or (isinstance(rows, int) and not isinstance(rows, bool) and rows >= 0), "add.stats.numRecords", "a count")
    _expect(isinstance(stats.get("nullCount") or {}, dict), "add.stats.nullCount", "an object")
    return stats


def _expect(holds: bool, what: str, kind: str) -> None:
    if not holds:
        raise ValueError(f"{what} is not {kind}")


def landed_since(files: Files, table_path: str, version: int, latest: int, operation_id: str) -> int | None:
    """The version after `version` in which an operation landed, or None."""
    for candidate in range(version + 1, latest + 1):
        try:
            actions = read_commit(files, candidate, table_path)
        except FileNotFoundError:
            continue
        if any(a.get("commitInfo", {}).get(OPERATION_ID) == operation_id for a in actions):
            return candidate
    return None
