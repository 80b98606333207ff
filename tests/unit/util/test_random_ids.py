"""The ids that a publish fills in."""

from __future__ import annotations

import uuid

import pytest

from spark_mq.util.columns import random_ids


@pytest.mark.parametrize("count", [0, 1, 7, 16, 1_000])
def test_random_ids_are_uuid4_and_all_different(count: int) -> None:
    """Also where they are made in several pieces."""
    ids = random_ids(count, chunk=7)
    ids.validate(full=True)
    texts = ids.to_pylist()
    assert len(set(texts)) == count
    for text in texts:
        parsed = uuid.UUID(text)
        assert (str(parsed), parsed.version, parsed.variant) == (text, 4, uuid.RFC_4122)


def test_all_random_digits_of_an_id_are_used() -> None:
    """All but the version and two bits of the variant: 122 bits."""
    bits = [0, 0]
    for text in random_ids(400).to_pylist():
        number = uuid.UUID(text).int
        bits = [bits[0] | number, bits[1] | ~number & (1 << 128) - 1]
    assert (bits[0] & bits[1]).bit_count() == 122
