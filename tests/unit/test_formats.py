"""Formats: round trips, what other libraries write and read, and hostile bytes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import Any, Literal

import fastavro
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, UninterpretedOption
from google.protobuf.type_pb2 import Type
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field
from support.formats import ORDER

from spark_mq import Message
from spark_mq.errors import InvalidOption, InvalidPayload
from spark_mq.integrations.formats import Avro, Json, Protobuf, Pydantic

PARSED = fastavro.parse_schema(ORDER)
LONGS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(codec="utf-8"))
ITEMS = st.lists(st.fixed_dictionaries({"sku": TEXTS, "price": st.floats(allow_nan=False)}))
VALUES = st.fixed_dictionaries({"id": LONGS, "customer": st.none() | TEXTS, "items": ITEMS})


class Item(BaseModel):
    sku: str
    price: float = Field(allow_inf_nan=False)


class Customer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    id: int
    kind: Literal["person", "firm"] = "person"
    shipTo: str | None = Field(None, alias="ship-to")
    items: list[Item] = []
    notes: dict[str, int] = {}


def written(value: Any, schema: Any = PARSED) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


@given(VALUES)
def test_avro_values_come_back_and_are_the_bytes_of_fastavro(value: dict[str, Any]) -> None:
    avro = Avro(ORDER)
    encoded = avro.encode(value)
    assert encoded == written(value)
    assert avro.decode(encoded) == value


@given(st.integers(), st.sampled_from(["person", "firm"]), st.none() | TEXTS)
def test_models_come_back(number: int, kind: Any, to: str | None) -> None:
    customer = Customer(id=number, kind=kind, **{"ship-to": to})
    pydantic = Pydantic(Customer)
    encoded = pydantic.encode(customer)
    assert pydantic.decode(encoded) == customer
    assert json.loads(encoded)["ship-to"] == to, "the names in JSON are those that it reads"


@given(st.binary(max_size=60))
def test_any_bytes_give_a_value_or_invalid_payload(payload: bytes) -> None:
    formats: list[Any] = [Json(), Pydantic(Customer), Avro(ORDER), Protobuf(Type)]
    for format_ in formats:
        try:
            value = format_.decode(payload)
        except InvalidPayload:
            continue
        assert repr(format_.decode(format_.encode(value))) == repr(value), "NaN is unequal"


@given(VALUES, st.data())
def test_a_value_that_is_cut_is_invalid(value: dict[str, Any], data: Any) -> None:
    encoded = Avro(ORDER).encode(value)
    at = data.draw(st.integers(0, len(encoded) - 1))
    reasons = "it ends early|the bytes are damaged or were written with another schema"
    with pytest.raises(InvalidPayload, match=f"not valid Avro for shop.Order: ({reasons})"):
        Avro(ORDER).decode(encoded[:at])
    with pytest.raises(InvalidPayload, match="1 bytes follow the value"):
        Avro(ORDER).decode(encoded + b"\0")


HUGE = b"\x80\x80\x80\x80\x80\x80\x80\x80\x20"  # 2**60 as a varint with zigzag


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        ('"bytes"', HUGE + b"abc"),
        ('"string"', HUGE + b"abc"),
        ('{"type": "array", "items": "long"}', HUGE + b"\2"),
        ('{"type": "map", "values": "long"}', HUGE + b"\2"),
        ('{"type": "int", "logicalType": "date"}', b"\xff" * 4 + b"\x0f"),
    ],
)
def test_hostile_avro_is_invalid_without_its_memory(schema: str, payload: bytes) -> None:
    program = (
        "import resource, sys; from spark_mq.integrations.formats import Avro\n"
        "from spark_mq.errors import InvalidPayload\n"
        "avro = Avro(sys.argv[1]); avro._fastavro\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try: avro.decode(bytes.fromhex(sys.argv[2]))\n"
        "except InvalidPayload: pass\n"
        "else: sys.exit('decoded')\n"
        "grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before\n"
        "assert grown < 20_000, grown\n"  # KiB
    )
    subprocess.run([sys.executable, "-c", program, schema, payload.hex()], check=True, timeout=60)


def test_schemas_whose_payloads_could_end_the_process_are_refused() -> None:
    # A value of 20,000 levels ends the process inside the library, and one block can claim 2**60
    # items of no byte.
    node = {"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]}
    with pytest.raises(InvalidOption, match="N contains itself"):
        Avro(node)
    empty = {"type": "record", "name": "E", "fields": [{"name": "n", "type": "null"}]}
    for items in ("null", empty, {"type": "fixed", "name": "F", "size": 0}):
        with pytest.raises(InvalidOption, match="need no byte"):
            Avro({"type": "array", "items": items})
    for wrong in ("{", "nothing", '{"type": "record"}', '{"type": "array"}', "[" * 9999):
        with pytest.raises(InvalidOption, match=r"schema=.* is not an Avro schema"):
            Avro(wrong)


def test_a_name_may_be_used_twice() -> None:
    item = {"type": "record", "name": "Item", "fields": [{"name": "id", "type": "int"}]}
    pair = [{"name": "a", "type": item}, {"name": "b", "type": {"type": "array", "items": "Item"}}]
    avro = Avro({"type": "record", "name": "P", "fields": pair})
    assert avro.decode(avro.encode({"a": {"id": 1}, "b": [{"id": 2}]})) == {
        "a": {"id": 1},
        "b": [{"id": 2}],
    }


def test_deep_protobuf_and_json_are_invalid() -> None:
    deep = b""
    for _ in range(200):
        size = len(deep)
        length = bytes([size & 0x7F | 0x80, size >> 7]) if size > 0x7F else bytes([size])
        deep = b"\x1a" + length + deep
    damaged = r"not valid Protobuf for google\.protobuf\.DescriptorProto: the bytes are damaged"
    with pytest.raises(InvalidPayload, match=damaged):
        Protobuf(DescriptorProto).decode(deep)
    for one in (Json(), Pydantic(list[Any])):
        with pytest.raises(InvalidPayload):
            one.decode(b"[" * 100_000)


def test_errors_name_the_place_and_never_the_value() -> None:
    payload = json.dumps(
        {"id": "secret", "kind": "secret", "secret": 1, "notes": {"secret": "secret"},
         "items": [{"sku": "a", "price": "secret"}]}
    )  # fmt: skip
    with pytest.raises(InvalidPayload) as caught:
        Pydantic(Customer).decode(payload.encode())
    assert str(caught.value) == (
        "not a valid Customer: $.id: int_parsing, $.kind: literal_error, "
        "$.items[0].price: float_parsing, and 2 more"
    )
    assert caught.value.__cause__ is None
    with pytest.raises(InvalidPayload, match=r"\$.id: missing, \$.\*: extra_forbidden"):
        Pydantic(Customer).decode(b'{"secret": 1}')
    with pytest.raises(InvalidPayload, match=r"not a valid Customer: \$: json_invalid"):
        Pydantic(Customer).decode(b'{"id": secret')


def test_what_does_not_fit_is_refused_before_the_publish() -> None:
    wrong: list[tuple[Any, Any, str]] = [
        (Avro(ORDER), {"id": "secret", "items": []}, "shop.Order.id is not of type long"),
        (Avro(ORDER), {"id": 1.5}, "shop.Order.id is not of type long"),
        (Avro(ORDER), {}, "shop.Order.id is missing or None, and not of type long"),
        (Avro(ORDER), {"id": 1, "unknown": 2}, "unknown"),
        (Avro('"int"'), 2**40, "the value is not of type int"),
        (Pydantic(Customer), {"id": "secret"}, r"does not fit Customer: \$.id: int_parsing"),
        (Pydantic(Customer), Customer.model_construct(id="secret"), "has no JSON form as Customer"),
        (Protobuf(Type), {"id": 1}, "a value of type dict is not of type google.protobuf.Type"),
        (Json(), {1, 2}, "has no JSON form"),
        (Json(), "\ud800", "no UTF-8 form"),
    ]
    for one, value, text in wrong:
        with pytest.raises(InvalidOption, match=text) as caught:
            one.encode(value)
        assert caught.value.data["option"] == "value"
        assert "secret" not in str(caught.value)
    for one in (Type, "avro", Json, None):
        with pytest.raises(InvalidOption, match="cannot encode and decode"):
            Message.encode(1, one)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="is not the class of a Protobuf message"):
        Protobuf(Customer)
    unknown: Any = list["Nowhere"]  # type: ignore[name-defined]  # noqa: F821
    for model, text in (("Customer", "a text"), (3, "as a type"), (unknown, "defined")):
        with pytest.raises(InvalidOption, match=text):
            Pydantic(model)


def test_required_fields_of_protobuf_are_checked() -> None:
    part = UninterpretedOption.NamePart
    assert Protobuf(part).decode(b"\x0a\x01a\x10\x01").name_part == "a"
    with pytest.raises(InvalidPayload, match="required fields are missing"):
        Protobuf(part).decode(b"\x0a\x01a")
    with pytest.raises(InvalidOption, match="required"):
        Protobuf(part).encode(part(name_part="a"))
