"""What comes in from outside: clean values, or an error that names option, value and fix."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mq import GroupSettings, QueueSettings
from spark_mq.errors import InvalidOption, SparkMQError
from spark_mq.testing import memory_queue
from spark_mq.util.clock import SECOND, to_datetime, to_micros
from spark_mq.util.setting_fields import parse_number, parse_settings, settings_of
from spark_mq.util.show import show_duration
from spark_mq.util.validation import (
    SHORTEST,
    suggest,
    validate_callable,
    validate_choice,
    validate_count,
    validate_duration,
    validate_name,
)

HOUR = 3600 * SECOND


def two(batch, lease):
    pass


class Callable:
    def __call__(self, batch, lease=None, *, more=1):
        pass

    def method(self, batch, lease):
        pass


@pytest.mark.parametrize(
    "good",
    [two, lambda *_: None, Callable(), Callable().method, partial(two, lease=1).func, max,
     dict.update],
)  # fmt: skip
def test_a_function_that_can_be_called_so_is_taken_and_one_of_which_that_cannot_be_reported(good):
    validate_callable("process", good, "batch", "lease")


@pytest.mark.parametrize(
    "bad",
    [lambda b: None, lambda: None, lambda b, *, lease: None, Callable, Callable.method,
     partial(two, lease=1), 7],
)  # fmt: skip
def test_a_function_that_cannot_be_called_so_is_refused(bad):
    with pytest.raises(InvalidOption, match=r"^process=.*batch, lease\)") as caught:
        validate_callable("process", bad, "batch", "lease")
    assert (caught.value.option, caught.value.value) == ("process", bad)


def test_a_function_is_refused_although_a_default_of_it_cannot_be_shown():
    class Unshown:
        def __repr__(self):
            raise RuntimeError("no connection")

    unshown = Unshown()
    with pytest.raises(InvalidOption, match=r"^process=.*batch, lease\)"):
        validate_callable("process", lambda value=unshown: None, "batch", "lease")


DURATIONS = {
    5: ["5us"],
    SECOND // 4: [0.25, "250ms", "250 milliseconds"],
    SECOND: ["1 second", "1 sec"],
    10 * SECOND: ["10 secs", "10 SECONDS", "10"],
    30 * SECOND: [30, "30", "30s", " 30 S "],
    SECOND * 3 // 2: [
        *(np.float64(1.5), np.float32(1.5), pa.scalar(1.5), pa.scalar(timedelta(seconds=1.5))),
        *(np.timedelta64(1500, "ms"), np.timedelta64(1_500_000_000, "ns")),
    ],
    90 * SECOND: ["1.5m", "1m30s"],
    120 * SECOND: ["2 minutes", "2 min", "2 mins", "2 minute"],
    300 * SECOND + 1: [timedelta(minutes=5, microseconds=1)],
    2 * HOUR: ["2h", "2 hr", "2 hrs", "2 hour", "2 hours"],
    24 * HOUR: ["1 Day"],
    51 * HOUR: ["2d 3h"],
    168 * HOUR: ["7d"],
}


@pytest.mark.parametrize("micros", DURATIONS)
def test_a_duration_comes_in_many_forms(micros):
    for value in DURATIONS[micros]:
        assert validate_duration("age", value) == micros


@pytest.mark.parametrize(
    "value",
    [-1, "-1s", float("nan"), float("inf"), True, None, "", "s", "1 week", "1s 2m", "1,5s", "1e3",
     b"1s", [1], 10**12, timedelta(-1), 1e-9, float("-inf"), "5 parsecs", "1" + "0" * 30,
     np.bool_(True), pa.scalar(True)],
)  # fmt: skip
def test_what_is_no_duration_is_refused(value):
    with pytest.raises(
        InvalidOption, match=r"^timeout=.* is not a duration: give more than zero"
    ) as caught:
        validate_duration("timeout", value)
    assert caught.value.option == "timeout"
    assert caught.value.value is value


def test_zero_is_a_duration_only_where_it_means_something():
    for zero in (0, "0s"):
        assert validate_duration("delay", zero, zero=True) == 0
    with pytest.raises(InvalidOption, match="more than zero"):
        validate_duration("timeout", 0)
    with pytest.raises(InvalidOption, match="zero or more"):
        validate_duration("delay", -1, zero=True)


@pytest.mark.parametrize("name", ["a", "Orders_2.eu-west", "-", ".", "x" * 128, "_x", "0"])
def test_good_names(name):
    assert validate_name("group", name) == name


@pytest.mark.parametrize(
    "name", ["", "x" * 129, "a b", "a/b", "a'b", "é", "a\n", "__horizon", None, 3, b"a"]
)
def test_bad_names_are_refused(name):
    with pytest.raises(InvalidOption, match=r"^group=.* is not a valid name: use 1 to 128"):
        validate_name("group", name)


@pytest.mark.parametrize(
    ("value", "expected"), [(1, 1), ("12", 12), (" +5 ", 5), (2**31 - 1, 2**31 - 1)]
)
def test_good_counts(value, expected):
    assert validate_count("n", value) == expected


@pytest.mark.parametrize(
    "value",
    [0, -1, 2**31, 1.0, "1.0", "one", "", None, True, "1_000", "²", float("nan"), float("inf"),
     False, [], 10**30, np.bool_(True), pa.scalar(True)],
)  # fmt: skip
def test_bad_counts_are_refused(value):
    with pytest.raises(
        InvalidOption, match=r"^n=.* is not valid: give a whole number from 1 to 2,147,483,647"
    ):
        validate_count("n", value)


def test_a_value_with_a_number_that_is_too_long_to_print_is_refused():
    with pytest.raises(InvalidOption, match="n=a list with a very large number is not valid"):
        validate_count("n", [10**5000])


@pytest.mark.parametrize(
    ("text", "value"),
    [("7", 7), ("-1", -1), ("1.5", 1.5), ("1e3", 1000.0), ("30s", "30s"),
     ("nan", "nan"), ("infinity", "infinity"), ("1_0", "1_0"), ("e", "e")],
)  # fmt: skip
def test_a_setting_that_a_person_writes_is_a_number_only_in_digits(text, value):
    assert parse_number(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("max_in_flight=None", None),
        ("max_in_flight=7", 7),
        ("retry=none", "none"),  # a word of its own, and not the lack of one
        ("order=NONE", "none"),
        ("clock_skew=1.5", timedelta(seconds=1.5)),
    ],
)
def test_a_setting_that_a_person_writes_is_read_by_its_kind(text, value):
    name, _, written = text.partition("=")
    given = parse_settings({name: written}, GroupSettings)
    assert getattr(GroupSettings().changed(**given), name) == value


def test_the_bounds_of_a_count_are_its_own():
    assert validate_count("n", 0, least=0, most=5) == 0
    assert validate_count("n", "-3", least=-3) == -3
    with pytest.raises(InvalidOption, match="from 2 to 5"):
        validate_count("n", 6, least=2, most=5)


@pytest.mark.parametrize(
    ("value", "hint"),
    [("manul", r" \(did you mean 'manual'\?\)$"), ("xyz", "onCommit, manual$"), (None, "manual$")],
)
def test_a_wrong_choice_gets_a_hint_where_one_is_near(value, hint):
    with pytest.raises(InvalidOption, match="use one of onCommit, manual") as caught:
        validate_choice("ackMode", value, iter(["onCommit", "manual"]))
    caught.match(hint)


def test_the_nearest_word():
    options = ["maxMessagesPerTrigger", "maxBytesPerTrigger"]
    assert suggest("MAXMESSAGESPERTRIGER", options) == options[0]
    assert suggest("colour", ["ackMode"]) is None
    assert suggest("x", []) is None


def test_an_instant_needs_a_time_zone():
    with pytest.raises(InvalidOption, match="no time zone"):
        to_micros(datetime(2026, 1, 1))


def test_an_instant_is_the_same_in_every_zone():
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    for instant in (noon, noon.astimezone(timezone(timedelta(hours=-5)))):
        assert to_micros(instant) == 1_767_268_800 * SECOND
    assert to_micros(datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)) == -1


@given(st.datetimes(timezones=st.just(UTC)))
def test_instants_come_back_exactly(instant):
    assert to_datetime(to_micros(instant)) == instant


# -- settings, which are made of such values


def test_settings_of_a_queue_come_back_from_its_description():
    given_settings = QueueSettings(
        GroupSettings(max_delivery_attempts=None, max_in_flight=7),
        retention=timedelta(microseconds=5),
        dead_letter_path="/dlq",
    )
    assert QueueSettings.from_json(given_settings.to_json()) == given_settings


@pytest.mark.parametrize(
    "text", [None, "", "a table", "[]", "3", "{}", '{"format": "something else"}']
)
def test_the_description_of_another_table_is_none_of_a_queue(text):
    assert QueueSettings.from_json(text) is None


@given(st.timedeltas(timedelta(microseconds=1), timedelta(days=30_000)))
def test_a_duration_can_be_typed_as_it_is_shown(duration: timedelta) -> None:
    assert validate_duration("delay", show_duration(duration)) == duration // timedelta.resolution


def test_errors_are_of_their_builtin_kind_too():
    with pytest.raises(ValueError, match="not a valid name"):
        validate_name("group", "")
    assert issubclass(InvalidOption, SparkMQError)


# -- a duration that would end messages without a call, or lose them, has a least value

HARMLESS = {
    "retry_delay", "max_retry_delay", "clock_skew", "rate_burst", "delivery_delay", "retention",
}  # fmt: skip
"""What may be as short as one likes, because it ends no message and loses none."""
SETTINGS = {**settings_of(GroupSettings), **settings_of(QueueSettings)}
BOUNDED = {name for name, setting in SETTINGS.items() if setting.kind.accepts == "Duration"}


def test_each_duration_has_a_bound_or_is_harmless():
    assert BOUNDED - SHORTEST.keys() == HARMLESS


@pytest.mark.parametrize("name", sorted(BOUNDED - HARMLESS))
def test_a_setting_that_is_too_short_is_refused(name):
    least = SHORTEST[name]
    with pytest.raises(InvalidOption) as caught:
        memory_queue(**{name: "1ms"})
    assert str(caught.value) == f"{name}='1ms' is too short: give {least} or more"
    assert (caught.value.option, caught.value.value) == (name, "1ms")
    memory_queue(**{name: least})


def test_a_queue_with_a_shorter_setting_of_an_older_version_is_read():
    stored = {"visibility_timeout": 1_000}
    assert GroupSettings.decoded(stored).visibility_timeout.total_seconds() == 0.001
