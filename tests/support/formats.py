"""An Avro schema of orders, and an order."""

from __future__ import annotations

from typing import Any

__all__ = ["ORDER", "ORDER_VALUE"]

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
