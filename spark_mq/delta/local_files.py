"""Read and write files on a local disk by system calls.

A new file becomes visible under its final name only when its content is complete. A durable write
returns only after the disk has the content and the folder entry.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Final, TypeAlias

import pyarrow as pa

from spark_mq.delta.backend import Backend, FileInfo
from spark_mq.util.process import call_in_forks

_TEMPORARY: Final = re.compile(r"\.spark_mq-[0-9a-f]{32}\.tmp")
_NO_LINKS: Final = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EOPNOTSUPP}
_NO_FOLDER_SYNC: Final = {errno.EINVAL, errno.ENOTSUP}
_Syncs: TypeAlias = list[Future[None]]
_SYNC_THREADS: Final = 8
# Errors of a name without a file. A commit may name what no disk can hold.
_NO_FILE: Final = {errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG}


class LocalFiles:
    """Change the local disk, one group of system calls a method. Tests replace it."""

    def write_new(self, path: str, data: bytes | memoryview, sync: bool) -> None:
        """Create a file with this content. Raise FileExistsError if the name exists."""
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            rest = memoryview(data).cast("B")
            while rest:
                rest = rest[os.write(file, rest) :]
            if sync:
                self.sync_file(file, path)
        finally:
            os.close(file)

    def sync_file(self, file: int, path: str) -> None:
        os.fsync(file)

    def sync_folder(self, path: str) -> None:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        except OSError as error:
            # Some network file systems cannot sync a folder at all.
            if error.errno not in _NO_FOLDER_SYNC:
                raise
        finally:
            os.close(folder)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def replace(self, source: str, target: str) -> None:
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def makedir(self, path: str) -> None:
        os.mkdir(path)


class LocalBackend(Backend):
    """Do an :class:`ObjectStore`'s work in one folder."""

    now = staticmethod(time.time)

    def __init__(self, root: str, durable: bool) -> None:
        self.root = root.rstrip("/")
        self._durable = durable
        self._files = LocalFiles()
        self._synced: set[str] = set()  # folders whose own entries this process has synced

    def child(self, name: str) -> LocalBackend:
        return LocalBackend(self._full(name), self._durable)

    def read(self, path: str) -> bytes:
        """Return the content of a file. A data file behind a link that leads out is missing."""
        full = self._full(path)
        if not path.startswith("_delta_log/") and self._leads_out(path):
            raise FileNotFoundError(errno.ENOENT, "a link leads out of the table", full)
        with _no_file_is_missing(full), io.FileIO(full) as file:
            return file.readall()

    def open(self, path: str) -> Any:
        full = self._full(path)
        if self._leads_out(path):
            raise FileNotFoundError(errno.ENOENT, "a link leads out of the table", full)
        with _no_file_is_missing(full):
            return pa.OSFile(full)

    def stat(self, path: str) -> FileInfo | None:
        try:  # waiting workers come here 60 times a second, so no context manager
            status = os.stat(self._full(path))
        except OSError as error:
            if error.errno not in _NO_FILE:
                raise
            return None
        return _info(path, status) if _is_file(status) else None

    def list(self, folder: str) -> Iterator[FileInfo]:
        for entry in self._entries(folder):
            if not entry.is_dir(follow_symlinks=False):
                yield from self._found(folder, entry)

    def folders(self, folder: str) -> Sequence[str]:
        return [e.name for e in self._entries(folder) if e.is_dir(follow_symlinks=False)]

    def delete_empty_folders(self, names: Iterable[str]) -> None:
        for name in names:
            if self._leads_out(name):
                continue
            for folder, _, _ in os.walk(self._full(name), topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
        with contextlib.suppress(OSError):
            os.rmdir(self.root)

    def list_all(self, folder: str) -> Iterator[FileInfo]:
        for entry in self._entries(folder):
            if entry.is_dir(follow_symlinks=False):
                yield from self.list_all(_below(folder, entry.name))
            else:
                yield from self._found(folder, entry)

    def write(self, path: str, data: bytes | memoryview, *, sync: bool = True) -> None:
        full, sync = self._full(path), sync and self._durable
        folder, temporary = self._write_temporary(full, data, sync)
        try:
            self._files.replace(temporary, full)
        except OSError:
            self._withdraw(temporary)
            raise
        if sync:
            self._files.sync_folder(folder)

    def create(self, path: str, data: bytes | memoryview, *, after: Sequence[str] = ()) -> None:
        full = self._full(path)
        syncs = self._start_syncs(after) if self._durable else []
        try:
            folder, temporary = self._write_temporary(full, data, self._durable)
        finally:
            wait(syncs)
        for sync in syncs:
            if error := sync.exception():
                self._withdraw(temporary)
                raise error
        try:
            self._files.link(temporary, full)
        except OSError as error:
            self._withdraw(temporary)
            raise _explained_link(error, full) from error
        self._withdraw(temporary)
        if self._durable:
            self._files.sync_folder(folder)

    def sync(self, path: str) -> None:
        full = self._full(path)
        self._sync_content(full)
        self._files.sync_folder(os.path.dirname(full))

    def _sync_content(self, full: str) -> None:
        file = os.open(full, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._files.sync_file(file, full)
        finally:
            os.close(file)

    def _start_syncs(self, paths: Sequence[str]) -> _Syncs:
        """Start to sync files and their folders, all at the same time."""
        fulls = [self._full(path) for path in paths]
        folders = {os.path.dirname(full) for full in fulls}
        return [
            *(_in_background(self._sync_content, full) for full in fulls),
            *(_in_background(self._files.sync_folder, folder) for folder in folders),
        ]

    def delete(self, path: str) -> None:
        if self._leads_out(path.rpartition("/")[0]):
            return
        with _ignore_no_file():
            self._files.unlink(self._full(path))

    def delete_stale_temporaries(self, folder: str, older_than_seconds: float) -> int:
        limit, deleted = time.time() - older_than_seconds, 0
        for entry in self._entries(folder, temporary=True):
            with contextlib.suppress(FileNotFoundError):
                if entry.stat(follow_symlinks=False).st_mtime <= limit:
                    self._files.unlink(entry.path)
                    deleted += 1
        return deleted

    def _full(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root or "/"

    def _leads_out(self, path: str) -> bool:
        """Return whether a symbolic link below the root leads out of it."""
        at = self.root
        for name in path.split("/") if path else ():
            at = f"{at}/{name}"
            if os.path.islink(at):
                root = os.path.realpath(self.root)
                return os.path.commonpath([root, os.path.realpath(self._full(path))]) != root
            if not os.path.exists(at):
                return False  # so there is nothing below
        return False

    def _entries(self, folder: str, temporary: bool = False) -> Iterator[os.DirEntry[str]]:
        # Not as a list, because a folder may have a million files.
        with _ignore_no_file(), os.scandir(self._full(folder)) as entries:
            for entry in entries:
                if (_TEMPORARY.fullmatch(entry.name) is not None) == temporary:
                    yield entry

    def _found(self, folder: str, entry: os.DirEntry[str]) -> Iterator[FileInfo]:
        # Another process may delete the file between the listing and this call.
        with _ignore_no_file():
            status = entry.stat()
            if _is_file(status):
                yield _info(_below(folder, entry.name), status)

    def _write_temporary(self, full: str, data: bytes | memoryview, sync: bool) -> tuple[str, str]:
        folder = os.path.dirname(full)
        temporary = f"{folder}/.spark_mq-{uuid.uuid4().hex}.tmp"
        if self._durable and folder not in self._synced:
            self._make_folder(folder)
        try:
            self._write_new(temporary, data, sync)
        except FileNotFoundError:
            self._make_folder(folder)
            self._write_new(temporary, data, sync)
        return folder, temporary

    def _make_folder(self, folder: str) -> None:
        """Create missing folders. If durable, wait until the disk has their entries."""
        parent = os.path.dirname(folder)
        missing = not os.path.isdir(folder)
        if missing and not os.path.isdir(parent):
            self._make_folder(parent)
        if missing:
            with contextlib.suppress(FileExistsError):
                self._files.makedir(folder)
        if self._durable:
            self._sync_entry_of(folder, missing)

    def _sync_entry_of(self, folder: str, made: bool) -> None:
        # Another process may have made the folder and not yet synced it. So do so here, too.
        inside = folder.startswith(f"{self.root}/")
        try:
            self._files.sync_folder(os.path.dirname(folder) or "/")
        except PermissionError:
            if made or inside:
                raise
        if inside and os.path.dirname(folder) not in self._synced:
            self._sync_entry_of(os.path.dirname(folder), made=False)
        self._synced.add(folder)

    def _write_new(self, temporary: str, data: bytes | memoryview, sync: bool) -> None:
        try:
            self._files.write_new(temporary, data, sync)
        except FileNotFoundError:
            raise
        except OSError:
            self._withdraw(temporary)
            raise

    def _withdraw(self, temporary: str) -> None:
        # A temporary file that remains is harmless, and the sweep deletes it.
        with contextlib.suppress(OSError):
            self._files.unlink(temporary)


_syncing: list[ThreadPoolExecutor] = []  # the threads that wait for the disk, made on demand
call_in_forks(_syncing.clear)  # a child has no threads


def _in_background(call: Callable[[str], None], path: str) -> Future[None]:
    """Run a call in another thread, or at the end of the interpreter in this one."""
    try:
        if not _syncing:
            _syncing.append(ThreadPoolExecutor(_SYNC_THREADS, "spark_mq sync"))
        return _syncing[0].submit(call, path)
    except RuntimeError:  # the interpreter ends, so no thread starts
        done: Future[None] = Future()
        try:
            call(path)
            done.set_result(None)
        except OSError as error:
            done.set_exception(error)
        return done


def _below(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _is_file(status: os.stat_result) -> bool:
    return (status.st_mode & 0o170000) == 0o100000


def _info(path: str, status: os.stat_result) -> FileInfo:
    etag = f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"
    return FileInfo(path, status.st_size, status.st_mtime_ns / 1e9, etag)


@contextlib.contextmanager
def _ignore_no_file() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise


@contextlib.contextmanager
def _no_file_is_missing(full: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # pyarrow's error for a folder has no number.
        if error.errno in _NO_FILE or os.path.isdir(full):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), full) from error
        raise


def _explained_link(error: OSError, full: str) -> OSError:
    if isinstance(error, FileExistsError):
        return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), full)
    if error.errno in _NO_LINKS:
        text = "the file system refuses hard links. Use a folder on a disk that has them"
        return OSError(error.errno, f"Creating the file failed: {text}", full)
    return error
