"""Collections of bounded size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_mq.util.recent import RecentDict, RecentSet

items = st.lists(st.integers(0, 9))


@given(items, st.integers(1, 5))
def test_a_set_holds_no_more_than_its_most_and_always_the_last(added: list[int], most: int) -> None:
    found: RecentSet[int] = RecentSet(most)
    for item in added:
        found.add(item)
        assert item in found
        assert len(found) <= most
    assert found <= set(added)


def test_a_full_set_keeps_its_items_if_one_of_them_is_added_again() -> None:
    found: RecentSet[int] = RecentSet(2)
    for item in (1, 2, 1):
        found.add(item)
    assert found == {1, 2}


@given(items, st.integers(1, 5))
def test_a_dict_holds_what_was_set_last(added: list[int], most: int) -> None:
    found: RecentDict[int, int] = RecentDict(most)
    for at, key in enumerate(added):
        found[key] = at
    latest = {key: at for at, key in enumerate(added)}
    expected = sorted(latest.items(), key=lambda item: item[1])[-most:]
    assert list(found.items()) == expected


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9))), st.integers(0, 20))
def test_a_dict_drops_by_weight_and_keeps_the_last(added: list[tuple[int, int]], most: int) -> None:
    weighed = list[int]()

    def weigh(weight: int) -> int:
        weighed.append(weight)
        return weight

    found: RecentDict[int, int] = RecentDict(most, weigh)
    for key, weight in added:
        found[key] = weight
        assert found[key] == weight
        assert sum(found.values()) <= most or len(found) == 1
        if weight == 9:
            found.forget(key)
            assert key not in found
    found.forget(77)
    found[8] = most
    assert found[8] == most
    assert sum(found.values()) <= most or len(found) == 1
    assert weighed == [*(weight for _, weight in added), most], "each item once"


def test_an_item_that_was_used_stays_longer() -> None:
    found: RecentDict[str, int] = RecentDict(2)
    found["a"], found["b"] = 1, 2
    assert (found.use("a"), found.use("never there")) == (1, None)
    found["c"] = 3
    assert dict(found) == {"a": 1, "c": 3}
    found.reset()
    found["d"] = 4
    assert dict(found) == {"d": 4}
