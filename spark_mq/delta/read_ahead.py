"""Read several commits of a log in parallel."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from spark_mq.delta.actions import Commit, log_path, parse_commit
from spark_mq.delta.object_store import ObjectStore

__all__ = ["read_ahead"]


def read_ahead(store: ObjectStore, version: int, count: int) -> list[Commit]:
    """Return up to `count` commits, up to the first missing one."""

    def text(at: int) -> bytes | None:
        try:
            return store.read(log_path(at))
        except FileNotFoundError:
            return None

    with ThreadPoolExecutor(count) as pool:
        texts = list(pool.map(text, range(version, version + count)))
    there = texts[: texts.index(None)] if None in texts else texts
    return [
        parse_commit(version + at, found, store.root)
        for at, found in enumerate(there)
        if found is not None
    ]
