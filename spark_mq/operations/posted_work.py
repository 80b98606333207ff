"""Run the posted operations of other writers in this writer's commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from spark_mq.ledger.ranges import Ledger
from spark_mq.ledger.settle import SettleCommand, SettleOutcome
from spark_mq.storage.ledger_store import LedgerSnapshot
from spark_mq.storage.request_files import PostedRequest

__all__ = [
    "Posted",
    "PostedOperation",
    "RequestRunner",
    "decode_outcomes",
    "encode_outcomes",
    "post_settles",
]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Posted(Generic[T]):
    """An operation as JSON that the commit of another writer may run."""

    data: Mapping[str, Any]
    encode: Callable[[T], Any]  # returns None if the caller must run the operation itself
    decode: Callable[[Any], T]


class PostedOperation(Protocol):
    """An operation of a ledger, as far as this module needs it."""

    @property
    def post(self) -> Callable[[], Posted[Any]] | None: ...

    @property
    def lease_ids(self) -> frozenset[str]: ...


# Returns the next ledger, the result or error, and the commit's metadata. The ledger is None if
# there is nothing to commit.
Run = Callable[[Any, LedgerSnapshot], tuple[Ledger | None, Any, Mapping[str, Any]]]


class RequestRunner:
    """Runs the posted requests of other writers in one commit."""

    def __init__(
        self,
        requests: Sequence[PostedRequest],
        open_posted: Callable[[Mapping[str, Any]], PostedOperation | None],
    ) -> None:
        self._requests: list[tuple[str, list[PostedOperation]]] = []
        for request in requests:
            opened = [open_posted(data) for data in request.operations]
            known = [one for one in opened if one is not None]
            if known and len(known) == len(opened):
                self._requests.append((request.request_id, known))
        self.served: dict[str, list[Any]] = {}  # outcomes of the requests that ran, by id

    @property
    def lease_ids(self) -> frozenset[str]:
        return frozenset(
            name for _, each in self._requests for one in each for name in one.lease_ids
        )

    def run(
        self, snapshot: LedgerSnapshot, run: Run
    ) -> tuple[LedgerSnapshot, list[Mapping[str, Any]]]:
        """Run each request of which all operations succeed. The others change nothing."""
        self.served, infos = {}, list[Mapping[str, Any]]()
        for request_id, operations in self._requests:
            after, outcomes, of_request = snapshot, list[Any](), list[Mapping[str, Any]]()
            for operation in operations:
                ledger, result, info = run(operation, after)
                outcomes.append(_encoded(operation, result))
                if ledger is not None:
                    after = replace(after, ledger=ledger)
                    of_request.append(info)
            if None not in outcomes:
                snapshot, self.served[request_id] = after, outcomes
                infos += of_request
        return snapshot, infos


def _encoded(operation: PostedOperation, result: Any) -> Any:
    """Return an outcome as JSON, or None if its own writer must run the operation."""
    if isinstance(result, Exception) or operation.post is None:
        return None
    return operation.post().encode(result)


def post_settles(commands: Sequence[SettleCommand]) -> Posted[list[SettleOutcome]]:
    data = {"settle": [asdict(one) for one in commands]}
    return Posted(data, encode_outcomes, decode_outcomes)


def encode_outcomes(outcomes: Sequence[SettleOutcome]) -> list[dict[str, Any]]:
    return [asdict(one) for one in outcomes]


def decode_outcomes(data: Sequence[Mapping[str, Any]]) -> list[SettleOutcome]:
    pairs = ("lost", "ranges", "returned")
    return [
        SettleOutcome(**{**one, **{name: [tuple(each) for each in one[name]] for name in pairs}})
        for one in data
    ]
