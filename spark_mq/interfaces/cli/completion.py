"""Complete queue paths and settings in a shell."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import typer

from spark_mq.ledger.settings import GroupSettings, QueueSettings
from spark_mq.util.setting_fields import settings_of

__all__ = ["complete_queues", "complete_settings"]

_MOST: Final = 1_000  # entries of a folder that are looked at


def complete_queues(incomplete: str) -> list[str]:
    """Return the queues and folders whose path begins so. Object stores are not listed."""
    if "://" in incomplete:
        return []
    paths = list(_folders(incomplete))
    if len(paths) == 1 and paths[0].endswith("/"):
        paths += _folders(paths[0])  # more than one, so the shell adds no blank after the folder
    return sorted(paths)


def _folders(incomplete: str) -> Iterator[str]:
    folder, slash, start = incomplete.rpartition("/")
    within = os.path.expanduser(folder + slash) or "."
    try:
        names = [entry.name for entry, _ in zip(os.scandir(within), range(_MOST), strict=False)]
    except OSError:
        return
    for name in names:
        path = os.path.join(within, name)
        if name.startswith(start) and (start or not name.startswith(".")) and os.path.isdir(path):
            if _is_queue(path):
                yield folder + slash + name
            elif not _is_queue(within):
                yield f"{folder}{slash}{name}/"


def _is_queue(path: str) -> bool:
    return all(os.path.isdir(f"{path}/{table}/_delta_log") for table in ("messages", "leases"))


def complete_settings(context: typer.Context, incomplete: str) -> list[str]:
    """Return the settings that the command may change, each also with its default."""
    command = context.command_path.split()[-2:]
    of_queue, of_group = settings_of(QueueSettings), settings_of(GroupSettings)
    settings = of_group if command[:1] == ["group"] else of_queue
    if command[-1:] == ["create"]:
        settings = {**of_queue, **of_group}
    return [
        f"{name}={value}"
        for name, setting in settings.items()
        if name.startswith(incomplete)
        for value in ("", setting.shown_default)
    ]
