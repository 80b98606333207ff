"""Load the commits of ``messages/`` into the index of a handle."""

from __future__ import annotations

import pyarrow as pa

from spark_mq.delta.actions import missing_commit_error
from spark_mq.delta.log import DeltaLog
from spark_mq.errors import CorruptLog
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.storage.commit_rows import file_columns
from spark_mq.storage.commits_table import CommitsTable
from spark_mq.storage.message_store import tables_disagree
from spark_mq.storage.published_files import PublishedFiles, commit_matches

__all__ = ["CommitLoader"]


class CommitLoader:
    """Load commits from ``commits/`` and from the log of ``messages/``."""

    def __init__(self, path: str, log: DeltaLog, commits: CommitsTable) -> None:
        self.path = path
        self._log = log
        self._commits = commits

    def catch_up(self, published: PublishedFiles, latest: int) -> None:
        """Add the commits up to a version to the index."""
        broken = None
        if published.index.version < 0:  # a new handle: commits/ has most commits
            try:
                self._load(published)
            except CorruptLog as error:
                broken = error  # nobody needs it as long as all commits are there
        while published.index.version < latest:
            for commit in self._log.following(published.index.version + 1):
                published.apply(commit)
                if published.index.version == latest:
                    return
            # The next commit was cleaned since this handle looked last.
            if broken is not None or not self._load(published):
                raise broken or missing_commit_error(self.path, published.index.version + 1)

    def check_known(self, published: PublishedFiles, latest: int) -> None:
        """Raise CorruptLog if the log has replaced the index's last commit."""
        version = published.index.version
        if latest < version:
            raise missing_commit_error(self.path, version)
        try:
            same = version < 0 or published.matches(self._log.read_commit(version))
        except FileNotFoundError:
            return  # cleaned
        if not same:
            raise CorruptLog(
                f"commit {version} of {self.path} was replaced after it was read: its messages "
                "have the sequences of other messages. Open the queue again. Groups that have "
                "settled the other messages do not get these",
                path=self.path,
                version=version,
            )

    def forget_as_swept(self, published: PublishedFiles) -> None:
        """Forget what sweeps have forgotten."""
        table_id = self._log.state.table_id
        if self._commits.open(table_id) is not None:
            published.forget_as(*self._commits.forgotten(table_id))

    def full_index(self, index: MessageIndex, first: int) -> MessageIndex:
        """Return an index with all files from a sequence on, also forgotten ones."""
        rows = self._commits.past(self._log.state.table_id, first, index.forgotten_to)
        past = file_columns(rows)
        full = MessageIndex(forgotten=index.forgotten - sum(past.rows), lanes=index.layout.lanes)
        full.extend_columns(past, index.version)
        full.extend(index.files, index.version)
        return full

    def _load(self, published: PublishedFiles) -> bool:
        """Add what ``commits/`` has beyond the index. Return whether it has anything."""
        before, table_id = published.index.version, self._log.state.table_id
        found = self._commits.read(table_id, before)
        if found is not None:
            self._check_commits(*found)
            published.forget_as(*self._commits.forgotten(table_id))
            published.load_rows(*found)
        return published.index.version > before

    def _check_commits(self, rows: pa.Table, upto: int) -> None:
        """Raise TablesDisagree if ``commits/`` describes another log."""
        latest = self._log.state.version
        if upto > latest:  # a sweep may have read later commits since this process looked
            latest = self._log.refresh().version
        if upto > latest:
            reason = f"commits/ has version {upto} of messages/, which ends at version {latest}"
            raise tables_disagree(self._commits.path, reason)
        try:
            commit = self._log.read_commit(upto)
        except FileNotFoundError:
            return  # cleaned
        if not commit_matches(rows, commit):
            reason = f"version {upto} of messages/ differs from the one in commits/"
            raise tables_disagree(self._commits.path, reason)
