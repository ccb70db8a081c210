"""Watchlists of members, on both databases."""

import asyncio

import pytest

from access.members import MAX_WATCHED, Watchlists
from schemas.errors import ApiError
from store.sql.access_store import AccessStore
from tests.store.conftest import access as access
from tests.store.conftest import closing as closing
from tests.store.conftest import open_access as open_access

NOW = 1_790_000_000_000
ANN, BOB = "Ann@Example.com", "bob@example.com"


@pytest.fixture
def lists(access: AccessStore) -> Watchlists:
    return Watchlists(access, lambda: NOW)


@pytest.mark.clause("16.6")
async def test_each_mailbox_and_the_owner_have_a_list_of_their_own(lists: Watchlists) -> None:
    for email, ticker in ((ANN, "ETH"), (ANN, "BTC"), (ANN, "ETH"), (BOB, "XAU"), ("owner", "SOL")):
        await lists.add(email, ticker)
    assert await lists.list_tickers(ANN.lower()) == ("BTC", "ETH")
    assert await lists.list_tickers("owner") == ("SOL",)
    await lists.remove(ANN, "ETH")
    await lists.remove(ANN, "ETH")
    await lists.remove(ANN, "XAU")
    assert [await lists.list_tickers(email) for email in (ANN, BOB)] == [("BTC",), ("XAU",)]


@pytest.mark.clause("16.6")
async def test_a_list_is_bounded_even_if_assets_are_added_at_once(lists: Watchlists) -> None:
    tickers = [f"T{number}" for number in range(MAX_WATCHED + 3)]
    added = await asyncio.gather(
        *(lists.add(ANN, ticker) for ticker in tickers), return_exceptions=True
    )
    refused = [result for result in added if result is not None]
    assert len(refused) == 3
    assert {type(error) for error in refused} == {ApiError}
    held = await lists.list_tickers(ANN)
    assert len(held) == MAX_WATCHED
    await lists.add(ANN, held[0])  # It is there, so it needs no room.
    await lists.add(BOB, "BTC")
    with pytest.raises(ApiError) as full:
        await lists.add(ANN, "NEW")
    assert full.value.status == 409
