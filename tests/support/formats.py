"""Schemas and messages for the tests of formats. The Protobuf file is built without protoc."""

from __future__ import annotations

from typing import Any

__all__ = ["ORDER", "ORDER_VALUE", "order_class"]

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": ["null", "string"], "default": None},
        {
            "name": "items",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Item",
                    "fields": [
                        {"name": "sku", "type": "string"},
                        {"name": "price", "type": "double"},
                    ],
                },
            },
            "default": [],
        },
    ],
}
ORDER_VALUE: dict[str, Any] = {
    "id": 1,
    "customer": "Zoë",
    "items": [{"sku": "a", "price": 2.5}, {"sku": "b", "price": -0.0}],
}


def order_class(name: str = "shop.Order") -> Any:
    """Return the class of a message: ``shop.Order`` or ``shop.Tree``."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message_factory import GetMessages
    from google.protobuf.text_format import Parse

    text = """
    file {
      name: "shop/orders.proto" package: "shop" syntax: "proto3"
      message_type {
        name: "Order"
        field { name: "id" number: 1 type: TYPE_INT64 }
        field { name: "customer" number: 2 type: TYPE_STRING proto3_optional: true oneof_index: 0 }
        field { name: "items" number: 3 type: TYPE_MESSAGE label: LABEL_REPEATED
                type_name: ".shop.Order.Item" }
        oneof_decl { name: "_customer" }
        nested_type {
          name: "Item"
          field { name: "sku" number: 1 type: TYPE_STRING }
          field { name: "price" number: 2 type: TYPE_DOUBLE }
        }
      }
      message_type {
        name: "Tree"
        field { name: "inner" number: 1 type: TYPE_MESSAGE type_name: ".shop.Tree" }
      }
    }
    """
    return GetMessages(Parse(text, FileDescriptorSet()).file)[name]
