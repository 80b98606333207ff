"""Access files in an object store by obstore, which no other module imports."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote, urlsplit

import obstore
import pyarrow as pa
from obstore import exceptions, store

from spark_mq.delta.backend import Backend, FileInfo
from spark_mq.delta.storage_options import PROVIDERS, is_in_catalog, is_secret, store_options
from spark_mq.errors import InvalidOption
from spark_mq.util.loading import integration
from spark_mq.util.process import ForkGuard

_T = TypeVar("_T")
_STORES: Final[dict[str, Any]] = {
    "aws": store.S3Store, "azure": store.AzureStore, "google": store.GCSStore,
}  # fmt: skip
# Bytes of a file's first request, in which a footer or a small file fits. On S3 they take some
# milliseconds, and another request takes 30.
_TAIL: Final = 2**20

# Bytes of one request that writes. A smaller file takes one request.
_PART: Final = 16 * 1024 * 1024

_MOST: Final = 1024  # length of a name that S3, Google and Azure take: bytes, on Azure characters

_REFUSED: Final = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
_EXISTS: Final = (exceptions.AlreadyExistsError, exceptions.PreconditionError)
_KINDS: Final[tuple[tuple[Any, type[OSError], int], ...]] = (
    (FileNotFoundError, FileNotFoundError, errno.ENOENT),
    (_EXISTS, FileExistsError, errno.EEXIST),
    (_REFUSED, PermissionError, errno.EACCES),
    (Exception, OSError, errno.EIO),
)
_DENIED: Final = re.compile(r"status code: 40[13]\b")
# Another request for the name or its folder was in the way, so the store did nothing. Azure answers
# the same if a name exists.
_IN_THE_WAY: Final = re.compile(r"status code: 409\b")
_PAUSES: Final = (0.05, 0.1, 0.2, 0.4, 0.8)  # seconds before the request is repeated
_NO_TAIL: Final = re.compile(r"status code: 416\b|non-partial response")
_QUERY: Final = re.compile(r"(\w+://[^\s?\"'<>]*)\?[^\s\"'<>)]*")
_USER: Final = re.compile(r"(\w+://)[^\s/@\"'<>]*@")
_SIGNED: Final = re.compile(
    r"<(AWSAccessKeyId|StringToSign\w*|Signature\w*|CanonicalRequest\w*"
    r"|AuthenticationErrorDetail|X-Amz-[\w-]+)>.*?</\1>|Signature=[\w%+/=-]+",
    re.S,
)


class RemoteBackend(Backend):
    """Do an :class:`ObjectStore`'s work under one prefix of a bucket."""

    now = staticmethod(time.time)

    def __init__(self, root: str, options: Mapping[str, str]) -> None:
        self._credentials: Any = None  # what gives current ones, if they expire
        if is_in_catalog(root):
            located = integration("catalog").locate(root, options, os.environ)
            root, self._credentials = located.url, located.credentials
        parts = urlsplit(root)
        self._secrets = _secrets(options)
        # Decoded, because delta-rs decodes the path of a root, too.
        self._prefix = unquote(parts.path).strip("/")
        self._store = _open_store(
            f"{parts.scheme}://{parts.netloc}", options, self._secrets, self._credentials
        )
        self._is_azure = PROVIDERS[parts.scheme.lower()] == "azure"
        self._place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    def child(self, name: str) -> RemoteBackend:
        child = object.__new__(RemoteBackend)
        child.__dict__.update(self.__dict__, _prefix=self._full(name))
        return child

    def read(self, path: str) -> bytes:
        return self._call(path, lambda s, full: obstore.get(s, full).bytes().to_bytes())

    def open(self, path: str) -> Any:
        return pa.PythonFile(_RangeReader(self, path), mode="r")

    def stat(self, path: str) -> FileInfo | None:
        try:
            return self._info(self._call(path, obstore.head))
        except FileNotFoundError:
            return None

    def list(self, folder: str) -> Iterator[FileInfo]:
        try:
            listing = self._call(
                folder, lambda s, full: obstore.list_with_delimiter(s, full or None)
            )
        except FileNotFoundError:
            return iter(())
        return (self._info(meta) for meta in listing["objects"])

    def folders(self, folder: str) -> Sequence[str]:
        listing = self._call(folder, lambda s, full: obstore.list_with_delimiter(s, full or None))
        return [prefix.rstrip("/").rpartition("/")[2] for prefix in listing["common_prefixes"]]

    def list_all(self, folder: str) -> Iterator[FileInfo]:
        objects = self._call(folder, lambda s, full: obstore.list(s, full or None).collect())
        return (self._info(meta) for meta in objects)

    def write(self, path: str, data: bytes | memoryview, *, sync: bool = True) -> None:
        view = _bytes_of(data)
        self._call(path, lambda s, full: obstore.put(s, full, view, chunk_size=_PART))

    def create(self, path: str, data: bytes | memoryview, *, after: Sequence[str] = ()) -> None:
        view = _bytes_of(data)
        self._call(path, lambda s, full: obstore.put(s, full, view, mode="create"))

    def delete(self, path: str) -> None:
        try:
            self._call(path, obstore.delete)
        except FileNotFoundError:
            return

    def delete_many(self, paths: Sequence[str]) -> None:
        if paths:
            full = [self._full(path) for path in paths]  # S3 takes 1,000 with one request
            with contextlib.suppress(FileNotFoundError):
                self._call(paths[0], lambda s, _: obstore.delete(s, full))

    def tail(self, path: str) -> tuple[int, bytes]:
        """Return the size of a file and its last bytes, by one request if possible."""

        def last(s: Any, full: str) -> tuple[int, bytes]:
            answer = obstore.get(s, full, options={"range": {"suffix": _TAIL}})
            return answer.meta["size"], answer.bytes().to_bytes()

        try:
            return self._call(path, last)
        except OSError as error:
            # Azure has no suffix ranges, and S3 refuses them for an empty file.
            if not _has_no_tail(error):
                raise
            return self._call(path, obstore.head)["size"], b""

    def range(self, path: str, start: int, length: int) -> bytes:
        return self._call(
            path,
            lambda s, full: obstore.get_range(s, full, start=start, length=length).to_bytes(),
        )

    def _full(self, path: str) -> str:
        return "/".join(part for part in (self._prefix, path) if part)

    def _info(self, meta: Any) -> FileInfo:
        path = meta["path"][len(self._prefix) :].lstrip("/")
        tag = (meta["e_tag"] or "").strip('"') or None  # Azure quotes it, but not in listings
        return FileInfo(path, meta["size"], meta["last_modified"].timestamp(), tag)

    def _check_name(self, full: str) -> None:
        """Raise FileNotFoundError if the store cannot have this name."""
        length = len(full) if self._is_azure else len(full.encode())
        if length > _MOST:
            number, text = errno.ENAMETOOLONG, f"no names of more than {_MOST} bytes"
        elif self._is_azure and "\\" in full:  # it would create another name, with "/"
            number, text = errno.EINVAL, "no names with a backslash"
        else:
            return
        raise FileNotFoundError(number, f"The store has {text}", f"{self._place}/{full}")

    def _call(self, path: str, function: Callable[[Any, str], _T]) -> _T:
        """Call obstore. Raise its errors as kinds of OSError, without secrets."""
        full = self._full(path)
        _check_fork(f"{self._place}/{full}")
        self._check_name(full)
        for pause in (*_PAUSES, None):
            if self._credentials is not None:
                self._credentials()  # here, because obstore would report any failure as a refusal
            try:
                return function(self._store, full)
            except BaseException as error:
                if not _is_foreign(error):
                    raise
                if pause is None or not _is_in_the_way(error):
                    vended = self._credentials.secrets() if self._credentials else []
                    text = _plain(error, [*vended, *self._secrets])
                    failure, cause = _translated(error, text, f"{self._place}/{full}")
                    break
            time.sleep(pause)
        # Outside the except block. Inside it, the context of the error would show the secrets.
        raise failure from cause


