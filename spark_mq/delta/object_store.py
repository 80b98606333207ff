"""Read and write the files under a local or remote root."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from spark_mq.delta.backend import FileInfo, FileInfos
from spark_mq.delta.local_files import LocalBackend
from spark_mq.delta.memory_files import MemoryBackend, is_in_memory
from spark_mq.delta.remote_files import RemoteBackend
from spark_mq.delta.storage_options import PROVIDERS, account_name, endpoint_of, is_in_catalog
from spark_mq.delta.store_errors import DamagedFile, one_line
from spark_mq.errors import InvalidOption
from spark_mq.util.loading import integration
from spark_mq.util.validation import short_repr

__all__ = [
    "FileInfo",
    "ObjectStore",
    "absolute_path",
    "canonical_path",
    "canonical_uri",
    "decode_parquet",
    "is_data_path",
    "join",
]

T = TypeVar("T")
R = TypeVar("R")

_THREADS: Final = 32  # most calls to a store at the same time
_SUPPORTED: Final = (
    "a local path, file, s3, s3a, gs, az, abfs, abfss, adl, azure, uc, or https of an Azure account"
)
_FILE: Final = re.compile(r"^file:(?://(?=/)|(?=/(?!/)))", re.IGNORECASE)
_SCHEME: Final = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):/")
_VARIABLE: Final = re.compile(r"(?<![^/])\$(?:\w+|\{\w+\})(?![^/])")
_SCHEMES: Final = {"aws": "s3", "google": "gs"}  # by provider, of a canonical path
_NO_LOCAL_PATH: Final = re.compile(r"[\[\]^|\\\x00-\x1f\x7f\ud800-\udfff]|%[0-9A-Fa-f]{2}")
_NO_URI: Final = re.compile(r"[\x00-\x1f\x7f?#\ud800-\udfff]|(?<=[^:/])//|/\.\.?(?=/|$)")
# On Azure no folder ends with ".", and a backslash becomes "/".
_NO_URIS: Final = {"azure": re.compile(rf"{_NO_URI.pattern}|\.(?:/|$)|\\|%5[Cc]")}
_PASSWORD: Final = re.compile(r"(?<=://)[^/@]*:[^/]*@")  # Azure's container@account has none
_AZURE: Final = "core.windows.net"
_BLOB: Final = re.compile(
    rf"https://([^/@.?#]+)\.(?:blob|dfs)\.{re.escape(_AZURE)}/([^/?#]+)(.*)", re.I | re.S
)
_NO_NAME: Final = re.compile(r"[\x00-\x1f\x7f]|(?:^|/)\.{0,2}(?:/|$)")


class ObjectStore:
    """Read and write the files under one root. Thread-safe, and picklable except in memory.

    Paths are relative to the root, with "/" between folders. `storage_options` are those of
    delta-rs. `durable` syncs local files and folders to the disk. Raise InvalidOption for an
    unsupported scheme or an invalid storage option.
    """

    def __init__(
        self,
        root: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        durable: bool = True,
    ) -> None:
        self.root = _without_file_scheme(root)
        # Whether each call is cheap and sees all that was written.
        self.is_local = "://" not in self.root or is_in_memory(self.root)
        self.options = dict(storage_options or {})
        self.durable = durable
        self._backend = self._open_backend()
        # What a process shares for a table has this key. All spellings of a root have one.
        self.key = self.root if self.is_local else self._remote_key()

    def __repr__(self) -> str:
        return f"ObjectStore({self.root!r}, durable={self.durable})"

    def now(self) -> float:
        """Return the time in seconds since 1970. In memory it is that of a test's clock."""
        return self._backend.now()

    def _remote_key(self) -> str:
        place = canonical_uri(self.root, self.options)
        scheme = place.partition("://")[0]
        # Two servers may have one bucket, whose tables have nothing in common.
        server = endpoint_of(scheme, self.options) if scheme in PROVIDERS else ""
        return f"{server} {place}"

    def _open_backend(self) -> LocalBackend | MemoryBackend | RemoteBackend:
        if is_in_memory(self.root):
            return MemoryBackend(self.root)
        if self.is_local:
            return LocalBackend(os.path.abspath(self.root), self.durable)
        return RemoteBackend(_checked_uri(self.root, "root"), self.options)

    def __reduce__(self) -> Any:
        if is_in_memory(self.root):
            raise TypeError(f"{self!r} is kept in memory: it cannot be used by another process")
        return _rebuilt, (self.root, self.options, self.durable)

    def child(self, name: str) -> ObjectStore:
        """Return the store of a folder below, with the same options."""
        child = object.__new__(ObjectStore)
        child.__dict__.update(self.__dict__, root=join(self.root, _checked(name)))
        child.key = join(self.key, name.replace("%", "%25"))
        child.options = dict(self.options)
        child._backend = self._backend.child(name)
        return child

    def read(self, path: str) -> bytes:
        """Return the content of a file. Raise FileNotFoundError."""
        return self._backend.read(_checked(path))

    def open(self, path: str) -> Any:
        """Open a file for random access by pyarrow. Raise FileNotFoundError."""
        return self._backend.open(_checked(path))

    def read_parquet(self, path: str, schema: pa.Schema) -> pa.Table:
        """Return a Parquet file in a schema. Raise as :meth:`read` and :func:`decode_parquet`."""
        return decode_parquet(path, self._backend.read(_checked(path)), schema)

    def exists(self, path: str) -> bool:
        return self.stat(path) is not None

    def stat(self, path: str) -> FileInfo | None:
        return self._backend.stat(_checked(path))

    def list(self, folder: str) -> FileInfos:
        """Return the files directly in a folder, sorted by path."""
        return sorted(self._backend.list(_checked_folder(folder)), key=_path_of)

    def iterate(self, folder: str) -> Iterator[FileInfo]:
        """Yield the files directly in a folder, in any order. Local ones need not fit in memory."""
        return self._backend.list(_checked_folder(folder))

    def folders(self, folder: str = "") -> Sequence[str]:
        """Return the names of the folders directly in a folder, sorted."""
        return sorted(self._backend.folders(_checked_folder(folder)))

    def iterate_all(self, folder: str = "") -> Iterator[FileInfo]:
        """Yield the files in a folder and its subfolders, in any order."""
        return self._backend.list_all(_checked_folder(folder))

    def list_all(self, folder: str = "") -> FileInfos:
        """Return the files in a folder and its subfolders, sorted by path."""
        return sorted(self._backend.list_all(_checked_folder(folder)), key=_path_of)

    def write(self, path: str, data: bytes | memoryview, *, sync: bool = True) -> None:
        """Replace a file atomically. Without `sync`, a later `create` makes it durable."""
        self._backend.write(_checked(path), data, sync=sync)

    def create(self, path: str, data: bytes, *, after: Sequence[str] = ()) -> None:
        """Create a file atomically, durable on return, once the unsynced files `after` are.

        Raise FileExistsError if the name exists: in an object store, a retried request may have
        created it. After any other OSError the file may exist nevertheless.
        """
        self._backend.create(_checked(path), data, after=[_checked(name) for name in after])

    def sync(self, path: str) -> None:
        """Make a local file durable that another library has written. Raise FileNotFoundError."""
        if self.durable:
            self._backend.sync(_checked(path))

    def delete(self, path: str) -> None:
        """Delete a file, if it exists."""
        self._backend.delete(_checked(path))

    def delete_many(self, paths: Sequence[str]) -> None:
        """Delete several files, as far as they exist. Some stores need one request for all."""
        self._backend.delete_many([_checked(path) for path in paths])

    def delete_older(self, folder: str, before: float) -> int:
        """Delete the files below a folder that were written before a time. Return how many."""
        old = [file.path for file in self.iterate_all(folder) if file.modified < before]
        old = [path for path in old if is_data_path(path)]  # others can be deleted by hand only
        if old:
            self.delete_many(old)
        return len(old)

    def for_each(self, items: Sequence[T], call: Callable[[T], R]) -> Sequence[R]:
        """Return what a call returns for each item. Over a store they run at the same time."""
        if self.is_local or len(items) < 2:  # the interpreter's lock makes threads slower there
            return [call(item) for item in items]
        with ThreadPoolExecutor(min(_THREADS, len(items))) as pool:
            return tuple(pool.map(call, items))

    def delete_empty_folders(self, names: Iterable[str]) -> None:
        """Delete local folders that hold no file, and then the root. A store has no folders."""
        self._backend.delete_empty_folders([_checked(name) for name in names])

    def delete_stale_temporaries(self, folder: str, older_than_seconds: float) -> int:
        """Delete old temporary files that killed local writers left. Return how many."""
        checked = _checked_folder(folder)
        # Younger files may belong to a running writer.
        return self._backend.delete_stale_temporaries(checked, older_than_seconds)


