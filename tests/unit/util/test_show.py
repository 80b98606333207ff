"""Values for people: numbers, durations and times have one form each."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from spark_mq.util.show import (
    show_age,
    show_bars,
    show_cell,
    show_change,
    show_count,
    show_duration,
    show_sequence,
    show_short,
    show_size,
    show_took,
)


@pytest.mark.parametrize(
    ("value", "name", "shown"),
    [
        (1234567, "messages", "1,234,567"), (1234.56, "rate", "1,234.6"), (0.0123, "rate", "0.012"),
        (0.0, "rate", "0.0"), (-1500, "offset", "-1,500"), (True, "expired", "yes"),
        (1234567, "sequence", "1234567"), (1234567, "dead_letter_sequence", "1234567"),
        (8080, "port", "8080"), (4096, "latest sequence", "4096"), (123456, "version", "123456"),
        (24766, "process_id", "24766"),
        (0.1234, "share", "12.3%"), (None, "messages", "-"), ((), "samples", "-"),
        (timedelta(seconds=192.7), "oldest_unsettled_age", "3m 12s"),
        (datetime(2026, 1, 2, 3, 4, 5, 678, UTC), "at", "2026-01-02 03:04:05Z"),
    ],
)  # fmt: skip
def test_a_cell_separates_thousands_of_quantities_only(value: Any, name: str, shown: str) -> None:
    assert show_cell(value, name) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-5, "0s"), (0.4, "0s"), (59.9, "59s"), (60, "1m"), (3599, "59m 59s"), (3600, "1h"),
     (7384, "2h 3m"), (86_400, "1d"), (183_845, "2d 3h")],
)  # fmt: skip
def test_an_age_has_its_two_greatest_units(seconds: float, shown: str) -> None:
    assert show_age(seconds) == show_age(timedelta(seconds=seconds)) == shown


def test_a_chosen_duration_is_exact_and_short_work_has_milliseconds() -> None:
    assert show_duration(timedelta(days=2, hours=3, minutes=4, seconds=5)) == "2d 3h 4m 5s"
    assert show_duration(timedelta(microseconds=250_001)) == "0.250001s"
    assert show_took(timedelta(microseconds=1_234_567)) == "1.235s"
    assert show_took(timedelta(seconds=75.4)) == "1m 15s"


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0"), (0.0123, "0.0123"), (999, "999"), (999.7, "1k"), (18_234, "18.2k"),
     (999_999, "1M"), (2.5e9, "2.5G")],
)  # fmt: skip
def test_a_short_number_has_three_digits(number: float, shown: str) -> None:
    assert show_short(number) == shown


def test_counts_and_sizes_have_their_noun() -> None:
    assert show_count(1, "message") == "1 message"
    assert show_count(2_000, "message") == "2,000 messages"
    assert (show_size(1), show_size(1023), show_size(1536)) == ("1 byte", "1,023 bytes", "1.5 KiB")


X, Y = b"x" * 100, b"y" * 100


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        (b"a", b"b", ("a", "b")),
        (b"a", None, ("a", "-")),
        (X + b"a", None, ("x" * 60 + "…", "-")),
        (X + b"a", X + b"b", ("..." + "x" * 20 + "a", "..." + "x" * 20 + "b")),
        (X, X + Y, ("..." + "x" * 20, "..." + "x" * 20 + "y" * 40 + "…")),
        (b"a" + X, b"b" + X, ("a" + "x" * 59 + "…", "b" + "x" * 59 + "…")),
        (X + b"\xff\n", X + b"\x1b", ("..." + "x" * 20 + "� ", "..." + "x" * 20 + "�")),
    ],
)
def test_a_change_shows_both_values_from_before_their_difference(
    before: bytes, after: bytes | None, shown: tuple[str, str]
) -> None:
    assert show_change(before, after) == shown


def test_a_sequence_is_version_and_row() -> None:
    assert (show_sequence((1 << 32) + 2), show_sequence(2**32 - 1)) == ("1:2", "before 1:0")


def test_bars_follow_the_greatest_value() -> None:
    assert show_bars([0, 1, 50, 100]) == "▁▂▅█"
    assert show_bars([0, 0]) == "▁▁"
    assert show_bars([]) == ""
