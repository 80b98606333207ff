"""The instants of a schedule: rules, zones, what is due, and jitter."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_mq.errors import InvalidOption
from spark_mq.ledger.recurrence import (
    Recurrence,
    due_instants,
    jitter_of,
    validate_cron,
    validate_every,
    validate_jitter,
    validate_timezone,
)
from spark_mq.util.clock import LATEST, SECOND, to_datetime, to_micros

BERLIN = "Europe/Berlin"
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE


def at(text: str, zone: str = "UTC") -> int:
    return to_micros(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)))


def shown(rule: Recurrence, after: int, number: int) -> list[str]:
    """The next instants of a rule as its zone's clocks show them."""
    zone = ZoneInfo(rule.timezone)
    found = islice(rule.after(after), number)
    return [f"{to_datetime(one).astimezone(zone):%m-%d %H:%M %z}" for one in found]


def utc(rule: Recurrence, after: int, number: int) -> list[str]:
    return [f"{to_datetime(one):%m-%d %H:%M}" for one in islice(rule.after(after), number)]


# -- cron


def test_cron_follows_the_clocks_of_its_zone() -> None:
    rule = Recurrence(cron="0 2 * * *", timezone=BERLIN)
    assert shown(rule, at("2026-01-30T12:00"), 2) == ["01-31 02:00 +0100", "02-01 02:00 +0100"]
    assert utc(rule, at("2026-07-01T12:00"), 1) == ["07-02 00:00"]


def test_a_time_that_the_clocks_skip_comes_right_after_the_gap() -> None:
    rule = Recurrence(cron="30 2 * * *", timezone=BERLIN)
    assert shown(rule, at("2026-03-28T12:00"), 3) == [
        "03-29 03:00 +0200", "03-30 02:30 +0200", "03-31 02:30 +0200",
    ]  # fmt: skip


def test_a_time_that_comes_twice_is_an_instant_the_first_time() -> None:
    rule = Recurrence(cron="30 2 * * *", timezone=BERLIN)
    assert shown(rule, at("2026-10-24T12:00"), 2) == ["10-25 02:30 +0200", "10-26 02:30 +0100"]


def test_a_rule_with_a_star_follows_elapsed_time_through_both_changes() -> None:
    rule = Recurrence(cron="*/30 * * * *", timezone=BERLIN)
    assert utc(rule, at("2026-03-29T00:15"), 4) == [
        "03-29 00:30", "03-29 01:00", "03-29 01:30", "03-29 02:00",
    ]  # fmt: skip
    assert utc(rule, at("2026-10-24T23:45"), 6) == [
        "10-25 00:00", "10-25 00:30", "10-25 01:00", "10-25 01:30", "10-25 02:00", "10-25 02:30",
    ]  # fmt: skip


@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25"])
@pytest.mark.parametrize("cron", ["30 2 * * *", "15,45 2 * * *", "0 3 * * *", "*/20 2 * * *"])
def test_from_any_start_near_a_change_of_the_clocks_the_instants_are_the_same(
    cron: str, day: str
) -> None:
    rule = Recurrence(cron=cron, timezone=BERLIN)
    end = at(f"{day}T12:00")
    whole = list(takewhile(lambda one: one < end, rule.after(at(f"{day}T00:00") - 12 * HOUR)))
    for minute in range(0, 180, 5):
        start = at(f"{day}T00:00") + minute * MINUTE
        assert list(takewhile(lambda one: one < end, rule.after(start))) == [
            one for one in whole if one > start
        ]
        assert rule.latest(at(f"{day}T00:00") - 12 * HOUR, start) == max(
            (one for one in whole if one <= start), default=None
        )


@given(
    cron=st.sampled_from(
        ["* * * * *", "*/7 * * * *", "30 2 * * *", "0 */6 * * 1-5", "5 4 1 * *", "0 0 29 2 *"]
    ),
    zone=st.sampled_from(["UTC", BERLIN, "America/New_York", "Asia/Kolkata"]),
    start=st.integers(at("2019-01-01"), at("2032-01-01")),
    span=st.integers(0, 3 * 24 * HOUR),
)
@example(
    cron="* * * * *", zone="UTC", start=MINUTE - SECOND, span=MINUTE + 1
)  # ends 1 s before one
def test_instants_rise_and_the_latest_is_the_last_of_them(
    cron: str, zone: str, start: int, span: int
) -> None:
    rule, end = Recurrence(cron=cron, timezone=zone), start + span
    found = list(takewhile(lambda one: one <= end, rule.after(start)))
    assert all(a < b for a, b in pairwise([start, *found]))
    assert rule.latest(start, end) == (found[-1] if found else None)
    for one in found[:3]:  # a start at an instant continues after it
        assert next(rule.after(one)) > one