_used: list[ForkGuard] = []  # since the first use of obstore


def _check_fork(place: str) -> None:
    """Raise OSError if the parent used obstore before the fork, because it would never return."""
    if not _used:
        _used.append(ForkGuard("an object store"))
    if _used[0].is_foreign:
        text = "Using the object store failed: the parent used it before the fork"
        raise OSError(errno.EIO, f"{text}. Start processes by spawn or forkserver", place)


class _RangeReader(io.RawIOBase):
    """Read ranges of one file, the last bytes from memory."""

    def __init__(self, backend: RemoteBackend, path: str) -> None:
        self._backend, self._path, self._at = backend, path, 0
        self._size, self._last = backend.tail(path)

    def size(self) -> int:
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def read(self, size: int = -1) -> bytes:
        length = max(0, self._size - self._at)
        length = length if size is None or size < 0 else min(size, length)
        data = self._part(self._at, length) if length else b""
        self._at += len(data)
        return data

    def _part(self, start: int, length: int) -> bytes:
        kept_from = self._size - len(self._last)
        if start >= kept_from:
            return self._last[start - kept_from : start - kept_from + length]
        return self._backend.range(self._path, start, length)


def _open_store(
    url: str,
    options: Mapping[str, str],
    secrets: list[str],
    credentials: Any,
) -> Any:
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    account = parts.netloc.partition("@")[2].partition(".")[0].lower() or None
    given = store_options(scheme, options, os.environ, account=account)
    groups = {
        "config": given.config,
        "client_options": given.client_options,
        "retry_config": given.retry_config,
    }
    try:
        made: dict[str, Any] = {name: group for name, group in groups.items() if group}
        if credentials is not None:  # they win over keys among the options
            made["credential_provider"] = credentials
        return _STORES[PROVIDERS[scheme]].from_url(url, **made)
    except BaseException as error:
        if not _is_foreign(error):
            raise
        # The text may quote any value, and a secret may be given by a wrong name.
        text = _plain(error, [*secrets, *(str(v) for v in options.values() if len(str(v)) > 3)])
    raise InvalidOption(
        f"Opening the object store failed: {text}. Correct the storage options.",
        option="storage_options",
    )


