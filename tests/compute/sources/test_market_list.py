"""Entries of lists that are unlike the others, by hand."""

from typing import Any

import pytest

from compute.sources.ccxt_venue import drop_odd_entries

pytestmark = pytest.mark.clause("live")

A, B, C = ({"id": name, "base": name, "rank": 1} for name in "ABC")


@pytest.mark.parametrize("odd", [None, 1, "x", [], {}, {"id": None, "base": "D"}, {"id": "D"}])
@pytest.mark.parametrize("place", [0, 1, 3])
def test_an_entry_without_the_texts_of_the_others_is_dropped(odd: Any, place: int) -> None:
    entries = [A, B, C]
    entries.insert(place, odd)
    assert drop_odd_entries({"time": 1, "symbols": entries}) == {"time": 1, "symbols": [A, B, C]}
    named = {str(number): entry for number, entry in enumerate(entries)}
    assert list(drop_odd_entries({"result": named})["result"].values()) == [A, B, C]


@pytest.mark.parametrize(
    "answer", [None, 1, "x", [], {}, [[1, 2], [3]], {"a": {"b": 1}}, {"symbols": [A, B, C]}]
)
def test_an_answer_without_odd_entries_stays_as_it_is(answer: Any) -> None:
    assert drop_odd_entries(answer) == answer


def test_an_entry_may_lack_what_others_lack_too() -> None:
    entries = [A, B, C, {**A, "note": "x"}, {"id": "D", "base": "D"}]
    assert drop_odd_entries(entries) == entries