def decode_parquet(path: str, data: bytes, schema: pa.Schema) -> pa.Table:
    """Return a file's rows, with nulls for missing columns. Raise DamagedFile."""
    try:
        parquet = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        names = [name for name in parquet.schema_arrow.names if name in schema.names]
        # A thread of pyarrow that frees Python's bytes at the end of the process would abort it.
        table = parquet.read(names, use_threads=False)
        table = pa.table([_column(table, field) for field in schema], schema=schema)
        table.validate(full=True)  # or a text that is no UTF-8 would fail its first reader
    except MemoryError:  # pyarrow's is an ArrowException, too
        raise
    except (pa.ArrowException, OSError, ValueError) as error:  # the bytes are read already
        raise DamagedFile(f"{path} is damaged: {one_line(error)}") from error
    return table


def join(root: str, name: str) -> str:
    return f"{root.rstrip('/')}/{name}"


def absolute_path(path: Any, option: str = "path") -> str:
    """Return an absolute local path, or a URI without a final slash. Raise InvalidOption."""
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise InvalidOption(
            f"{option}={short_repr(path)} is not a path: give text or a path object",
            option=option,
            value=path,
        )
    text = _to_abfss(_without_file_scheme(path))
    if not text.strip():
        raise InvalidOption(
            f"{option} is empty. Give a folder, or '.' for the working directory",
            option=option,
            value=text,
        )
    if variable := _VARIABLE.search(text):
        raise InvalidOption(
            f"{option}={text!r} names the environment variable {variable[0]}, which only a shell "
            f"replaces. Give its value: os.path.expandvars({text!r}) in Python, or double quotes "
            "in a shell",
            option=option,
            value=text,
        )
    if _SCHEME.match(text):
        return _checked_uri(text, option).rstrip("/")
    home = os.path.expanduser(text)
    if home.startswith("~"):
        raise InvalidOption(
            f"{option}={text!r} names the home of a user that this machine lacks. Give the whole "
            f"path, or {'./' + text!r} for a folder of that name",
            option=option,
            value=text,
        )
    local = os.path.abspath(home)  # other processes have another working directory
    if wrong := _NO_LOCAL_PATH.search(local):
        raise InvalidOption(
            f"Using {option}={local!r} failed: delta-rs cannot open a path with {wrong[0]!r}. "
            "Use another folder, because delta-rs creates the tables.",
            option=option,
            value=local,
        )
    return local


