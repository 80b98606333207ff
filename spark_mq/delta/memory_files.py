"""Keep files in memory, for tests of code that uses a queue."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import count
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

import pyarrow as pa

from spark_mq.delta.backend import Backend, FileInfo

_SCHEME: Final = "memory://"


class _File(NamedTuple):
    data: bytes
    modified: float
    etag: str


class MemoryFiles:
    """The files below one root, such as ``memory://5d0e``, as long as it or a store is in use."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self.root = f"{_SCHEME}{uuid.uuid4().hex[:12]}"
        self.clock = clock
        # By path. Each change and each copy is one operation of the dict, so it needs no lock.
        self.held: dict[str, _File] = {}
        _roots[self.root] = self


_versions = count()
_roots: WeakValueDictionary[str, MemoryFiles] = WeakValueDictionary()


def is_in_memory(path: str) -> bool:
    return path.startswith(_SCHEME)


class MemoryBackend(Backend):
    """Do an :class:`ObjectStore`'s work in memory, at once and without a copy."""

    def __init__(self, root: str) -> None:
        name, _, self._prefix = root.removeprefix(_SCHEME).partition("/")
        try:
            self._files = _roots[_SCHEME + name]
        except KeyError:
            text = "A queue in memory exists in one process, as long as it is in use"
            raise FileNotFoundError(errno.ENOENT, text, root) from None

    def child(self, name: str) -> MemoryBackend:
        child = object.__new__(MemoryBackend)
        child._files, child._prefix = self._files, self._full(name)
        return child

    def now(self) -> float:
        return max(0.0, self._files.clock().timestamp())  # no commit is from before 1970

    def read(self, path: str) -> bytes:
        try:
            return self._files.held[self._full(path)].data
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None

    def open(self, path: str) -> Any:
        return pa.BufferReader(self.read(path))

    def stat(self, path: str) -> FileInfo | None:
        file = self._files.held.get(self._full(path))
        return None if file is None else FileInfo(path, len(file.data), file.modified, file.etag)

    def list(self, folder: str) -> Iterator[FileInfo]:
        return (info for info in self.list_all(folder) if info.path.rpartition("/")[0] == folder)

    def folders(self, folder: str) -> Sequence[str]:
        start = f"{folder}/" if folder else ""
        rests = [info.path[len(start) :] for info in self.list_all(folder)]
        return list({rest.partition("/")[0] for rest in rests if "/" in rest})

    def list_all(self, folder: str) -> Iterator[FileInfo]:
        start, own = self._full(folder), self._full("")
        start, skipped = f"{start}/" if start else "", len(own) + 1 if own else 0
        # A list of the items is not one operation: another thread may run while it grows.
        for path, file in self._files.held.copy().items():
            if path.startswith(start):
                yield FileInfo(path[skipped:], len(file.data), file.modified, file.etag)

    def write(self, path: str, data: bytes | memoryview, *, sync: bool = True) -> None:
        self._files.held[self._full(path)] = self._file(data)

    def create(self, path: str, data: bytes | memoryview, *, after: Sequence[str] = ()) -> None:
        file = self._file(data)
        if self._files.held.setdefault(self._full(path), file) is not file:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)

    def sync(self, path: str) -> None:
        self.read(path)  # raises if it is missing

    def delete(self, path: str) -> None:
        self._files.held.pop(self._full(path), None)

    def _full(self, path: str) -> str:
        return "/".join(part for part in (self._prefix, path) if part)

    def _file(self, data: bytes | memoryview) -> _File:
        whole = data if isinstance(data, bytes) else bytes(data)
        return _File(whole, self.now(), f"{next(_versions):x}")
