"""A local disk that can lose its power: records each effect, and shows what would be left after a
cut.

:class:`RecordedFiles` does everything on the real disk and records it. :func:`disk_after` builds
the folder that a cut after the first `n` effects leaves. Two kinds of disk are shown, for both are
allowed to a file system: one loses every name that was not synced, one keeps the names but loses
contents that were not synced.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

from spark_mq.delta.local_files import LocalFiles

__all__ = ["Effects", "RecordedFiles", "disk_after", "left_after"]


@dataclass(frozen=True, slots=True)
class Effect:
    """One change: its kind, the path, the second path of a link or rename, the content."""

    kind: str
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

    def note(self, kind: str, path: str, target: str = "", content: bytes = b"") -> None:
        if kind == self.skip_sync or (self.skip_sync and f"{kind}:{_area(path)}" == self.skip_sync):
            return
        self.done.append(
            Effect(kind, os.path.abspath(path), os.path.abspath(target) if target else "", content)
        )


def _area(path: str) -> str:
    """Which part of a table a path belongs to."""
    return "log" if "_delta_log" in path else "data"


class RecordedFiles(LocalFiles):
    """The real disk, with a record of what was done to it."""

    def __init__(self, effects: Effects) -> None:
        self.effects = effects

    def write_new(self, path: str, data: bytes | memoryview, sync: bool) -> None:
        with self.effects.lock:
            self.effects.note("write", path, content=bytes(data))
            super().write_new(path, data, sync)

    def sync_file(self, file: int, path: str) -> None:
        with self.effects.lock:
            self.effects.note("sync_file", path, content=Path(path).read_bytes())

    def sync_folder(self, path: str) -> None:
        with self.effects.lock:
            self.effects.note("sync_folder", path)

    def link(self, source: str, target: str) -> None:
        with self.effects.lock:
            super().link(source, target)
            self.effects.note("link", source, target)

    def replace(self, source: str, target: str) -> None:
        with self.effects.lock:
            super().replace(source, target)
            self.effects.note("replace", source, target)

    def unlink(self, path: str) -> None:
        with self.effects.lock:
            super().unlink(path)
            self.effects.note("unlink", path)

    def makedir(self, path: str) -> None:
        with self.effects.lock:
            super().makedir(path)
            self.effects.note("makedir", path)


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
        match effect.kind:
            case "write":
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
    made = {effect.path for effect in effects.done if effect.kind == "makedir"}
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