def _without_file_scheme(path: str | os.PathLike[str]) -> str:
    """Return a path, or that of a file URI, in which names may be percent-encoded."""
    text = os.fspath(path)
    rest = _FILE.sub("", text)
    return rest if rest == text else unquote(rest)


def _to_abfss(text: str) -> str:
    """Return the https URL of a blob as a URI that delta-rs knows, too. Keep any other text."""
    match = _BLOB.fullmatch(text)
    return f"abfss://{match[2]}@{match[1].lower()}.dfs.{_AZURE}{match[3]}" if match else text


def canonical_path(path: str, options: Mapping[str, str] | None = None) -> str:
    """Return one text for all names of a place. Only compare it: libraries need the given name."""
    return canonical_uri(path, options) if "://" in path else os.path.realpath(path)


def canonical_uri(path: str, options: Mapping[str, str] | None = None) -> str:
    """Return one text for all spellings of a URI, as :func:`canonical_path`, or a local path."""
    scheme, separator, rest = path.partition("://")
    if not separator:
        return path
    scheme, (authority, _, folder) = scheme.lower(), rest.partition("/")
    provider = PROVIDERS.get(scheme)
    if provider is None:
        return f"{scheme}://{rest}".rstrip("/")
    if provider == "azure":
        account = None if "@" in authority else account_name(scheme, options or {}, os.environ)
        scheme, authority = _azure_authority(authority, account)
    # A root is decoded when it is opened. Only "%" stays encoded, so that this is a root, too.
    folder = unquote(folder).replace("%", "%25")
    return f"{_SCHEMES.get(provider, scheme)}://{authority}/{folder}".rstrip("/")