def test_the_latest_of_a_rare_rule_is_found_at_once() -> None:
    rule = Recurrence(cron="0 0 29 2 *")
    assert rule.latest(0, at("2027-06-01")) == at("2024-02-29")
    assert rule.latest(at("2024-02-29"), at("2027-06-01")) is None


def test_no_instant_lies_beyond_the_year_9999() -> None:
    assert list(Recurrence(cron="0 0 1 1 *").after(at("9998-12-31T23:00"))) == [at("9999-01-01")]
    assert list(Recurrence(every=HOUR, starts_at=LATEST).after(0)) == [LATEST]


# -- every


def test_a_period_counts_from_1970_so_it_is_the_same_on_all_machines() -> None:
    rule = Recurrence(every=15 * MINUTE)
    assert utc(rule, at("2026-01-01T10:07"), 2) == ["01-01 10:15", "01-01 10:30"]
    assert utc(rule, at("2026-01-01T10:15"), 1) == ["01-01 10:30"]


def test_a_period_counts_from_its_start() -> None:
    rule = Recurrence(every=HOUR, starts_at=at("2026-01-01T10:20"))
    assert utc(rule, at("2025-12-01"), 2) == ["01-01 10:20", "01-01 11:20"]
    assert utc(rule, at("2026-01-02T11:20"), 1) == ["01-02 12:20"]
    assert rule.latest(0, at("2026-01-01T10:19")) is None
    assert rule.latest(0, at("2026-01-01T12:00")) == at("2026-01-01T11:20")


def test_no_instant_of_a_cron_rule_is_before_its_start() -> None:
    rule = Recurrence(cron="0 2 * * *", starts_at=at("2026-01-05T02:00"))
    assert utc(rule, at("2026-01-01"), 1) == ["01-05 02:00"]
    assert rule.latest(0, at("2026-01-05T01:59")) is None


# -- what is due


def due(catch_up: str, done: str, now: str, most: int = 1000, every: int = HOUR) -> list[str]:
    found = due_instants(Recurrence(every=every), catch_up, at(done), at(now), most)
    return [f"{to_datetime(one):%H:%M}" for one in found]


def test_latest_leaves_out_all_but_the_last() -> None:
    assert due("latest", "2026-01-01T10:00", "2026-01-01T13:10") == ["13:00"]
    assert due("latest", "2026-01-01T13:00", "2026-01-01T13:10") == []


def test_all_returns_each_of_them_the_oldest_first_and_so_many_at_a_time() -> None:
    now = "2026-01-01T13:00"
    assert due("all", "2026-01-01T10:00", now) == ["11:00", "12:00", "13:00"]
    assert due("all", "2026-01-01T10:00", now, most=2) == ["11:00", "12:00"]


def test_none_leaves_out_what_is_later_than_the_grace() -> None:
    every = 5 * MINUTE
    found = due("none", "2026-01-01T10:00", "2026-01-01T13:00", every=every)
    assert found == ["12:45", "12:50", "12:55", "13:00"]
    assert due("none", "2026-01-01T10:00", "2026-01-01T13:00:00.000001", every=every) == found[1:]


@pytest.mark.parametrize("catch_up", ["latest", "all", "none"])
def test_a_clock_that_went_back_makes_nothing_due(catch_up: str) -> None:
    assert due(catch_up, "2026-01-01T13:00", "2026-01-01T10:30") == []


