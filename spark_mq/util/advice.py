"""Name commands in texts that advise them beside the call in Python."""

from __future__ import annotations

import shlex


def shell_command(*words: str) -> str:
    """Return a command of ``spark-mq`` as a text names it, quoted for a shell."""
    return f"`spark-mq {shlex.join(words)}`"
