"""The messages: 1,000 random bytes, which no store can compress, and some 100 bytes of JSON, which
it can.
"""

from __future__ import annotations

import json
import os
import random

KINDS = ("1 KB", "100 B JSON")


def values(kind: str, count: int) -> list[bytes]:
    """So many messages of a kind."""
    if kind == "1 KB":
        block = os.urandom(1000 * count)
        return [block[at : at + 1000] for at in range(0, len(block), 1000)]
    draw = random.Random(6)
    return [
        json.dumps(
            {"id": number, "customer": f"{draw.getrandbits(40):010x}",
             "sku": f"{draw.getrandbits(32):08x}",
             "amount": draw.randrange(10**6), "currency": "EUR", "paid": draw.random() < 0.5}
        ).encode()
        for number in range(count)
    ]  # fmt: skip
