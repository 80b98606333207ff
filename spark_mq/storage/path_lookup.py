"""Find a published file by its path, in 16 bytes a file."""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left
from itertools import chain
from typing import Final

import pyarrow.compute as pc

from spark_mq.ledger.data_files import FileList
from spark_mq.util.columns import to_array, to_arrow

__all__ = ["PathLookup"]

_MIN_RECENT: Final = 1_024
_CHUNK: Final = 10_000


class PathLookup:
    """Find the place of a file in a list that grows. Thread-safe."""

    def __init__(self, files: FileList) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._hashes = array("q")  # sorted
        self._places = array("q")  # in the order of the hashes
        self._recent: dict[str, int] = {}  # files that are not sorted in yet

    def find(self, path: str) -> int | None:
        with self._lock:
            self._catch_up()
            if path in self._recent:
                return self._recent[path]
            return self._find_sorted(path)

    def _find_sorted(self, path: str) -> int | None:
        wanted = hash(path)
        at = bisect_left(self._hashes, wanted)
        while at < len(self._hashes) and self._hashes[at] == wanted:
            if self._files.paths[self._places[at]] == path:
                return self._places[at]
            at += 1
        return None

    def _catch_up(self) -> None:
        """Add the files that were appended to the list."""
        known = len(self._places) + len(self._recent)
        new = len(self._files) - known
        if new + len(self._recent) > max(_MIN_RECENT, len(self._places) // 8):
            self._sort_in()
            return
        for place in range(known, known + new):
            self._recent[self._files.paths[place]] = place

    def _sort_in(self) -> None:
        hashes = array("q", self._hashes)
        start, end = len(self._places), len(self._files)
        for low in range(start, end, _CHUNK):
            paths = self._files.paths.to_arrow(low, min(end, low + _CHUNK))
            hashes.extend(map(hash, paths.to_pylist()))
        column, places = (
            to_arrow(hashes),
            to_arrow(array("q", chain(self._places, range(start, end)))),
        )
        order = pc.sort_indices(column)
        self._hashes = to_array(column.take(order))
        self._places = to_array(places.take(order))
        self._recent = {}
