"""A local disk that can lose its power: records each effect, and shows what would be left after a
cut.

:class:`Effects` records what is done on the real disk. :func:`disk_after` builds the folder that a
cut after the first `n` effects leaves. Two kinds of disk are shown, for both are allowed to a file
system: one loses every name that was not synced, one keeps the names but loses contents that were
not synced.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from spark_mq.delta.actions import LOG_FOLDER
from support.byte_store import Call

__all__ = ["Effects", "disk_after", "left_after"]


class Effect(NamedTuple):
    """One change: a system call, its path, the second path of a link or rename, what was synced."""

    verb: str
    path: str
    target: str = ""
    content: bytes = b""


@dataclass
class Effects:
    """The effects on a disk in order.

    ``skip_sync`` leaves out the syncs of a kind, to show that a test needs them.
    """

    done: list[Effect] = field(default_factory=list)
    skip_sync: str = ""
    lock: threading.RLock = field(default_factory=threading.RLock)

    def record(self, call: Call) -> None:
        """Handle a call of the disk: do it on the real one, and note it. Syncs are only noted."""
        with self.lock:
            if call.verb == "write_new":  # a sync within it comes later
                self._note(call)
                call.run()
                return
            if not call.verb.startswith("sync"):
                call.run()
            self._note(call)

    def _note(self, call: Call) -> None:
        path, *target = (os.path.abspath(arg) for arg in call.args if isinstance(arg, str))
        area = "log" if LOG_FOLDER in path else "data"
        if f"{call.verb}:{area}" != self.skip_sync:
            content = Path(path).read_bytes() if call.verb == "sync_file" else b""
            self.done.append(Effect(call.verb, path, "".join(target), content))


@dataclass
class _Node:
    """A file: its content on the disk, which a sync brings there."""

    durable: bytes | None = None


class _Disk:
    """Names and contents, as they are and as a cut leaves them."""

    def __init__(self) -> None:
        self.now: dict[str, _Node | None] = {}  # path -> file, or None for a folder
        self.durable: dict[str, _Node | None] = {}

    def apply(self, effect: Effect) -> None:
        path, target = effect.path, effect.target
        match effect.verb:
            case "write_new":
                self.now[path] = _Node()
            case "sync_file":
                node = self.now.setdefault(path, _Node())  # perhaps another library wrote it
                node.durable = effect.content
            case "sync_folder":
                self._sync_folder(path)
            case "link":
                self.now[target] = self.now[path]
            case "replace":
                self.now[target] = self.now.pop(path)
            case "unlink":
                self.now.pop(path, None)
            case "makedir":
                self.now[path] = None

    def _sync_folder(self, folder: str) -> None:
        inside = {path for path in {*self.now, *self.durable} if os.path.dirname(path) == folder}
        for path in inside:
            if path in self.now:
                self.durable[path] = self.now[path]
            else:
                del self.durable[path]

    def left(self, keeps_names: bool) -> dict[str, bytes | None]:
        names = {**self.durable, **self.now} if keeps_names else self.durable
        return {path: None if node is None else node.durable or b"" for path, node in names.items()}


def left_after(effects: Effects, count: int, *, keeps_names: bool) -> dict[str, bytes | None]:
    """Return what a cut after `count` effects leaves: the content of each file, None for a
    folder.
    """
    disk = _Disk()
    for effect in effects.done[:count]:
        disk.apply(effect)
    left = disk.left(keeps_names)
    made = {effect.path for effect in effects.done if effect.verb == "makedir"}
    return {path: content for path, content in left.items() if _is_reachable(path, left, made)}


def _is_reachable(path: str, left: dict[str, bytes | None], made: set[str]) -> bool:
    """Whether the folders above a path are left, too."""
    folder = os.path.dirname(path)
    while folder in made:
        if folder not in left:
            return False
        folder = os.path.dirname(folder)
    return True


def disk_after(effects: Effects, count: int, root: Path, into: Path, *, keeps_names: bool) -> Path:
    """Build in `into` what a cut after `count` effects leaves of the folder `root`. Return it."""
    into.mkdir(parents=True)
    for path, content in sorted(left_after(effects, count, keeps_names=keeps_names).items()):
        if path.startswith(f"{root}/"):
            place = into / os.path.relpath(path, root)
            if content is None:
                place.mkdir(exist_ok=True)
            else:
                place.write_bytes(content)
    return into