@given(
    catch_up=st.sampled_from(["latest", "all", "none"]),
    steps=st.lists(st.integers(0, 5 * HOUR), max_size=20),
    most=st.integers(1, 5),
)
def test_whenever_sweeps_run_no_instant_is_due_twice(
    catch_up: str, steps: list[int], most: int
) -> None:
    rule, now = Recurrence(every=20 * MINUTE), at("2026-01-01")
    done, published = now, list[int]()
    for step in steps:
        now += step
        found = due_instants(rule, catch_up, done, now, most)
        published += found
        done = max([done, *found])
    assert published == sorted(set(published))
    if catch_up == "all":
        assert published == list(islice(rule.after(at("2026-01-01")), len(published)))


# -- jitter


def test_jitter_follows_from_name_and_instant() -> None:
    found = [jitter_of("nightly", at("2026-01-01") + n * HOUR, 5 * MINUTE) for n in range(200)]
    assert all(0 <= one < 5 * MINUTE for one in found)
    assert len(set(found)) == 200
    assert min(found) < MINUTE < 4 * MINUTE < max(found)
    again = [jitter_of(name, 7, 10**9) for name in ("nightly", "other")]
    assert again == [330_707_292, 395_402_929], "the same in each version"
    assert jitter_of("nightly", 7, 0) == 0


# -- what is refused


@pytest.mark.parametrize(
    ("value", "reported"),
    [
        ("", "has 0 fields: give five fields"),
        ("@daily", "has 1 field: give five fields"),
        ("0 0 2 * * *", "has 6 fields: give five fields"),
        (5, "is not a cron expression: give five fields"),
        ("\u0660 2 * * *", "is not a cron expression: give five fields"),
        ("60 2 * * *", "has the minute '60': give 0 to 59, such as 30 or */15"),
        ("0 25 * * *", "has the hour '25': give 0 to 23"),
        ("0 2 32 * *", "has the day of month '32': give 1 to 31"),
        ("0 0 LW/2,3 * *,", "has the day of week '*,': give 0 to 7 or SUN to SAT"),
        ("0 2 * JUNE *", "has the month 'JUNE': give 1 to 12 or JAN to DEC"),
        ("0 2 * * MOON", "has the day of week 'MOON': give 0 to 7 or SUN to SAT"),
        ("0 2 31 2 *", "matches no date, such as 30 February"),
    ],
)
def test_a_bad_cron_expression_is_refused(value: object, reported: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        validate_cron(value)
    assert f"cron={value!r} {reported}" in str(refused.value)
    assert (refused.value.option, refused.value.value) == ("cron", value)


@given(st.text(alphabet="0123456789*/,-LW#SUNMOJAN ", max_size=20))
def test_an_expression_is_valid_or_refused(text: str) -> None:
    try:
        found = validate_cron(text)
    except InvalidOption:
        return
    assert next(Recurrence(cron=found, timezone=BERLIN).after(at("2026-01-01"))) > at("2026-01-01")


def test_an_expression_keeps_one_space_between_fields() -> None:
    assert validate_cron("  0  2 * *\tMON-FRI ") == "0 2 * * MON-FRI"


@pytest.mark.parametrize("value", ["500ms", 0, -1, "soon", None, True])
def test_a_period_below_a_second_is_refused(value: object) -> None:
    with pytest.raises(InvalidOption) as refused:
        validate_every(value)
    assert refused.value.option == "every"
    assert validate_every("1s") == SECOND


def test_a_jitter_beyond_the_period_or_a_day_is_refused() -> None:
    assert validate_jitter("15m", 15 * MINUTE) == 15 * MINUTE
    assert validate_jitter(timedelta(days=1), None) == 24 * HOUR
    assert validate_jitter(0, MINUTE) == 0
    for value, every in (("16m", 15 * MINUTE), ("86401s", None), (-1, None)):
        with pytest.raises(InvalidOption) as refused:
            validate_jitter(value, every)
        assert refused.value.option == "jitter"


@pytest.mark.parametrize("value", ["Europe/Berln", "", "../etc/passwd", "a\0b", 3, None, UTC])
def test_an_unknown_zone_is_refused(value: object) -> None:
    with pytest.raises(InvalidOption) as refused:
        validate_timezone(value)
    assert refused.value.option == "timezone"


def test_the_error_names_the_nearest_zone() -> None:
    with pytest.raises(InvalidOption, match="did you mean 'Europe/Berlin'"):
        validate_timezone("Europe/Berln")
