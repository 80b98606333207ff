"""Stop a group of which several leases failed in a row, or that its owner paused.

The breaker opens after several leases of different messages failed in a row. Then the group grants
one lease of one message at a time, the trial. That is one that was never delivered, or else a
suspect, if any is due, because others may be bad by themselves. An ack or a reject of the trial
closes the breaker. A failure of the trial makes the next wait longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from spark_mq.ledger.intervals import Interval
from spark_mq.ledger.settings import GroupSettings
from spark_mq.util.clock import MICROSECOND, to_datetime
from spark_mq.util.show import printable, show_time

CLOSED: Final = "closed"
OPEN: Final = "open"
PAUSED: Final = "paused"

_MAX_CAUSE: Final = 200  # characters of an error
_SWITCH_OFF: Final = "To get dead letters instead, set breaker_threshold=None"


@dataclass(frozen=True, slots=True)
class Breaker:
    """The switch of one group. Instants are microseconds."""

    failed: tuple[int, ...] = ()  # the first message of each lease that failed in a row
    cause: str | None = None  # the error of the last of them
    opened_at: int | None = None  # None while it is closed
    next_trial_at: int | None = None
    trial: int | None = None  # the message of the last trial
    failed_trials: int = 0  # since the breaker opened
    paused_at: int | None = None
    pause_reason: str | None = None
    paused_until: int | None = None  # None for a pause until a resume

    def to_stored(self) -> dict[str, Any]:
        """Return the fields that differ from those of a closed breaker."""
        return {name: value for name, value in asdict(self).items() if value not in (None, 0, ())}

    def is_paused(self, now: int) -> bool:
        return self.paused_at is not None and (self.paused_until is None or now < self.paused_until)

    def state(self, rules: GroupSettings, now: int) -> str:
        """Return CLOSED, OPEN or PAUSED."""
        if self.is_paused(now):
            return PAUSED
        return OPEN if self.is_open(rules) else CLOSED

    def is_open(self, rules: GroupSettings) -> bool:
        """Return whether the group grants trials only."""
        return self.opened_at is not None and rules.breaker_threshold is not None

    def blocked_because(self, rules: GroupSettings, now: int, on_trial: bool) -> str:
        """Return why the group grants no lease now, or an empty string."""
        if not self.is_paused(now) and self.is_open(rules):
            if on_trial:
                return f"{self._why_open()}; message {self.trial} is the trial. {_SWITCH_OFF}"
            if now >= (self.next_trial_at or 0):
                return ""
        return self.why(rules, now)

    def why(self, rules: GroupSettings, now: int) -> str:
        """Return why a pause or an open breaker stops the group, or an empty string."""
        if self.is_paused(now):
            until = "" if self.paused_until is None else f" until {_at(self.paused_until)}"
            reason = f": {printable(self.pause_reason)}" if self.pause_reason else ""
            return f"paused since {_at(self.paused_at or 0)}{until}{reason}"
        if not self.is_open(rules):
            return ""
        at = _at(self.next_trial_at or 0)
        return f"{self._why_open()}; the next trial is at {at}. {_SWITCH_OFF}"

    def _why_open(self) -> str:
        return (
            f"breaker open since {_at(self.opened_at or 0)}: {len(self.failed)} leases failed "
            f"in a row, the last with {printable(self.cause or 'no error text')}"
        )

    def with_failure(
        self, first: int, cause: str | None, now: int, rules: GroupSettings
    ) -> Breaker:
        """Return the breaker after a lease failed as a whole. `first` is its first message."""
        if rules.breaker_threshold is None:
            return self
        cause = cause[:_MAX_CAUSE] if cause else cause
        if self.opened_at is not None:
            if first != self.trial:
                return self  # a lease from before the breaker opened
            trials = self.failed_trials + 1
            at = now + _wait(trials, rules)
            return replace(self, failed_trials=trials, next_trial_at=at, trial=None, cause=cause)
        if first in self.failed:
            return replace(self, cause=cause)
        failed = (*self.failed, first)
        if len(failed) < rules.breaker_threshold:
            return replace(self, failed=failed, cause=cause)
        at = now + _wait(0, rules)
        return replace(self, failed=failed, cause=cause, opened_at=now, next_trial_at=at)

    def with_success(self, intervals: Iterable[Interval]) -> Breaker:
        """Return the breaker after a success. An open one closes only if it has the trial."""
        if self.opened_at is None:
            return replace(self, failed=(), cause=None) if self.failed else self
        trial = -1 if self.trial is None else self.trial
        if not any(first <= trial <= last for first, last in intervals):
            return self
        return Breaker(
            paused_at=self.paused_at, pause_reason=self.pause_reason,
            paused_until=self.paused_until,
        )  # fmt: skip

    def with_trial(self, message: int, now: int, rules: GroupSettings) -> Breaker:
        at = now + _wait(self.failed_trials, rules)
        return replace(self, trial=message, next_trial_at=at)

    def paused(self, reason: str | None, now: int, until: int | None = None) -> Breaker:
        at = self.paused_at if self.is_paused(now) else now
        return replace(self, paused_at=at, pause_reason=reason, paused_until=until)


def _wait(failed_trials: int, rules: GroupSettings) -> int:
    """Return the microseconds until the next trial. They double with each failed trial."""
    wait = rules.breaker_reset_timeout // MICROSECOND * 2 ** min(failed_trials, 40)
    return min(rules.breaker_max_wait // MICROSECOND, wait)


def _at(instant: int) -> str:
    return show_time(to_datetime(instant))
