"""A store may list its files in any order, as S3 Express does: nothing depends on it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.byte_store import ByteStore, Call
from support.queues import Place
from support.story import story


def shuffle(byte_store: ByteStore, seed: int) -> list[int]:
    """Shuffle each listing, and return a list that gets the length of each."""
    chance, seen = random.Random(seed), list[int]()

    def shuffled(call: Call) -> list[Any]:
        found = [*call.run()]
        seen.append(len(found))
        chance.shuffle(found)
        return found

    byte_store.on("list", "list_all", "folders", act=shuffled)
    byte_store.on("iterate", "iterate_all", act=lambda call: iter(shuffled(call)))
    return seen


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_whole_story_is_the_same_if_each_listing_is_shuffled(
    place: Place, byte_store: ByteStore, seed: int
) -> None:
    ordered = story(place())
    seen = shuffle(byte_store, seed)
    assert story(place()) == ordered
    assert sum(length > 2 for length in seen) > 10
