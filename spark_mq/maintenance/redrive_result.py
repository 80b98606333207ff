"""Say what a redrive has published, and for which groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from spark_mq.util.records import Record, object_html, table_html
from spark_mq.util.show import show_count, show_number, show_some

_MAX_NAMED: Final = 10  # groups in a text


@dataclass(frozen=True, slots=True)
class RedriveResult(Record):
    """The result of a redrive, or of a dry run.

    ``messages`` is the number of letters. ``table`` has the letters of a dry run, with the columns
    of ``redrive.COLUMNS``, and is None after a redrive. With a transform, it has what becomes of
    them in ``new_key``, ``new_value``, ``new_headers`` and ``new_priority``, or the reason in
    ``transform_error``. ``failed`` counts the letters that the transform fails for, which stay
    letters, and ``failures`` counts them by the shape of that reason.

    ``groups`` counts the messages by the group that alone gets them. It is empty if all groups do,
    or if another queue gets them. ``without_group`` counts the letters that stay because their
    group does not exist, by its name, which is empty if a letter does not say it.
    """

    messages: int
    table: pa.Table | None = None
    failed: int = 0
    failures: Mapping[str, int] = field(default_factory=dict, hash=False)
    groups: Mapping[str, int] = field(default_factory=dict, hash=False)
    without_group: Mapping[str, int] = field(default_factory=dict, hash=False)

    @property
    def destination(self) -> str:
        """Return how many messages go to which group, such as "2 to group mail"."""
        parts = [f"{show_number(n)} to group {name}" for name, n in self.groups.items()]
        return show_some(parts, _MAX_NAMED)

    @property
    def staying(self) -> str:
        """Return which letters stay because their group does not exist, or an empty text."""
        if not self.without_group:
            return ""
        parts = [
            f"{name or 'unknown'} ({show_number(n)})" for name, n in self.without_group.items()
        ]
        letters = show_count(sum(self.without_group.values()), "letter")
        return f"{letters} of groups that do not exist stay: {show_some(parts, _MAX_NAMED)}"

    def to_arrow(self) -> pa.Table:
        """Return the letters of a dry run, or the numbers in a table of one row."""
        if self.table is not None:
            return self.table
        return pa.table({"messages": [self.messages], "failed": [self.failed]})

    def _repr_html_(self) -> str:
        what = "redriven" if self.table is None else "to redrive"
        title = f"{show_count(self.messages, 'message')} {what}"
        if self.table is None:
            own = {"messages": self.messages, "failed": self.failed, "groups": dict(self.groups)}
            return object_html(own | {"without_group": dict(self.without_group)}, title)
        return table_html(self.table, title)
