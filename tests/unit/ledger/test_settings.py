"""What a newer version of spark_mq has written is refused by name."""

from __future__ import annotations

import json
from dataclasses import fields
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from support.ledger_group import Group

from spark_mq import GroupSettings, QueueSettings
from spark_mq.errors import InvalidOption, NotAQueue, UnsupportedTable
from spark_mq.ledger.owner_commands import Configure
from spark_mq.ledger.ranges import Ledger, LedgerHeader, LogFingerprint
from spark_mq.storage.ledger_files import from_rows, to_rows
from spark_mq.util.setting_fields import Settings, settings_of


def stored(**more: object) -> str:
    return json.dumps({**json.loads(QueueSettings(queue_id="a").to_json()), **more})


def test_settings_of_a_newer_version_are_refused_by_name():
    """They were dropped: a queue whose retention has an exception would lose messages."""
    with pytest.raises(
        UnsupportedTable, match=r"/data/q: .*does not know keep_keys, legal_hold"
    ) as e:
        QueueSettings.from_json(stored(legal_hold=True, keep_keys=["a"]), "/data/q")
    assert (e.value.path, e.value.features) == ("/data/q", ["keep_keys", "legal_hold"])


@pytest.mark.parametrize(
    ("newer", "fix"), [(1, "update spark_mq"), (-1, "create a new queue .* that created it")]
)
def test_another_format_is_refused_first(newer: int, fix: str):
    with pytest.raises(UnsupportedTable, match=rf"has format .*: {fix}$"):
        QueueSettings.from_json(stored(format_version=QueueSettings.VERSION + newer, new=1))


@pytest.mark.parametrize("name", set(settings_of(QueueSettings)))
def test_the_settings_that_only_a_queue_has_are_known_to_errors_of_a_group(name: str):
    with pytest.raises(InvalidOption, match=rf"{name}' is a setting of the queue"):
        GroupSettings().changed(**{name: 1})


def test_settings_of_a_group_of_a_newer_version_are_refused_by_name():
    with pytest.raises(UnsupportedTable, match="pause_at_night"):
        GroupSettings.decoded({**GroupSettings().encoded(), "pause_at_night": True})


def test_an_id_and_a_home_are_kept_but_no_part_of_the_settings():
    one = QueueSettings(queue_id="a", home="/data/q", former_ids=("b", "c"))
    found = QueueSettings.from_json(one.to_json())
    assert (found.queue_id, found.home, found.former_ids) == ("a", "/data/q", ("b", "c"))
    assert found == QueueSettings()


def test_a_ledger_of_a_newer_version_or_of_none_is_refused_by_name():
    rows = to_rows("g", Ledger(LedgerHeader(log_fingerprints=(LogFingerprint(5, "a"),))))
    assert from_rows(rows).head.log_fingerprints == (LogFingerprint(5, "a"),)
    detail, at = json.loads(rows["detail"][0].as_py()), rows.schema.names.index("detail")
    named = {"not know priorities": {**detail, "priorities": [1]}, "it lacks counters": {}}
    for why, other in named.items():
        other_rows = rows.set_column(at, "detail", pa.array([json.dumps(other)]))
        with pytest.raises((UnsupportedTable, NotAQueue), match=why):
            from_rows(other_rows)


@pytest.mark.parametrize("owner", [GroupSettings, QueueSettings])
def test_the_type_of_a_setting_is_that_of_its_kind(owner: type[Settings]):
    """A type checker compares the annotation with the kind, and None is left to the setting."""
    types = {field.name: field.type for field in fields(owner)}
    for one in settings_of(owner).values():
        assert types[one.name].endswith(" | None") == one.optional
        assert one.decode(json.loads(json.dumps(one.encode(one.default)))) == one.default


def test_settings_that_cannot_be_read_are_refused():
    with pytest.raises(UnsupportedTable, match=r"/data/q: .* restore the table from a backup"):
        QueueSettings.from_json(stored(retention="soon"), "/data/q")


def test_the_delays_after_failures_may_be_a_list():
    rules = GroupSettings().changed(retry=["10s", timedelta(minutes=1), 3600], retry_jitter=0)
    assert [rules.delay(failures) // 1_000_000 for failures in (1, 2, 3, 4, 50)] == [
        10, 60, 3600, 3600, 3600,
    ]  # fmt: skip
    assert GroupSettings.decoded(json.loads(json.dumps(rules.encoded()))) == rules
    assert GroupSettings().changed(retry=" 10s, 1m ,1h", retry_jitter=0) == rules
    assert "retry=10s, 1m, 1h" in GroupSettings().changes(rules)
    assert GroupSettings(retry="none", retry_jitter=0.5).delay(1, 1.0) == 0
    rules = GroupSettings().changed(retry=["0s", "10s"], retry_jitter=0.5)
    assert [rules.delay(failures, 1.0) for failures in (1, 2)] == [0, 15_000_000]


def test_a_list_of_delays_may_be_longer_than_the_longest_of_others():
    rules = GroupSettings().changed(retry_delay="1h", max_retry_delay="1h")
    rules.check_together()
    rules = rules.changed(retry=["1m", "2h"], max_retry_delay="30m")
    rules.check_together()
    with pytest.raises(InvalidOption, match="is longer than max_retry_delay='30m'") as caught:
        Group(rules=rules).run(Configure({"retry": "linear"}))
    assert caught.value.option == "retry_delay"


REFUSED: dict[str, tuple[str, list[Any]]] = {
    "retry": ("retry=", [[], ["soon"], "10s,,1m", 10, None, ["-1s"], "exponental", {}]),
    "rate_limit": (
        r"rate_limit=.*is not a rate: use",
        [100, "100", "fast", "0/s", "-1/s", "1.5/s", "10/x", "10/0s", "", "100/10", "10/0.5",
         "10m/s"],
    ),
    "weights": (
        "weights=",
        [{}, "", "gold", {"a": 0}, {"a": 101}, {"a": "x"}, {"a": True}, {3: 1}, 5, {"": 2}, "=2",
         {"a": float("nan")}, {str(n): 1 for n in range(101)}],
    ),
    "filter": (
        "key_prefix",
        [{}, "", "eu-", "key=eu-", "key_prefix", {"key": "a"}, {"key_prefix": []}, "header.=x",
         {"key_prefix": [1]}, {"key_prefix": ""}, {"key_prefix": None}, {"header": {}}, "{]",
         {"header": "region"}, {"header": {"": "a"}}, {"header": {1: "a"}}, ["key_prefix"], 3,
         {"key_prefix": "x" * 1_001}, {"key_prefix": [str(n) for n in range(101)]}, "header.a",
         {"header": {str(n): "a" for n in range(101)}}, {"key_prefix": "\ud800"}, "key_prefix=",
         {"header": {"a": ["b", None]}}, "[]", "{}", '{"a": 1}', {"header": {"a": {"b": "c"}}}],
    ),
}  # fmt: skip
"""Of each setting that has a form of its own, what the error says, and values without that form."""


@pytest.mark.parametrize(
    ("name", "given"), [(name, given) for name, (_, values) in REFUSED.items() for given in values]
)
def test_a_value_without_the_form_of_its_setting_is_refused(name: str, given: Any):
    with pytest.raises(InvalidOption, match=REFUSED[name][0]) as caught:
        GroupSettings().changed(order="fair", **{name: given})
    assert caught.value.option == name
