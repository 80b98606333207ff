"""What went wrong with a table, in words: what, which file or version, and what to do. Looked into only once something has failed.

delta-rs, pyarrow and the system tell of the place in their own code; whoever runs a queue has to know which file to restore.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from spark_mq.delta.actions import log_path, read_commit, restore_hint
from spark_mq.delta.files import Files
from spark_mq.errors import CorruptLog, SparkMQError, StorageError

__all__ = ["STORE_ERRORS", "explained", "gone", "is_refused", "plain", "telling"]

STORE_ERRORS: Final = (OSError, DeltaError, pa.ArrowException)
"""What a table that cannot be read or written raises, from whichever layer."""

_FULL: Final = re.compile(r"no space left|os error 28|errno 28|quota|os error 122|file too large|os error 27|disk full", re.IGNORECASE)
_REFUSED: Final = re.compile(r"read-only|os error 30|permission denied|os error 13|not permitted|access ?denied|403", re.IGNORECASE)


_OUT_OF_REACH: Final = re.compile(r"sending request|timed? ?out|connect|reset|dns|http|retries|50\d|generic (s3|gcs|azure)", re.IGNORECASE)
"""The store did not answer: to ask it what is in the log would take as long again."""


def plain(error: BaseException) -> str:
    """What an error says, in one line: no colours, no stack of another language."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).replace("↳", ":")
    text = re.split(r"\s+0: |Backtrace|stack backtrace", text)[0]
    text = re.sub(r"\s+", " ", text).replace(" :", ":").strip()
    return text[:400] or type(error).__name__


def explained(
    path: str, storage_options: Mapping[str, str] | None, error: Exception, doing: str, landed: bool | None = False
) -> SparkMQError:
    """The error to raise for one of STORE_ERRORS at a table. ``doing``: "opening", "publishing to"; ``landed`` as in StorageError."""
    if isinstance(error, SparkMQError):
        return error
    text = plain(error)
    outcome = "nothing was changed" if landed is False else "whether it has landed cannot be told for now"
    if _FULL.search(text):
        advice = "The disk, or its quota, is full: free some space and do it again"
    elif _REFUSED.search(text):
        advice = "The store refuses it: make it readable and writable for this user and do it again"
    elif _OUT_OF_REACH.search(text):
        advice = "The store is out of reach: do it again"
    else:
        found = _damage(Files(path, storage_options), path)
        if found is not None:
            return found
        advice = "Do it again; if it goes on, look at the store"
    return StorageError(f"{doing} {path} failed, {outcome}: {text}. {advice}", path=path, landed=landed)


def is_refused(error: Exception) -> bool:
    """Whether the store did not let this user read or write."""
    return bool(_REFUSED.search(plain(error)))


@contextlib.contextmanager
def telling(
    path: str, storage_options: Mapping[str, str] | None, doing: str, only: type[Exception] | tuple[type[Exception], ...] = STORE_ERRORS
) -> Iterator[None]:
    """What the store raises inside, of the kinds `only`, is raised as an error of spark_mq."""
    try:
        yield
    except SparkMQError:
        raise
    except only as error:
        raise explained(path, storage_options, error, doing) from error


def _damage(files: Files, path: str) -> CorruptLog | None:
    """What is wrong with a table's log, if anything is."""
    try:
        names = [name for name in (entry.rpartition("/")[2] for entry in files.list("_delta_log")) if name[:20].isdigit()]
        versions = sorted(int(name[:20]) for name in names if name[20:] == ".json")
        checkpoint = max((int(name[:20]) for name in names if ".checkpoint" in name), default=-1)
        if checkpoint >= 0 and (broken := _unreadable(files, [name for name in names if name.startswith(f"{checkpoint:020d}.checkpoint")])):
            return CorruptLog(
                f"checkpoint {broken} of {path} cannot be read. Restore it from a backup; or, as long as all commits from an older "
                "checkpoint on are there, remove it, and _last_checkpoint with it", path=path, version=checkpoint,
            )  # fmt: skip
        expected = checkpoint + 1
        for version in (version for version in versions if version > checkpoint):
            if version > expected:
                return gone(path, expected)
            read_commit(files, version, path)
            expected = version + 1
    except CorruptLog as found:
        return found
    except Exception:  # the store itself is out of reach: nothing can be said of what is in it
        return None
    return None


def gone(path: str, version: int) -> CorruptLog:
    """A commit that should be there is not."""
    return CorruptLog(
        f"commit {version} of {path} is gone from its log ({log_path(version)}); what it did cannot be told. {restore_hint(path, version)}",
        path=path,
        version=version,
    )


def _unreadable(files: Files, names: list[str]) -> str | None:
    for name in names:
        if name.endswith(".parquet"):
            try:
                pq.ParquetFile(pa.BufferReader(files.read(f"_delta_log/{name}"))).read()
            except pa.ArrowException:
                return f"_delta_log/{name}"
    return None
