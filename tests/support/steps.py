"""Commands that only tests run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spark_mq.ledger.commands import Change, Command, Needs, View


@dataclass(frozen=True, eq=False)
class Step(Command[Any]):
    """A change that a test writes as a function."""

    change: Callable[[View], Change[Any]]
    apps: tuple[str, ...] = ()
    reach: int | None = -2

    name = "step"

    @property
    def needs(self) -> Needs:
        return Needs(self.reach, apps=self.apps)

    def apply(self, view: View) -> Change[Any]:
        return self.change(view)