def _azure_authority(authority: str, account: str | None) -> tuple[str, str]:
    """Return scheme and authority for all URIs of a container. `account` is of the options."""
    container, at, host = authority.partition("@")
    if at:
        return "abfs", f"{container}@{host.lower().replace('.blob.', '.dfs.', 1)}"
    if account:
        return "abfs", f"{container}@{account.lower()}.dfs.{_AZURE}"
    return "az", container


def is_data_path(path: str) -> bool:
    """Return whether a commit's path names a file below its table."""
    # Delta allows absolute paths, as shallow clones have them. They lead to files of others.
    inside = not _NO_NAME.search(path) and not _SCHEME.match(path)
    return inside and not path.startswith("_delta_log/")


def _checked_uri(uri: str, option: str) -> str:
    match = _SCHEME.match(uri)
    scheme = match[1].lower() if match else ""
    shown = _PASSWORD.sub("", uri.partition("?")[0])
    if _PASSWORD.search(uri):
        raise InvalidOption(
            f"Using {option}={shown!r} failed: a root must not have a user and a password before "
            "its bucket. Give credentials by storage_options.",
            option=option,
        )
    if is_in_catalog(uri):
        integration("catalog").parse_name(uri, option)
    elif scheme not in PROVIDERS or not re.match(r"^[^:]+://[^/]", uri):
        raise InvalidOption(
            f"Using {option}={shown!r} failed: the scheme {scheme!r} is not supported, or the "
            f"bucket is missing. Use one of these: {_SUPPORTED}. hdfs is not supported.",
            option=option,
        )
    if wrong := _NO_URIS.get(PROVIDERS.get(scheme, ""), _NO_URI).search(uri.rstrip("/")):
        raise InvalidOption(
            f"Using {option}={shown!r} failed: a root must not have {wrong[0]!r} in its path. "
            "Use another folder, or remove what follows the path.",
            option=option,
        )
    return uri


def _checked(path: str) -> str:
    # A damaged log must not make a reader leave the root.
    if _NO_NAME.search(path):
        raise FileNotFoundError(errno.EINVAL, "The path is not a file below the root", path)
    return path


def _checked_folder(folder: str) -> str:
    return _checked(folder) if folder else ""


def _column(table: pa.Table, field: pa.Field) -> Any:
    if field.name in table.schema.names:
        column = table[field.name]
        return column if column.type == field.type else column.cast(field.type)
    return pa.nulls(table.num_rows, field.type)


def _path_of(info: FileInfo) -> str:
    return info.path


def _rebuilt(root: str, options: Mapping[str, str], durable: bool) -> ObjectStore:
    return ObjectStore(root, options, durable=durable)