def _is_foreign(error: BaseException) -> bool:
    """Return whether an error, or a panic, comes from obstore."""
    kinds = (exceptions.BaseError, OSError, ValueError)
    return isinstance(error, kinds) or type(error).__name__ == "PanicException"


def _is_in_the_way(error: BaseException) -> bool:
    text = str(error)
    return _IN_THE_WAY.search(text) is not None and "BlobAlreadyExists" not in text


def _translated(error: BaseException, text: str, place: str) -> tuple[OSError, BaseException]:
    if _DENIED.search(text):  # a listing has no error type for this
        return PermissionError(errno.EACCES, text, place), _copy(error, text)
    if _is_in_the_way(error):  # obstore takes it for a name that exists
        return OSError(errno.EIO, text, place), _copy(error, text)
    for kind, raised, number in _KINDS:
        if isinstance(error, kind):
            return raised(number, text, place), _copy(error, text)
    return OSError(errno.EIO, text, place), RuntimeError(text)


def _has_no_tail(error: OSError) -> bool:
    unsupported = isinstance(error.__cause__, exceptions.NotSupportedError)
    return unsupported or _NO_TAIL.search(str(error)) is not None


def _bytes_of(data: bytes | memoryview) -> bytes | memoryview:
    return data if isinstance(data, bytes) else memoryview(data).cast("B")


def _copy(error: BaseException, text: str) -> BaseException:
    try:
        return type(error)(text)
    except Exception:
        return RuntimeError(text)


def _secrets(options: Mapping[str, str]) -> list[str]:
    """Return the secrets that an error text may contain, longest first."""
    names = {**{k: v for k, v in os.environ.items() if _bare_provider(k)}, **options}
    given = {str(value) for name, value in names.items() if is_secret(name)}
    secrets = given | {quote(value, safe="") for value in given}
    return sorted((value for value in secrets if len(value) > 3), key=len, reverse=True)


def _bare_provider(name: str) -> bool:
    return name.upper().startswith(("AWS_", "AZURE_", "GOOGLE_", "DATABRICKS_", "UNITY_"))


def _plain(error: BaseException, secrets: list[str]) -> str:
    text = re.split(r"\n\s*Debug source:", str(error))[0]
    for secret in secrets:
        text = text.replace(secret, "***")
    text = _USER.sub(r"\1", _QUERY.sub(r"\1", _SIGNED.sub("", text)))
    return re.sub(r"\s+", " ", text).strip()[:800] or type(error).__name__
