"""One value of a JSON text changes, and all other characters stay."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mq.maintenance.json_path import extract, parse_path, remove, to_json, write

TEXT = ' {"a": 1.10, "b" : [ 7 , {"c": null} ], "ü\\n":"é\\u00e9", "d": {}, "a": 2} '


def at(path: str) -> Any:
    steps = parse_path(path)
    assert steps is not None
    return steps


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("$.a", "2"), ("$.b", '[ 7 , {"c": null} ]'), ("$.b[0]", "7"), ("$.b[1]", '{"c": null}'),
        ("$.b[1].c", None), ("$.b[2]", None), ("$.d", "{}"), ("$.d.x", None), ("$.a.x", None),
        ("$[0]", None),
    ],
)  # fmt: skip
def test_a_value_is_found_by_its_path(path: str, expected: str | None) -> None:
    assert extract(TEXT, at(path)) == expected


def test_a_text_is_returned_without_quotes() -> None:
    assert extract('{"x y": "é\\u00e9\\n"}', at('$."x y"')) == "éé\n"


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("$.a", "3", TEXT.replace('"a": 2', '"a": 3')),
        ("$.b[0]", "true", TEXT.replace("7", "true")),
        ("$.b[1].c", '"x"', TEXT.replace("null", '"x"')),
        ("$.b[1].e", "1", TEXT.replace('{"c": null}', '{"c": null,"e":1}')),
        ("$.d.x", "1", TEXT.replace("{}", '{"x":1}')),
        ("$.new", "1", TEXT.replace('"a": 2}', '"a": 2,"new":1}')),
        ("$.b[2]", "1", None),
        ("$.no.x", "1", None),
        ("$.a.x", "1", None),
    ],
)
def test_only_the_value_of_the_path_changes(path: str, value: str, expected: str | None) -> None:
    assert write(TEXT, at(path), value) == expected


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        ('{"a": 1}', "$.a", "{}"),
        ('{"a": 1, "b": 2}', "$.a", '{"b": 2}'),
        ('{"a": 1, "b": 2, "c": 3}', "$.b", '{"a": 1, "c": 3}'),
        ('{"a": 1, "b": 2}', "$.b", '{"a": 1}'),
        ('{"a": 1, "b": 2, "a": 3}', "$.a", '{"b": 2}'),
        ('{"x": {"a": 1.10}}', "$.x.b", '{"x": {"a": 1.10}}'),
        ('{"x": 1}', "$.x.b", None),
    ],
)
def test_a_member_is_removed(text: str, path: str, expected: str | None) -> None:
    assert remove(text, at(path)) == expected


@pytest.mark.parametrize(
    "text", ["", "{", "nope", '{"a": NaN}', "[" * 100_000, '{"a": 1} x', "9" * 5_000]
)
def test_what_is_no_json_has_no_values(text: str) -> None:
    path = at("$.a")
    assert extract(text, path) is write(text, path, "1") is remove(text, path) is None


@pytest.mark.parametrize(
    "path", ["", "$", "a", "$a", "$.", "$..a", "$.a[", "$.a[x]", "$.*", "x$.a"]
)
def test_what_is_no_path_is_refused(path: str) -> None:
    assert parse_path(path) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)  # fmt: skip


@given(st.dictionaries(st.text(min_size=1), JSON), st.sampled_from([None, 1, 4]), JSON, st.data())
def test_a_change_is_that_of_the_parsed_value(
    value: dict[str, Any], indent: int | None, new: Any, data: st.DataObject
) -> None:
    text = json.dumps(value, indent=indent)
    key = data.draw(st.sampled_from([*value, "new"]))
    assert json.loads(write(text, [key], json.dumps(new)) or "") == {**value, key: new}
    rest = {name: one for name, one in value.items() if name != key}
    assert json.loads(remove(text, [key]) or "") == rest


def test_values_that_have_no_json_are_none() -> None:
    assert (to_json("ü"), to_json(None), to_json(True), to_json(1.5)) == (
        '"ü"', "null", "true", "1.5",
    )  # fmt: skip
    assert to_json(float("nan")) is to_json(b"x") is None
