"""Define the calls that texts advise, each with its command.

The text of an error or a log line names the call of Python. The error has the pair in ``advice``,
and the log record has it as an argument, so the command line can show the command. There {queue}
and {group} stand for what the running command is about.
"""

from __future__ import annotations

import shlex
from typing import Final, NamedTuple

__all__ = [
    "ADD_SCHEDULE",
    "CONFIGURE_GROUP",
    "CONFIGURE_QUEUE",
    "CREATE_QUEUE",
    "CREATE_WITH_LANES",
    "ENSURE_GROUP",
    "FORCE",
    "LIST_LANES",
    "NAME_MESSAGES",
    "OPEN_QUEUE",
    "RAISE_CAP",
    "SWEEP",
    "TO_ALL_GROUPS",
    "UNBLOCK_GROUP",
    "USE_AS_IT_IS",
    "Advice",
    "drop_group",
    "resume_group",
    "set_dedup_window",
]


class Advice(NamedTuple):
    """A Python call in a text, and the same as a command with {queue} and {group}."""

    call: str
    command: str

    def __str__(self) -> str:
        return self.call


CREATE_QUEUE: Final = Advice("Queue.create", "`spark-mq queue create {queue}`")
OPEN_QUEUE: Final = Advice(
    "Use Queue.open, or exist_ok=True", "Use it as it is, or give --exist-ok"
)
USE_AS_IT_IS: Final = Advice(
    "Use Queue.open, or exist_ok=True without these settings",
    "Use it as it is, or give --exist-ok without these settings",
)
CREATE_WITH_LANES: Final = Advice(
    "Create a queue with lanes=64", "Create a queue with `spark-mq queue create PATH --lanes 64`"
)
LIST_LANES: Final = Advice("group.lanes() lists", "`spark-mq lanes -q {queue} -g {group}` lists")
CONFIGURE_QUEUE: Final = Advice("queue.configure", "`spark-mq queue configure {queue}`")
CONFIGURE_GROUP: Final = Advice("group.configure", "`spark-mq group configure {group} -q {queue}`")
ADD_SCHEDULE: Final = Advice("queue.schedule(...)", "`spark-mq schedule add -q {queue}`")
ENSURE_GROUP: Final = Advice(
    "The first lease, or ensure(), creates a group",
    "`spark-mq group create {group} -q {queue}` creates a group, and so does the first lease",
)
RAISE_CAP: Final = Advice(
    "configure(...) the cap", "raise the cap with `spark-mq group configure {group} -q {queue}`"
)
UNBLOCK_GROUP: Final = Advice("unblock(...)", "`spark-mq group unblock {group} -q {queue}`")
SWEEP: Final = Advice("queue.sweep()", "`spark-mq sweep -q {queue}`")
TO_ALL_GROUPS: Final = Advice("to_all_groups=True", "--all-groups")
FORCE: Final = Advice("force=True", "--force")
NAME_MESSAGES: Final = Advice("sequences, message_id or key", "SEQUENCES, --message-id and --key")


def drop_group(name: str) -> Advice:
    return Advice(
        f"Queue.drop_group({name!r})", f"`spark-mq group drop {shlex.quote(name)} -q {{queue}}`"
    )


def resume_group(name: str, path: str) -> Advice:
    command = f"run `spark-mq group resume {shlex.quote(name)} -q {shlex.quote(path)}`"
    return Advice("call resume()", command)


def set_dedup_window(path: str) -> Advice:
    command = f"`spark-mq queue configure {shlex.quote(path)} --set dedup_window=1h`"
    return Advice("queue.configure(dedup_window='1h')", command)
