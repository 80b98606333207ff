"""Print settings as a table that marks changed ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from spark_mq.cli.options import OutputFormat
from spark_mq.cli.output import emit_one, make_cell
from spark_mq.operations.public_settings import GroupSettings, QueueSettings

__all__ = ["emit_settings"]

_DEFAULTS = "group"  # the setting of a queue that holds the defaults of its groups


def emit_settings(
    names: Mapping[str, Any],
    before: GroupSettings | QueueSettings,
    after: GroupSettings | QueueSettings,
    output: OutputFormat,
) -> None:
    """Print settings. JSON has the new ones, a table shows a changed one as ``old -> new``."""
    if output is OutputFormat.json:
        emit_one({**names, **asdict(after)}, output)
        return
    emit_one({**names, **dict(_shown(asdict(before), asdict(after)))}, output)


def _shown(
    before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield each setting with its text, the defaults of groups last, one by one."""
    for name, value in after.items():
        if name != _DEFAULTS:
            old, new = _cell(before[name]), _cell(value)
            yield prefix + name, new if old == new else f"{old} -> {new}"
    if _DEFAULTS in after:
        yield from _shown(before[_DEFAULTS], after[_DEFAULTS], f"{_DEFAULTS}.")


def _cell(value: Any) -> str:
    return make_cell((", ".join(value) or None) if isinstance(value, tuple) else value)
