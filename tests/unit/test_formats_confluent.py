"""What Confluent's own client writes and reads, with its registry in memory."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from support.formats import ORDER, ORDER_VALUE, order_class

from spark_mq.integrations.formats import Avro, Confluent, Protobuf

CONTEXT = SerializationContext("orders", MessageField.VALUE)


@pytest.fixture
def registry() -> Any:
    return SchemaRegistryClient.new_client({"url": "mock://"})


def id_of(payload: bytes) -> int:
    return int.from_bytes(payload[1:5], "big")


def test_avro_of_its_serializer_is_read_by_its_client(registry: Any) -> None:
    payload = AvroSerializer(registry, json.dumps(ORDER))(ORDER_VALUE, CONTEXT)
    assert payload is not None
    assert Confluent(Avro(ORDER), schemas=registry).decode(payload) == ORDER_VALUE
    assert Confluent(Avro(ORDER), id_of(payload)).encode(ORDER_VALUE) == payload


def test_its_deserializer_reads_avro(registry: Any) -> None:
    number = registry.register_schema("orders-value", Schema(json.dumps(ORDER), "AVRO"))
    payload = Confluent(Avro(ORDER), number).encode(ORDER_VALUE)
    assert AvroDeserializer(registry)(payload, CONTEXT) == ORDER_VALUE


def test_values_of_a_newer_schema_are_resolved_by_its_client(registry: Any) -> None:
    newer = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": "string"}]}
    serialize = AvroSerializer(registry, json.dumps(newer))
    payload = serialize({**ORDER_VALUE, "note": "a"}, CONTEXT)
    assert payload is not None
    assert Confluent(Avro(ORDER), schemas=registry).decode(payload) == ORDER_VALUE


def test_an_error_of_the_registry_is_no_invalid_payload(registry: Any) -> None:
    with pytest.raises(SchemaRegistryError):
        Confluent(Avro(ORDER), schemas=registry).decode(b"\0\0\0\0\x63\x02")


@pytest.mark.parametrize("name", ["shop.Other", "shop.Order", "shop.Order.Item"])
def test_protobuf_goes_both_ways(registry: Any, name: str) -> None:
    kind = order_class(name)
    value = kind.FromString(b"\x0a\x01a" if name != "shop.Order" else b"\x08\x07")
    settings = {"use.deprecated.format": False}
    payload = ProtobufSerializer(kind, registry, settings)(value, CONTEXT)
    assert payload is not None
    one = Confluent(Protobuf(kind), id_of(payload))
    assert one.decode(payload) == value
    assert one.encode(value) == payload
    assert ProtobufDeserializer(kind, settings, registry)(one.encode(value), CONTEXT) == value
